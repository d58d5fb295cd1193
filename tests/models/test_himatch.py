"""What HiMatch alone promises beside the conformance suite."""

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from hill.classifier import HillClassifier
from hill.data.documents import label_documents
from hill.errors import ConfigError
from hill.models import himatch as keywords
from hill.models import layers as descriptions
from hill.models.himatch import DESCRIPTIONS_FILE, Draw, HiMatchConfig, best_words, matching
from hill.models.inference import load_saved
from hill.models.layers import Descriptions
from hill.taxonomy import Label, Taxonomy
from hill.types import Batch
from tests.conftest import animals_taxonomy, random_taxonomy, toy_documents
from tests.made import Made, blank_model, make_model

SMALL = {"node_width": 10, "joint_width": 12}
RCNN = {"text": "rcnn", "word_width": 6, "gru_width": 4, "filters": 3}


@pytest.fixture
def made(tiny_encoder: Path) -> Made:
    return make_model("himatch", SMALL, tiny_encoder)


def slow_words(texts: list[str], gold: list[set[int]], labels: int, count: int) -> list[list[str]]:
    """The best words from the definition: mean of normalised (1 + ln tf) ln(n / df), common words left out."""
    found = [Counter(re.findall(r"\w\w+", text.lower())) for text in texts]
    spread = Counter(word for words in found for word in words)
    weights = []
    for words in found:
        raw = {
            word: (1 + math.log(times)) * math.log(len(texts) / spread[word])
            for word, times in words.items()
            if spread[word] <= 0.8 * len(texts)
        }
        length = math.sqrt(sum(value**2 for value in raw.values()))
        weights.append({word: value / length for word, value in raw.items()} if length else {})
    best = []
    for label in range(labels):
        own = [each for each, rows in zip(weights, gold, strict=True) if label in rows]
        means = {word: sum(each.get(word, 0.0) for each in own) / len(own) for each in own for word in each}
        best.append(sorted(means, key=lambda word: (-round(means[word], 12), word))[:count])
    return best


def words_of(ids: list[int], tokenizer: Tokenizer) -> list[str]:
    words = [tokenizer.id_to_token(number) for number in ids]
    return [word for word in words if word not in ("[CLS]", "[SEP]")]


def test_the_words_of_a_label_are_those_of_highest_mean_tfidf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keywords, "CHUNK", 4)
    taxonomy = random_taxonomy(1, n=11, most_parents=2)
    draw = np.random.default_rng(0)
    words = [f"word{i}" for i in range(40)]
    texts = [
        "The often " + "x " * (i % 2) + " ".join(draw.choice(words, size=9) + ["", "s", ""] * 3) for i in range(29)
    ]
    texts[3], texts[7] = "the", "the word0"
    labels = [[f"id{row}"] for row in draw.integers(0, 9, size=29)]
    documents = label_documents(texts, labels, taxonomy)
    gold = [set(row.nonzero()[0].tolist()) for row in documents.labels.toarray()]
    for count in (5, 100):
        expected = slow_words(texts, gold, 11, count)
        assert best_words(documents, count) == expected
    assert [] in expected and any(len(found) > 5 for found in expected)
    assert not any(word in found for found in expected for word in ("the", "x", "often")), "common, or a letter"


def test_a_label_without_words_is_described_by_its_name_and_description(tiny_encoder: Path) -> None:
    taxonomy = Taxonomy(
        [Label("a", "wing sky"), Label("b", "cave", (), "echo night paw"), Label("c", "tail"), Label("d", "no word")]
    )
    documents = label_documents(["nest egg nest", "egg beak", "root"], [["a"], ["a"], ["c"]], taxonomy)
    made = make_model("himatch", SMALL, tiny_encoder)
    config = HiMatchConfig(description_words=3)
    assets = made.model.prepare(documents, taxonomy, config, made.stored.tokenizer)
    ids = assets[DESCRIPTIONS_FILE]["ids"]
    found = [words_of(each, made.stored.tokenizer) for each in ids]
    assert found == [["nest", "beak", "egg"], ["cave", "echo", "night"], ["root"], ["[UNK]", "[UNK]"]]
    assert {(each[0], each[-1]) for each in ids} == {(2, 3)}, "the first and the last token that the encoder wants"
    assert assets["label_counts.json"] == [2, 0, 1, 0]


def test_descriptions_come_from_training_documents_alone(tiny_encoder: Path, tmp_path: Path) -> None:
    texts, labels = toy_documents(20, seed=2)
    taxonomy = animals_taxonomy()
    train = label_documents(texts, labels, taxonomy)
    settings: Any = {"model": {"encoder": str(tiny_encoder), **SMALL}, "train": {"epochs": 1}}
    found = []
    for number, word in enumerate(["leaf", "fur"]):
        unseen = label_documents([f"{word} {word}"] * 4, [["bat"]] * 4, taxonomy)
        classifier = HillClassifier(taxonomy, "himatch", settings, preset=None)
        for _ in classifier.training({"train": train, "dev": unseen, "test": unseen}, tmp_path / str(number)):
            pass
        found.append(classifier.stored.model.assets)
    tokenizer = classifier.stored.tokenizer
    assert (
        found[0]
        == found[1]
        == type(classifier.stored.model).prepare(train, taxonomy, classifier.model_config, tokenizer)
    )
    bats = set(" ".join(text for text, [label] in zip(texts, labels, strict=True) if label == "bat").split())
    assert set(words_of(found[0][DESCRIPTIONS_FILE]["ids"][3], tokenizer)) <= bats


def test_distances_and_margins_are_those_of_a_slow_loop() -> None:
    torch.manual_seed(0)
    text, labels = torch.randn(6, 4) / 3, torch.randn(9, 4) / 3
    rows = [torch.randint(0, 9, (6,)) for _ in range(4)]
    flags = [torch.tensor(flag) for flag in ([1, 1, 1, 1, 1, 0], [1, 0, 1, 1, 0, 0], [1, 1, 0, 1, 1, 0])]
    exists = torch.stack([flags[0], *flags]).bool()
    near, joint, fine, coarse = [], [], [], []
    for i in range(6):
        own, parent, sibling, other = (
            sum((text[i, j] - labels[row[i], j]).item() ** 2 for j in range(4)) / 4 for row in rows
        )
        if flags[0][i]:
            joint.append(own)
            near.append(max(0.0, parent - 0.01 / 4))
        if flags[1][i]:
            fine.append(max(0.0, own - sibling + 0.1))
        if flags[2][i]:
            coarse.append(max(0.0, own - other + 0.2))
    found = matching(text, labels, torch.stack(rows), exists, 0.2)
    assert found[0].item() == pytest.approx(np.mean(joint) + np.mean(near), rel=1e-5)
    assert found[1].item() == pytest.approx(np.mean(fine) + np.mean(coarse), rel=1e-5)
    assert 0 in fine and max(fine) > 0, "a margin that is reached and one that is not"


def test_a_parent_that_is_near_enough_and_terms_without_documents_cost_nothing() -> None:
    here = torch.zeros(4, 2, dtype=torch.int64)
    text = torch.full((2, 4), 0.04)  # squared distance 0.0064 to the only label
    joint, match = matching(
        text, torch.zeros(1, 4), here, torch.tensor([[True], [True], [False], [False]]).expand(4, 2), 0.2
    )
    assert joint.item() == pytest.approx(0.0016) and match.item() == 0
    joint, match = matching(text, torch.zeros(1, 4), here, torch.zeros(4, 2, dtype=torch.bool), 0.2)
    assert joint.item() == 0 and match.item() == 0


def drawing(taxonomy: Taxonomy) -> Draw:
    child, parent = (torch.from_numpy(ends.copy()) for ends in taxonomy.edge_array.T)
    return Draw(child, parent, torch.from_numpy(taxonomy.roots.copy()), len(taxonomy))


def siblings(taxonomy: Taxonomy, row: int) -> set[int]:
    """Labels with a parent in common; roots are siblings of each other."""
    above = set(taxonomy.parents(row).tolist())
    return {
        other
        for other in range(len(taxonomy))
        if other != row and (above & set(taxonomy.parents(other).tolist()) or (not above and other in taxonomy.roots))
    }


@pytest.mark.parametrize("seed", range(5))
def test_draws_are_what_they_are_called(seed: int) -> None:
    taxonomy = random_taxonomy(seed, n=14, roots=1 + seed % 3, most_parents=1 + seed % 2)
    random = np.random.default_rng(seed)
    gold = torch.zeros(300, 14, dtype=torch.bool)
    for document in range(300):
        gold[document, taxonomy.closure(random.integers(0, 14, size=random.integers(0, 8)))] = True
    gold[0] = True
    torch.manual_seed(seed)
    drawn, exists = drawing(taxonomy)(gold)
    for document in range(300):
        mine = set(gold[document].nonzero()[:, 0].tolist())
        label, parent, sibling, other = (int(drawn[i][document]) for i in range(4))
        has_label, has_parent, has_sibling, has_other = exists[:, document].tolist()
        assert has_label == has_parent == bool(mine)
        if not mine:
            assert not has_sibling and not has_other
            continue
        assert label in mine
        above = set(taxonomy.parents(label).tolist())
        assert parent in above if above else parent == label
        beside = siblings(taxonomy, label) - mine
        assert has_sibling == bool(beside) and (not beside or sibling in beside)
        assert has_other == (len(mine) < 14) and (not has_other or other not in mine)
    assert exists[2].any() and not exists[2].all()


def test_all_draws_are_equally_likely() -> None:
    taxonomy = Taxonomy(
        [
            Label("r", "r"),
            Label("s", "s"),
            Label("m", "m", ("r", "s")),
            Label("x", "x", ("r",)),
            Label("y", "y", ("s",)),
        ]
    )
    gold = torch.tensor([[True, True, True, False, False]]).repeat(9_000, 1)
    torch.manual_seed(0)
    (label, parent, sibling, other), exists = drawing(taxonomy)(gold)
    middle = label == 2

    def shares(rows: Tensor) -> list[float]:
        return (torch.bincount(rows, minlength=5) / len(rows)).tolist()

    assert shares(label) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0, 0], abs=0.03)
    assert shares(parent[middle]) == pytest.approx([0.5, 0.5, 0, 0, 0], abs=0.04)
    assert shares(sibling[middle]) == pytest.approx([0, 0, 0, 0.5, 0.5], abs=0.04)
    assert shares(other) == pytest.approx([0, 0, 0, 0.5, 0.5], abs=0.03)
    assert torch.equal(exists[2], middle), "roots that are all gold have no sibling to draw"


@pytest.mark.parametrize("text", ["transformer", "rcnn"])
def test_losses_are_those_of_described_labels_and_documents(text: str, tiny_encoder: Path) -> None:
    """Label by label and document by document; with a transformer both sides have length 1."""
    settings = {**SMALL, "joint": 0.5, "match": 0.25, "margin": 0.4, **(RCNN if text == "rcnn" else {})}
    made = make_model("himatch", settings, tiny_encoder)
    model, batch = made.model, made.batch
    for part in (model.text, model.structure, model.label_structure):
        part.eval()  # they have dropouts that are not settings
    torch.manual_seed(4)
    output = model(batch)
    vectors, nodes = model.text(batch.ids, batch.mask), []
    for vector in vectors:
        each = [
            model.spread.weight[i * 10 : i * 10 + 10] @ vector + model.spread.bias[i * 10 : i * 10 + 10]
            for i in range(7)
        ]
        nodes.append(torch.cat([*model.structure(torch.stack(each)[None])[0]]))
    assert torch.allclose(output.logits, model.head(torch.stack(nodes)), atol=1e-5)
    described = [
        model.text(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.int64))[0]
        for ids in model.assets[DESCRIPTIONS_FILE]["ids"]
    ]
    known = model.label_view(model.label_structure(torch.stack([model.align(each) for each in described])[None])[0])
    found = model.text_view(torch.stack(nodes))
    if text == "transformer":
        known, found = (values / values.norm(dim=1, keepdim=True) for values in (known, found))
    torch.manual_seed(4)
    joint, match = matching(found, known, *model.draw(batch.labels), 0.4)
    assert output.parts["joint"].item() == pytest.approx(0.5 * joint.item(), rel=1e-4)
    assert output.parts["match"].item() == pytest.approx(0.25 * match.item(), rel=1e-4)
    assert set(output.parts) == {"labels", "joint", "match"}


def test_only_training_matches(made: Made) -> None:
    output = made.model.eval()(made.batch)
    assert set(output.parts) == {"labels"} and made.model.descriptions.steps == 0


def test_documents_with_no_label_or_all_of_them_are_no_trouble(made: Made) -> None:
    batch = made.batch
    for labels in (torch.zeros_like(batch.labels), torch.ones_like(batch.labels)):
        output = made.model(Batch(batch.ids, batch.mask, labels))
        output.loss.backward()
        assert output.loss.isfinite() and output.parts["match"].item() == 0
        assert all(weight.grad.isfinite().all() for weight in made.model.parameters() if weight.grad is not None)


def test_descriptions_are_encoded_anew_every_so_many_steps(tiny_encoder: Path) -> None:
    made = make_model("himatch", {**SMALL, "refresh": 3, "dropout": 0.5}, tiny_encoder)
    model = made.model.train()
    before = None
    for step in range(7):
        with torch.no_grad():
            model.text.encoder.embeddings.word_embeddings.weight.add_(0.1 * torch.randn(22, 16))
        now = model.descriptions.encode(model.text)
        state = torch.get_rng_state()
        used = model.descriptions(model.text)
        assert torch.equal(torch.get_rng_state(), state) and not used.requires_grad
        assert torch.equal(used, now if step % 3 == 0 else before)
        assert model.text.training and model.text.dropout.training
        before = used
    frozen = model.text.eval()
    model.descriptions.encode(frozen)
    assert not frozen.training


def test_descriptions_are_encoded_in_parts(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = made.model.descriptions.encode(made.model.text)
    monkeypatch.setattr(descriptions, "CHUNK", 3)
    sizes: list[int] = []
    made.model.text.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    assert torch.allclose(made.model.descriptions.encode(made.model.text), whole, atol=1e-6)
    assert sizes == [3, 3, 1]


def test_a_training_saved_between_refreshes_goes_on_as_if_it_had_not_stopped(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    def learn(model: Any, batch: Batch, steps: int) -> None:
        optimiser = torch.optim.SGD(model.train().parameters(), lr=0.5)
        for _ in range(steps):
            optimiser.zero_grad()
            model(batch).loss.backward()
            optimiser.step()

    made = make_model("himatch", {**SMALL, "refresh": 3}, tiny_encoder)
    learn(made.model, made.batch, 4)
    made.stored.save(tmp_path / "model", {})
    state = torch.get_rng_state()
    learn(made.model, made.batch, 4)
    resumed = load_saved(tmp_path / "model").model
    torch.set_rng_state(state)
    learn(resumed, made.batch, 4)
    expected = made.model.state_dict()
    assert expected["descriptions._extra_state"].item() == 8
    for name, value in resumed.state_dict().items():
        assert torch.equal(value, expected[name]), name


def test_long_and_empty_descriptions_can_be_encoded(tiny_encoder: Path) -> None:
    model = make_model("himatch", SMALL, tiny_encoder).model
    assert model.text.longest == 64
    labels = Descriptions([[2] + [5] * 90 + [3], [], [2, 6, 3]], 0, 16, 1)
    vectors = labels(model.text)
    assert vectors.isfinite().all()
    cut = model.text.eval()(torch.tensor([[2] + [5] * 63]), torch.ones(1, 64, dtype=torch.int64))
    assert torch.allclose(vectors[0], cut[0], atol=1e-6)
    assert labels.mask.sum(dim=1).tolist() == [92, 1, 3]


@pytest.mark.parametrize("settings", [SMALL, SMALL | RCNN], ids=["transformer", "rcnn"])
def test_mixed_precision_loses_no_gradient_to_the_descriptions(settings: dict[str, Any], tiny_encoder: Path) -> None:
    whole, made = (make_model("himatch", settings, tiny_encoder) for _ in range(2))
    model, batch = made.model, made.batch
    expected = whole.model(batch).parts["labels"].item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model(batch)
    assert mixed.parts["labels"].item() == pytest.approx(expected, rel=0.05)
    assert model.descriptions.vectors.dtype == mixed.loss.dtype == torch.float32
    mixed.loss.backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None and weight.grad.abs().sum() > 0, name


def test_the_head_is_as_large_as_the_released_one() -> None:
    taxonomy = Taxonomy([Label("r", "r")] + [Label(str(i), str(i), ("r",)) for i in range(140)])
    model = blank_model("himatch", taxonomy, 300, {})
    sizes = {name: sum(weight.numel() for weight in part.parameters()) for name, part in model.named_children()}
    assert sizes["spread"] == 300 * 141 * 300 + 141 * 300 and sizes["head"] == 141 * 300 * 141 + 141
    assert sizes["text_view"] == 141 * 300 * 200 + 200 + 200 * 200 + 200
    assert sizes["label_view"] == 300 * 200 + 200 + 200 * 200 + 200
    assert (
        sizes["align"] == sizes["descriptions"] == sizes["draw"] == 0 and sizes["structure"] == sizes["label_structure"]
    )


def test_settings_out_of_range_are_refused() -> None:
    for name in ("node_width", "joint_width", "description_words", "refresh"):
        with pytest.raises(ConfigError, match=f"model.{name} is 0; expected (a number from|at least) 1"):
            HiMatchConfig(**{name: 0})
    for name in ("joint", "match", "margin", "readout_dropout"):
        with pytest.raises(ConfigError, match=f"model.{name} is -1"):
            HiMatchConfig(**{name: -1.0})
