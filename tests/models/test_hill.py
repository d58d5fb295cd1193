"""What HILL alone promises beside the conformance suite."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hill.classifier import HillClassifier
from hill.data.documents import label_documents
from hill.errors import ConfigError
from hill.models.hill import TOKENS_FILE, TREE_FILE, UNSEEN_FILE, HILLConfig
from hill.models.inference import SavedModel
from hill.models.layers import nt_xent, to_label_lists
from hill.taxonomy import Label, Taxonomy
from hill.train.warm_start import build_warm
from hill.tree import build_tree
from hill.types import Batch
from tests.conftest import animals_taxonomy, random_taxonomy, toy_documents
from tests.made import blank_model, make_model
from tests.tree.test_coding_tree import NYT, RCV1, WOS, label_graph


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
    model = blank_model("hill", taxonomy, d, {"height": 2})
    left_out = (labels**2 - labels) + d  # |Y|² weights become |Y| row sums; the vector node_mask
    assert sum(weight.numel() for weight in model.parameters()) == released - left_out


def test_contrast_is_added_with_its_weight(tiny_encoder: Path) -> None:
    made = make_model("hill", {}, tiny_encoder)
    model, batch = made.model.eval(), made.batch
    output = model(batch)
    text = model.text(batch.ids, batch.mask)
    expected = model.contrast(text, model.structure(text), batch.labels) * 0.1
    assert torch.allclose(output.parts["contrast"], expected)
    assert "contrast" not in make_model("hill", {"contrast": 0.0}, tiny_encoder).model(batch).parts


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        ({"contrast_labels": 3}, 3 / 7),
        ({"contrast_labels": 7}, 1),
        ({"contrast_labels": 8}, 1),
        ({"contrast_labels": 0}, 1),
        ({"contrast_labels": 3, "loss": "softmax"}, 1),
    ],
    ids=["fewer than the labels", "as many", "more", "off", "a loss that is no mean over labels"],
)
def test_contrast_weighs_less_where_labels_are_many(tiny_encoder: Path, settings: dict[str, Any], share: float) -> None:
    made = make_model("hill", settings, tiny_encoder)
    model, batch = made.model.eval(), made.batch
    text = model.text(batch.ids, batch.mask)
    expected = model.contrast(text, model.structure(text), batch.labels) * 0.1 * share
    assert torch.allclose(model(batch).parts["contrast"], expected)


def test_the_classifier_reads_what_it_should(tiny_encoder: Path) -> None:
    for classifier in ("concat", "text", "tree"):
        made = make_model("hill", {"classifier": classifier}, tiny_encoder)
        model = made.model.eval()
        text = model.text(made.batch.ids, made.batch.mask)
        tree = model.structure(text)
        seen = {"concat": torch.cat([text, tree], 1), "text": text, "tree": tree}
        assert torch.allclose(model(made.batch).logits, model.head(seen[classifier]), atol=1e-6)


def test_units_of_the_labels_reach_classifier_and_tree(tiny_encoder: Path) -> None:
    """Label by label: ReLU units, summed at the node above, projected, and read by a weight for every label."""
    made = make_model("hill", {"leaf_units": 3, "height": 2, "contrast": 0.0}, tiny_encoder)
    model = made.model.eval()
    text = model.text(made.batch.ids, made.batch.mask)
    read, reader = model.structure.units.read, model.head_leaves.weight  # (7 · 3, D) and (7, 7 · 3)
    above = model.tree.parents[0].tolist()
    received = model.structure.labels(model.structure.features(text)).transpose(1, 2).clone()
    logits = torch.zeros(len(text), 7)
    for label in range(7):
        rows = slice(3 * label, 3 * label + 3)
        units = (text @ read.weight[rows].T + read.bias[rows]).relu()
        received[:, above[label]] += units @ model.structure.units.lift.weight.T
        logits += units @ reader[:, rows].T
    tree = model.structure.align(torch.cat([nodes.sum(1) for nodes in model.structure.layers(received)], dim=1))
    logits += model.head(torch.cat([text, tree], dim=1))
    assert torch.allclose(model(made.batch).logits, logits, atol=1e-5)


@pytest.mark.parametrize(("labels", "settings"), [(5_500, {}), (100, {"sample": 50})])
@pytest.mark.parametrize("name", ["leaf_units", "name_weight"])
def test_what_needs_all_labels_is_refused_where_they_are_many(name: str, labels: int, settings: dict[str, Any]) -> None:
    taxonomy = Taxonomy([Label("r", "r")] + [Label(str(i), str(i), ("r",)) for i in range(labels)])
    with pytest.raises(ConfigError, match=rf"model\.{name} is 4, which needs .*set model\.{name}=0"):
        blank_model("hill", taxonomy, 8, {"height": 2, name: 4, **settings})


def test_many_labels_get_a_low_rank_label_map() -> None:
    taxonomy = Taxonomy([Label("r", "r")] + [Label(str(i), str(i), ("r",)) for i in range(5_500)])
    model = blank_model("hill", taxonomy, 8, {"height": 2})
    assert model.structure.labels.weight.shape == (64, 5_501)


def leaves_of(labels: list[int]) -> set[str]:
    """The most specific ids of a row of labels of the animals, by their definition."""
    ids = {label.id for label, known in zip(animals_taxonomy(), labels, strict=True) if known}
    above = {parent for label in animals_taxonomy() if label.id in ids for parent in label.parents}
    return ids - above


@pytest.mark.parametrize("negatives", ["all", "others"])
def test_documents_that_share_a_most_specific_label_are_no_negatives_if_asked(
    negatives: str, tiny_encoder: Path
) -> None:
    made = make_model("hill", {"negatives": negatives}, tiny_encoder)
    model, batch = made.model.eval(), made.batch
    assert batch.labels is not None
    leaves = [leaves_of(row) for row in batch.labels.int().tolist()]
    mask = torch.tensor([[one.isdisjoint(other) for other in leaves] for one in leaves])
    assert 0 < float(mask.float().mean()) < 1
    text = model.text(batch.ids, batch.mask)
    views = model.text_view(text), model.tree_view(model.structure(text))
    expected = nt_xent(*views, 1.0, None if negatives == "all" else mask) * 0.1
    assert torch.allclose(model(batch).parts["contrast"], expected, atol=1e-7)


@given(st.lists(st.sets(st.integers(0, 39), max_size=6), min_size=1, max_size=7), st.integers(0, 5))
def test_negative_pairs_share_no_most_specific_label(sets: list[set[int]], seed: int) -> None:
    taxonomy = random_taxonomy(seed, 40, 3, 3)
    model = blank_model("hill", taxonomy, 8, {"height": 1})
    targets = torch.tensor([[label in labels for label in range(40)] for labels in sets])
    specific = [{row for row in labels if not labels & {*taxonomy.children(row).tolist()}} for labels in sets]
    expected = torch.tensor([[one.isdisjoint(other) for other in specific] for one in specific])
    for labels in (targets, to_label_lists(targets)):
        assert torch.equal(model.negative_pairs(labels), expected)


def test_names_start_as_the_encoder_reads_them_and_add_their_cosine(tiny_encoder: Path) -> None:
    """One label at a time, name and description as one text with [CLS] and [SEP], at most 64 tokens."""
    made = make_model("hill", {}, tiny_encoder)
    taxonomy = Taxonomy([Label("0", "wing", (), "sky"), Label("1", "fur"), Label("2", "tail " * 100, ("1",))])
    tokenizer, text = made.stored.tokenizer, made.model.text.eval()
    config = HILLConfig(name_weight=10.0, height=2, contrast=0.0)
    assets = type(made.model).prepare(label_documents(["x"], [["0"]], taxonomy), taxonomy, config, tokenizer)
    torch.manual_seed(0)
    model = type(made.model)(text, taxonomy, config, assets).eval()
    names = [torch.tensor([tokenizer.encode(words).ids]) for words in ("wing sky", "fur", "tail " * 62)]
    assert [len(ids) for ids in assets[TOKENS_FILE]] == [4, 3, 64]
    document = text(names[0], torch.ones_like(names[0]))
    anywhere = model.classify(document).logits
    model.start()
    starts = torch.stack([text(ids, torch.ones_like(ids))[0] for ids in names])
    assert torch.allclose(model.names.vectors, starts, atol=1e-5)
    added = [10 * (torch.cosine_similarity(document[0], vector, dim=0) - 0.25) for vector in starts]
    assert float(added[0].detach()) == pytest.approx(7.5, abs=1e-3)
    logits = model.classify(document).logits
    model.names = None
    assert torch.allclose(logits, model.classify(document).logits + torch.stack(added), atol=1e-4)
    assert not torch.allclose(logits, anywhere, atol=1e-2)


def test_unseen_labels_are_scored_by_their_share_among_unrelated_labels(tiny_encoder: Path) -> None:
    """One label at a time: log odds in a softmax of 20 × cosine without ancestors and descendants, plus 1.5."""
    made = make_model("hill", {}, tiny_encoder)
    taxonomy, tokenizer, text = animals_taxonomy(), made.stored.tokenizer, made.model.text.eval()
    config = HILLConfig(name_weight=10.0, height=2, contrast=0.0)
    assets = type(made.model).prepare(label_documents(["x"], [["a"]], taxonomy), taxonomy, config, tokenizer)
    assets[UNSEEN_FILE] = {"rows": [1, 3]}
    model = type(made.model)(text, taxonomy, config, assets).eval()
    model.start()
    documents = text(made.batch.ids, made.batch.mask)
    names = []
    for label in taxonomy:
        ids = torch.tensor([tokenizer.encode(f"{label.name} {label.description}".strip()).ids])
        names.append(text(ids, torch.ones_like(ids))[0])
    expected = torch.zeros(len(documents), len(taxonomy))
    for i, document in enumerate(documents):
        powers = [torch.exp(20 * torch.cosine_similarity(document, name, dim=0)) for name in names]
        for row in (1, 3):
            related = {row, *taxonomy.ancestors(row).tolist(), *taxonomy.descendants(row).tolist()}
            others = sum(power for other, power in enumerate(powers) if other not in related)
            expected[i, row] = torch.log(powers[row] / others) + 1.5
    logits = model.classify(documents).logits
    model.unseen = None
    assert torch.allclose(logits - model.classify(documents).logits, expected, atol=1e-4)
    assert taxonomy.ancestors(3).size and taxonomy.descendants(1).size, "both kinds of relatives are left out"


@pytest.mark.parametrize("units", [0, 2])
def test_names_alone_score_labels_that_a_warm_start_adds(tiny_encoder: Path, units: int) -> None:
    settings = {"name_weight": 10.0, "leaf_units": units, "contrast": 0.0, "classifier": "text"}
    made = make_model("hill", settings, tiny_encoder)
    for weight in made.model.parameters():
        weight.data += 0.1 * torch.randn_like(weight)
    larger = Taxonomy([*animals_taxonomy(), Label("owl", "wing night", ("f",)), Label("elm", "leaf", ("p",))])
    nothing = label_documents([], [], larger)
    model: Any
    model, _, _ = build_warm(made.stored, nothing, larger, made.stored.model.config)
    model.eval()
    documents = model.text(made.batch.ids, made.batch.mask)
    logits = model.classify(documents).logits
    assert torch.allclose(logits[:, :7], made.model.eval()(made.batch).logits, atol=1e-5)
    assert torch.allclose(logits[:, 7:], model.unseen(documents)[:, 7:], atol=1e-5)
    first = Batch(made.batch.ids[:1], made.batch.mask[:1])
    branches = model.branch_logits(first, torch.arange(9))
    assert torch.allclose(sum(branches.values()), model(first).logits[0], atol=1e-5)
    stored = SavedModel("hill", model, larger, made.stored.tokenizer, made.stored.settings)
    again: Any
    again, _, _ = build_warm(stored, nothing, larger, model.config)
    assert torch.allclose(again.eval().classify(documents).logits, logits, atol=1e-5), "they stay unseen"


def test_a_training_begins_with_the_names(tiny_encoder: Path) -> None:
    settings = {
        "model": {"encoder": str(tiny_encoder), "pooling": "mean", "name_weight": 5.0},
        "train": {"epochs": 1, "lr": 1e-9, "encoder_lr": 1e-9, "head_start": "off", "device": "cpu"},
    }
    classifier = HillClassifier(animals_taxonomy(), "hill", settings, preset=None).fit(*toy_documents(20, seed=0))
    model: Any = classifier.stored.model.eval()
    for label, vector in zip(animals_taxonomy(), model.names.vectors, strict=True):
        ids = torch.tensor([classifier.stored.tokenizer.encode(f"{label.name} {label.description}").ids])
        assert torch.allclose(model.text(ids, torch.ones_like(ids))[0], vector, atol=1e-4)


def test_names_need_an_encoder_that_knows_words() -> None:
    with pytest.raises(ConfigError, match=r"model\.name_weight is 10, but model\.text is 'rcnn'"):
        HILLConfig(name_weight=10.0, text="rcnn")


@pytest.mark.parametrize("method", ["random", "taxonomy"])
def test_a_control_is_the_tree_that_is_used(method: str, tiny_encoder: Path) -> None:
    made = make_model("hill", {"method": method, "height": 2}, tiny_encoder)
    assert made.model.tree == build_tree(animals_taxonomy(), 2, method).tree
    assert len(made.model.assets[TREE_FILE]["parents"]) == 2


def test_a_text_rcnn_is_as_wide_as_its_filters(tiny_encoder: Path) -> None:
    made = make_model("hill", {"text": "rcnn", "word_width": 6, "gru_width": 5}, tiny_encoder)
    assert made.model.text.width == 300 and made.model.head.in_features == 600
    assert made.model.structure.features[0].in_features == 300 and not hasattr(made.model.config, "recursive")


@pytest.mark.parametrize(
    ("setting", "value"),
    [("negatives", "some"), ("classifier", "residual"), ("method", "best"), ("text", "words")],
)
def test_unknown_options(setting: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown model.{setting} '{value}'"):
        HILLConfig(**{setting: value})
    with pytest.raises(ConfigError, match=r"model\.filters is 0; expected a number from 1 to"):
        HILLConfig(filters=0)
