"""Warm start: what a model learned is there again for a changed taxonomy, label by label."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hill.data.batches import collate
from hill.data.documents import label_documents
from hill.data.tokens import tokenize
from hill.errors import ConfigError
from hill.models import MODELS
from hill.models import hill as hill_model
from hill.models.inference import SavedModel
from hill.settings import make
from hill.taxonomy import Label, Taxonomy
from hill.train.warm_start import WarmStartReport, build_warm, warm_settings
from hill.types import Batch
from tests.conftest import animals_taxonomy, random_taxonomy, toy_documents
from tests.made import make_model
from tests.models.test_models import VARIANTS

OPEN = [name for name, (model, _) in VARIANTS.items() if model != "linear"]


def learned(variant: str, encoder: Path, taxonomy: Taxonomy | None = None) -> SavedModel:
    """A model all of whose weights are other than those it started with, as after a training."""
    torch.manual_seed(0)
    stored = make_model(*VARIANTS.get(variant, (variant, {})), encoder).stored
    if taxonomy is not None:
        stored = again(stored, taxonomy)[0]
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in stored.model.state_dict().items():
            if weight.is_floating_point():
                noise = torch.rand(weight.shape, generator=draw)
                weight.add_(noise if name.endswith("running_var") else (noise - 0.5) * 0.2)
    stored.model.eval()
    return stored


def again(old: SavedModel, taxonomy: Taxonomy) -> tuple[SavedModel, WarmStartReport]:
    """The model for a taxonomy, started from an old one, with training documents that have words of their own."""
    torch.manual_seed(99)
    texts = [f"new{row} words" for row in range(len(taxonomy))]
    documents = label_documents(texts, [[label] for label in taxonomy.ids], taxonomy)
    model, tokenizer, report = build_warm(old, documents, taxonomy, old.model.config)
    return SavedModel(old.name, model.eval(), taxonomy, tokenizer, old.settings), report


def batch_of(stored: SavedModel) -> Batch:
    tokens = tokenize(toy_documents(12, seed=3)[0], stored.tokenizer, 32)
    return collate(tokens, None, np.arange(12), stored.model.text.pad)


@torch.no_grad()
def logits_of(stored: SavedModel) -> torch.Tensor:
    logits: torch.Tensor = stored.model(batch_of(stored)).logits
    return logits


@torch.no_grad()
def scores_of(stored: SavedModel) -> torch.Tensor:
    return stored.model.scores(stored.model(batch_of(stored)).logits)


def grown(*more: Label, without: tuple[str, ...] = ()) -> Taxonomy:
    return Taxonomy([*(label for label in animals_taxonomy() if label.id not in without), *more])


@pytest.mark.parametrize("variant", OPEN)
def test_for_the_same_taxonomy_scores_are_the_same_to_the_bit(tiny_encoder: Path, variant: str) -> None:
    old = learned(variant, tiny_encoder)
    new, report = again(old, animals_taxonomy())
    assert torch.equal(scores_of(new), scores_of(old)) and scores_of(old).std() > 1e-4
    assert len(report.copied) == 7 and not len(report.fresh) + len(report.from_relatives) + len(report.from_others)
    assert not report.fresh_weights
    before = old.model.state_dict()
    for name, weight in new.model.state_dict().items():
        assert name.endswith("_extra_state") or torch.equal(weight, before[name]), name


@pytest.mark.parametrize("variant", OPEN)
def test_another_order_of_labels_permutes_the_scores(tiny_encoder: Path, variant: str) -> None:
    old = learned(variant, tiny_encoder)
    order = [6, 3, 0, 5, 1, 4, 2]
    new, _ = again(old, Taxonomy([animals_taxonomy()[row] for row in order]))
    assert torch.allclose(scores_of(new), scores_of(old)[:, order], atol=2e-6)
    assert not torch.allclose(scores_of(new), scores_of(old), atol=1e-4)


@pytest.mark.parametrize("variant", OPEN)
def test_models_name_all_axes_that_follow_the_taxonomy(tiny_encoder: Path, variant: str) -> None:
    """Between taxonomies of 7 labels and 6 edges, and of 29 and more, exactly the named axes have other sizes."""
    old, other = learned(variant, tiny_encoder), random_taxonomy(3, n=29, roots=3, most_parents=2)
    new = again(old, other)[0].model
    sizes: dict[str, float] = {"L": 29 / 7, "Z": 29 / 7, "K": 29 / 7, "E": other.edges / 6, "-": 1.0}
    before, checked = old.model.state_dict(), new.checked_axes(other)
    for name, weight in new.state_dict().items():
        axes = checked[name]
        ratios = [now / then for now, then in zip(weight.shape, before[name].shape, strict=True)]
        assert "D" in axes or ratios == pytest.approx([sizes[letter] for letter in axes]), name


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"heads.weight": "L-"}, r"Flat.axes names \['heads.weight'\], which are not weights of the model"),
        ({"head.weight": "L"}, r"Flat.axes is 'L' for 'head.weight', but its shape is \(7, 16\) with 7 labels"),
        ({"head.weight": "-L"}, r"Flat.axes is '-L' for 'head.weight', but its shape is \(7, 16\) with 7 labels"),
        ({"head.bias": "E"}, r"Flat.axes is 'E' for 'head.bias', but its shape is \(7,\) with 7 labels and 6 edges"),
        ({"head.bias": "X"}, "'X' is not a valid Axis"),
    ],
)
def test_wrong_axes_are_named(
    tiny_encoder: Path, animals: Taxonomy, axes: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model("flat", {}, tiny_encoder).model
    monkeypatch.setattr(MODELS["flat"], "axes", axes)
    with pytest.raises(ValueError, match=message):
        model.checked_axes(animals)


def expected_share(taxonomy: Taxonomy, old: Taxonomy, row: int) -> np.ndarray[Any, Any]:
    """How much of each old label a label starts from, written as the definition says, one label at a time."""
    if taxonomy[row].id in old:
        return np.eye(len(old))[old.row(taxonomy[row].id)]
    parents = taxonomy.parents(row).tolist()
    if not parents:
        kept = [r for r in taxonomy.children(row).tolist() if taxonomy[r].id in old]
        kept = kept or [r for r in taxonomy.roots.tolist() if taxonomy[r].id in old]
        kept = kept or [r for r in range(len(taxonomy)) if taxonomy[r].id in old]
        return np.mean([expected_share(taxonomy, old, r) for r in kept], axis=0)
    siblings = {r for parent in parents for r in taxonomy.children(parent).tolist() if taxonomy[r].id in old}
    return np.mean([expected_share(taxonomy, old, r) for r in siblings or parents], axis=0)


@pytest.mark.parametrize("seed", range(6))
def test_new_labels_start_as_the_mean_of_their_siblings_or_parents(tiny_encoder: Path, seed: int) -> None:
    whole = random_taxonomy(seed, n=25, roots=3, most_parents=3)
    gone = set(np.random.default_rng(seed).choice(25, size=12, replace=False).tolist())
    left = [label for row, label in enumerate(whole) if row not in gone]
    known = {label.id for label in left}
    old = learned("flat", tiny_encoder, Taxonomy([_without(label, known) for label in left]))
    new, report = again(old, whole)
    shares = np.stack([expected_share(whole, old.taxonomy, row) for row in range(25)])
    for name in ("head.weight", "head.bias"):
        wanted = shares @ old.model.state_dict()[name].numpy()
        found = new.model.state_dict()[name].numpy()
        assert np.allclose(found, wanted, atol=1e-6)
    assert set(report.copied.tolist()) == set(range(25)) - gone
    assert sorted([*report.copied, *report.from_relatives, *report.from_others]) == list(range(25))
    assert all(not len(whole.parents(row)) for row in report.from_others)


def _without(label: Label, known: set[str]) -> Label:
    return Label(label.id, label.name, tuple(parent for parent in label.parents if parent in known))


@pytest.mark.parametrize("variant", ["flat", "hill-height-1", "hill-text", "hill-units-text", "hgclr", "textrcnn"])
def test_labels_that_come_and_go_leave_the_others_alone(tiny_encoder: Path, variant: str) -> None:
    old = learned(variant, tiny_encoder)
    taxonomy = grown(Label("ape", "Apes", ("m",)), Label("owl", "Owls", ("f", "m")), Label("gull", "Gulls", ("owl",)))
    new, report = again(old, taxonomy)
    before, after = logits_of(old), logits_of(new)
    assert torch.allclose(after[:, :7], before, atol=1e-5)
    bats, mammals, flyers = before[:, 3], before[:, 4], before[:, 5]
    assert torch.allclose(after[:, 7], (bats + mammals) / 2, atol=1e-5), "an ape starts as the other mammals"
    assert torch.allclose(after[:, 8:], ((bats + mammals + flyers) / 3)[:, None], atol=1e-5), (
        "an owl as the others of both, a gull as an owl"
    )
    assert (
        report.from_relatives.tolist() == [7, 8, 9] and str(report) == "7 labels copied, 3 from related labels, 0 new"
    )


@pytest.mark.parametrize("variant", ["flat", "hill-text", "textrcnn"])
def test_removed_labels_are_gone(tiny_encoder: Path, variant: str) -> None:
    old = learned(variant, tiny_encoder)
    new, report = again(old, grown(without=("mo", "p")))
    assert torch.allclose(logits_of(new), logits_of(old)[:, [0, 1, 2, 3, 5]], atol=1e-6)
    assert report.copied.tolist() == [0, 1, 2, 3, 4]


def test_new_roots(tiny_encoder: Path) -> None:
    old = learned("flat", tiny_encoder)
    head = old.model.state_dict()["head.weight"]
    above = [Label("life", "Life"), Label("a", "Animals", ("life",)), Label("p", "Plants", ("life",))]
    new, report = again(old, grown(*above, without=("a", "p")))
    row = new.taxonomy.row("life")
    assert report.from_others.tolist() == [row] and not len(report.from_relatives)
    assert torch.allclose(new.model.state_dict()["head.weight"][row], (head[0] + head[6]) / 2)
    new, report = again(old, grown(Label("r", "Rocks"), Label("gem", "Gems", ("r",))))
    assert report.from_others.tolist() == [7] and report.from_relatives.tolist() == [8]
    assert torch.allclose(new.model.state_dict()["head.weight"][7:], ((head[0] + head[6]) / 2)[None])
    new, report = again(old, Taxonomy([Label("x", "X"), Label("y", "Y", ("x",)), Label("bat", "Bats", ("y",))]))
    assert torch.allclose(new.model.state_dict()["head.weight"], head[3][None]), "the one that is left"
    assert report.from_others.tolist() == [0] and report.from_relatives.tolist() == [1]


@pytest.mark.parametrize("variant", ["flat", "hill", "hiagm"])
def test_without_common_labels_only_other_weights_are_copied(tiny_encoder: Path, variant: str) -> None:
    old = learned(variant, tiny_encoder)
    new, report = again(old, Taxonomy([Label("x", "X"), Label("y", "Y", ("x",))]))
    assert report.fresh.tolist() == [0, 1] and not len(report.copied)
    assert set(report.fresh_weights) == set(new.model.axes)
    assert new.model.state_dict()["head.weight"].std() > 0


def test_a_label_with_another_id_is_the_same_label(tiny_encoder: Path) -> None:
    old = learned("flat", tiny_encoder)
    codes = {label.id: f"{label.id}.2" for label in animals_taxonomy()}
    recoded = [
        Label(codes[label.id], label.name, tuple(codes[parent] for parent in label.parents))
        for label in animals_taxonomy()
    ]
    new, report = again(old, Taxonomy(recoded))
    assert torch.equal(logits_of(new), logits_of(old)) and len(report.copied) == 7


def test_a_new_label_starts_from_its_name_where_a_model_reads_names(tiny_encoder: Path) -> None:
    old = learned("hill-names", tiny_encoder)
    new, _ = again(old, grown(Label("owl", "feather night", ("f",))))
    ids = torch.tensor([old.tokenizer.encode("feather night").ids])
    vectors = new.model.state_dict()["names.vectors"]
    with torch.no_grad():
        assert torch.allclose(vectors[7], old.model.text.eval()(ids, torch.ones_like(ids))[0], atol=1e-6)
    assert torch.equal(vectors[:7], old.model.state_dict()["names.vectors"])


@pytest.mark.parametrize(("variant", "rank"), [("hill", None), ("hill", 2), ("hitin", None), ("hiagm", None)])
def test_weights_that_start_at_zero_get_gradients(
    tiny_encoder: Path, variant: str, rank: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rank:
        monkeypatch.setattr(hill_model, "FULL_RANK", 0)
        monkeypatch.setattr(hill_model, "LOW_RANK", rank)
    new, _ = again(learned(variant, tiny_encoder), grown(Label("ape", "Apes", ("m",))))
    batch = batch_of(new)
    labels = torch.zeros(12, 8)
    labels[:4, 7] = 1
    known = dict(new.model.named_parameters())
    if "structure.labels.offset" in known:
        known["structure.labels.offset"].data.fill_(5.0)  # no ReLU of the label map is asleep
    loss = new.model.train()(Batch(batch.ids, batch.mask, labels)).loss
    loss.backward()
    for name, axes in new.model.axes.items():
        weight = known[name]
        for axis in (place for place, letter in enumerate(axes) if letter == "Z"):
            assert weight.grad is not None and weight.grad.unflatten(axis, (8, -1)).select(axis, 7).any(), name


def test_edges_and_distances_that_both_have_are_copied(tiny_encoder: Path) -> None:
    old = learned("hiagm", tiny_encoder)
    moved = grown(Label("mo", "Others", ("f",)), Label("fo", "Others", ("m",)), without=("mo", "fo"))
    new, _ = again(old, moved)
    before, after = old.model.state_dict()["structure.up"], new.model.state_dict()["structure.up"]
    edges_old, edges_new = ([(t[c].id, t[p].id) for c, p in t.edge_array] for t in (old.taxonomy, moved))
    for edge, weight in zip(edges_new, after, strict=True):
        assert weight == (before[edges_old.index(edge)] if edge in edges_old else 1.0), edge
    old = learned("hgclr", tiny_encoder)
    new, _ = again(old, grown(Label("cave", "Cave bats", ("bat",))))
    far = old.model.state_dict()["structure.far"]
    assert len(new.model.state_dict()["structure.far"]) > len(far)
    assert torch.equal(new.model.state_dict()["structure.far"][: len(far)], far)


def test_weights_of_other_shapes_start_fresh(tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = learned("hill", tiny_encoder)
    documents = label_documents(["a"], [["p"]], old.taxonomy)
    config = make(MODELS["hill"].Config, {**old.settings["model"], "classifier": "text"}, "model")
    monkeypatch.setattr(hill_model, "FULL_RANK", 0)
    monkeypatch.setattr(hill_model, "LOW_RANK", 2)
    model, _, report = build_warm(old, documents, old.taxonomy, config)
    assert report.fresh_weights == ("structure.labels.outer", "structure.labels.weight", "head.weight")
    assert torch.equal(model.state_dict()["head.bias"], old.model.state_dict()["head.bias"])


def test_invalid_warm_starts(tiny_encoder: Path, animals: Taxonomy) -> None:
    flat, words = learned("flat", tiny_encoder), learned("textrcnn", tiny_encoder)
    linear = make_model("linear", {"min_count": 1}, tiny_encoder).stored
    with pytest.raises(ConfigError, match="model 'linear' is fitted in one go and has no warm start"):
        build_warm(linear, label_documents(["a"], [["p"]], animals), animals, linear.model.config)
    documents = label_documents(["a"], [["p"]], animals)
    with pytest.raises(ConfigError, match="the model to start from is a 'flat'; use --model flat"):
        build_warm(flat, documents, animals, make(MODELS["hill"].Config, {}, "model"))
    for name, value, has in (("encoder", "minilm", str(tiny_encoder)), ("text", "rcnn", "transformer")):
        old = flat if name == "encoder" else learned("hill", tiny_encoder)
        other_text = make(MODELS[old.name].Config, {**old.settings["model"], name: value}, "model")
        with pytest.raises(ConfigError, match=f"model.{name} is '{value}', but the model to start from has '{has}'"):
            build_warm(old, documents, animals, other_text)
    config = make(MODELS["textrcnn"].Config, {**words.settings["model"], "gru_width": 5}, "model")
    with pytest.raises(ConfigError, match="the text encoder differs from that of the old model"):
        build_warm(words, label_documents(["a"], [["p"]], animals), animals, config)


def test_a_training_takes_model_and_length_from_the_old_one_unless_given(tmp_path: Path) -> None:
    old = {"model": {"encoder": "x", "height": 2}, "data": {"max_length": 99, "dev_share": 0.3}, "train": {"epochs": 7}}
    (tmp_path / "config.json").write_text(json.dumps({"model": "hill", "settings": old}))
    name, settings = warm_settings(tmp_path, {"model": {"height": 4}, "train": {"epochs": 1}, "data": {}, "decode": {}})
    assert name == "hill" and settings["model"] == {"encoder": "x", "height": 4}
    assert settings["train"] == {"epochs": 1, "warm_start": str(tmp_path)} and settings["data"] == {"max_length": 99}
    assert warm_settings(tmp_path, {"data": {"max_length": 8}})[1]["data"] == {"max_length": 8}


def test_steps_are_counted_from_the_start(tiny_encoder: Path, animals: Taxonomy) -> None:
    old = learned("himatch", tiny_encoder)
    old.model.descriptions.steps = 7  # type: ignore[union-attr]
    assert again(old, animals)[0].model.descriptions.steps == 0


def test_settings_of_the_old_tree_are_kept_only_if_they_are_the_same(tiny_encoder: Path) -> None:
    old = learned("hill", tiny_encoder)
    documents = label_documents(["a"], [["p"]], old.taxonomy)
    config = make(MODELS["hill"].Config, {**old.settings["model"], "height": 2}, "model")
    model, _, _ = build_warm(old, documents, old.taxonomy, config)
    assert len(model.assets["coding_tree.json"]["parents"]) == 2
