"""What HILL alone promises beside the conformance suite."""

from pathlib import Path
from typing import Any

import pytest
import torch

from hill.taxonomy import Label, Taxonomy
from tests.made import blank_model, make_model
from tests.test_tree import NYT, RCV1, WOS, label_graph


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
    expected = model.contrast(text, model.structure(text)) * 0.1
    assert torch.allclose(output.parts["contrast"], expected)
    assert "contrast" not in make_model("hill", {"contrast": 0.0}, tiny_encoder).model(batch).parts


def test_the_classifier_reads_what_it_should(tiny_encoder: Path) -> None:
    for classifier in ("concat", "text", "tree", "residual"):
        made = make_model("hill", {"classifier": classifier}, tiny_encoder)
        model = made.model.eval()
        text = model.text(made.batch.ids, made.batch.mask)
        tree = model.structure(text)
        seen = {"concat": torch.cat([text, tree], 1), "text": text, "tree": tree, "residual": text + tree}
        assert torch.allclose(model(made.batch).logits, model.head(seen[classifier]), atol=1e-6)


def test_many_labels_get_a_low_rank_label_map() -> None:
    taxonomy = Taxonomy([Label("r", "r")] + [Label(str(i), str(i), ("r",)) for i in range(5_500)])
    model = blank_model("hill", taxonomy, 8, {"height": 2})
    assert model.structure.labels.weight.shape == (64, 5_501)
