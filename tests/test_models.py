"""One suite over every model: what each must do whatever it is; then what HILL alone promises."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hill.data.batches import collate
from hill.data.documents import label_documents
from hill.data.tokens import tokenize
from hill.metrics import flat_scores
from hill.models import HILL, MODELS, HTCModel
from hill.nn import TextEncoder
from hill.nn.pretrained import load_pretrained
from hill.settings import make
from hill.taxonomy import Label, Taxonomy
from hill.types import Batch
from tests.conftest import toy_documents
from tests.test_tree import NYT, RCV1, WOS, label_graph

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "flat": ("flat", {}),
    "flat-softmax": ("flat", {"loss": "softmax"}),
    "hill": ("hill", {}),
    "hill-height-1": ("hill", {"height": 1}),
    "hill-no-contrast": ("hill", {"contrast": 0.0}),
    "hill-tree": ("hill", {"classifier": "tree"}),
    "hill-residual": ("hill", {"classifier": "residual"}),
    "hill-text": ("hill", {"classifier": "text"}),
    "hill-layer-max": ("hill", {"norm": "layer", "readout": "max"}),
    "hill-low-rank": ("hill", {"label_rank": 2, "readout": "mean", "hidden": 12}),
    "hill-softmax": ("hill", {"loss": "softmax", "method": "refined"}),
}
UNUSED = {"hill-no-contrast": ("text_view", "tree_view")}


@pytest.fixture(params=VARIANTS, ids=list(VARIANTS))
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def build(tiny_encoder: Path, animals: Taxonomy) -> Any:
    def build_variant(variant: str, dropout: float = 0.0) -> HTCModel:
        name, settings = VARIANTS[variant]
        torch.manual_seed(1)
        config = make(MODELS[name].Config, {"dropout": dropout, **settings}, "model")
        text = TextEncoder(load_pretrained(str(tiny_encoder)).encoder, "mean", dropout)
        return MODELS[name](text, animals, config)

    return build_variant


@pytest.fixture
def batch(tiny_encoder: Path, animals: Taxonomy) -> Batch:
    texts, labels = toy_documents(16, seed=0)
    documents = label_documents(texts, labels, animals)
    tokens = tokenize(texts, load_pretrained(str(tiny_encoder)).tokenizer, 32)
    return collate(tokens, documents.labels, torch.arange(16).numpy(), pad=0)


def test_shapes_and_a_loss_exactly_when_labels_are_given(build: Any, variant: str, batch: Batch) -> None:
    model = build(variant)
    output = model(batch)
    assert output.logits.shape == (16, 7) and output.loss is not None and output.loss.ndim == 0
    assert torch.allclose(output.loss, sum(output.parts.values()))
    without = model(Batch(batch.ids, batch.mask))
    assert without.loss is None and not without.parts
    scores = model.scores(output.logits)
    assert scores.min() >= 0 and scores.max() <= 1


def test_every_weight_gets_a_gradient(build: Any, variant: str, batch: Batch) -> None:
    model = build(variant)
    model.train()(batch).loss.backward()
    for name, weight in model.named_parameters():
        if not name.startswith(UNUSED.get(variant, "-")):
            assert weight.grad is not None and weight.grad.abs().sum() > 0, name


def test_padding_and_company_change_no_score(build: Any, variant: str, batch: Batch) -> None:
    model = build(variant).eval()
    with torch.no_grad():
        together = model(batch).logits
        wider = Batch(nn.functional.pad(batch.ids, (0, 9)), nn.functional.pad(batch.mask, (0, 9)))
        assert torch.allclose(model(wider).logits, together, atol=1e-5)
        alone = torch.cat([model(Batch(batch.ids[i : i + 1], batch.mask[i : i + 1])).logits for i in range(16)])
    assert torch.allclose(alone, together, atol=1e-5)


def test_it_overfits_one_batch(build: Any, variant: str, batch: Batch) -> None:
    model = build(variant)
    if isinstance(model, HILL):
        model.structure.align[0].p = 0.0
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(150):
        optimiser.zero_grad()
        model.train()(batch).loss.backward()
        optimiser.step()
    with torch.no_grad():
        scores = model.eval().scores(model(batch).logits)
    assert batch.labels is not None
    if model.config.loss == "bce":
        assert flat_scores(batch.labels.numpy(), (scores > 0.5).numpy())["micro_f1"] >= 0.99
        return
    for rows in model.levels:
        single = batch.labels[:, rows].sum(dim=1) == 1
        assert torch.equal(scores[single][:, rows].argmax(1), batch.labels[single][:, rows].int().argmax(1))


def test_the_head_can_be_started(build: Any, variant: str, batch: Batch) -> None:
    model = build(variant).eval()
    weight, bias = torch.randn(7, 16), torch.randn(7)
    model.start_head(weight, bias)
    assert torch.equal(model.head.bias, bias)
    if VARIANTS[variant][1].get("classifier") != "tree":
        assert torch.equal(model.head.weight[:, :16], weight)


def blank_text(width: int) -> Any:
    encoder = nn.Module()
    encoder.config = SimpleNamespace(hidden_size=width)
    return TextEncoder(encoder, "cls", 0.1)


@pytest.mark.parametrize(
    ("shape", "released"), [(WOS, 7_346_937), (RCV1, 7_269_911), (NYT, 7_400_762)], ids=["wos", "rcv1", "nyt"]
)
def test_parameters_are_the_released_ones_less_what_is_left_out(shape: Any, released: int) -> None:
    """Without the encoder, d = 768, K = 2, concat: the first label map is |Y| row sums, an unused vector goes."""
    graph = label_graph(shape)
    labels, d = len(graph), 768
    linear = d * d + d
    formula = 2 * (labels**2 + labels) + 2 * linear + (4 * linear + 4 * d) + (2 * d * d + d)
    formula += 2 * d * labels + labels + 4 * linear + d
    assert formula == released
    taxonomy = Taxonomy([Label("r", "r")] + [Label(str(i), str(i), ("r",)) for i in range(labels - 1)])
    model = HILL(blank_text(d), taxonomy, make(HILL.Config, {"height": 2}, "model"))
    left_out = (labels**2 - labels) + d  # |Y|² weights become |Y| row sums; the vector node_mask
    assert sum(weight.numel() for weight in model.parameters()) == released - left_out


def test_contrast_is_added_with_its_weight(build: Any, batch: Batch) -> None:
    torch.manual_seed(0)
    model = build("hill").eval()
    output = model(batch)
    text = model.text(batch.ids, batch.mask)
    expected = model.contrast(text, model.structure(text)) * 0.1
    assert torch.allclose(output.parts["contrast"], expected)
    assert "contrast" not in build("hill-no-contrast")(batch).parts


def test_the_classifier_reads_what_it_should(build: Any, batch: Batch) -> None:
    for variant, reads in {"hill": "both", "hill-text": "text", "hill-tree": "tree", "hill-residual": "sum"}.items():
        model = build(variant).eval()
        text = model.text(batch.ids, batch.mask)
        tree = model.structure(text)
        seen = {"both": torch.cat([text, tree], 1), "text": text, "tree": tree, "sum": text + tree}[reads]
        assert torch.allclose(model(batch).logits, model.head(seen), atol=1e-6)


def test_many_labels_get_a_low_rank_label_map() -> None:
    taxonomy = Taxonomy([Label("r", "r")] + [Label(str(i), str(i), ("r",)) for i in range(5_500)])
    model = HILL(blank_text(8), taxonomy, make(HILL.Config, {"height": 2}, "model"))
    assert model.structure.labels.weight.shape == (64, 5_501)
