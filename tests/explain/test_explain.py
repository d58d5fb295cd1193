"""Explanations, compared with slow integrated gradients, with an exact solution, and with deleting words."""

import json
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.svm import LinearSVC

from hill import explain as explain_module
from hill.classifier import HillClassifier
from hill.data.documents import label_documents
from hill.data.tokens import tokenize
from hill.errors import ConfigError, DataError, TaxonomyError
from hill.explain import EmbeddingPath, Explanation, eval_mode, explain, integrated_gradients, tokenize_words
from hill.models import linear
from hill.models.inference import SavedModel
from hill.predictor import Predictor
from hill.types import Batch
from tests.conftest import animals_taxonomy, toy_documents
from tests.made import make_model
from tests.models.test_models import SMALL, fit

TEXT = "milk fur stone wing, echo echo nest"
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "flat": ("flat", {}),
    "flat-conditional": ("flat", {"loss": "conditional-softmax", "pooling": "cls"}),
    "hill": ("hill", {}),
    "hill-tree": ("hill", {"classifier": "tree"}),
    "hill-text": ("hill", {"classifier": "text"}),
    "hill-units-names": ("hill", {"leaf_units": 2, "name_weight": 5.0}),
    "hill-rcnn": ("hill", SMALL),
    "hgclr": ("hgclr", {}),
    "hitin": ("hitin", {}),
    "hiagm": ("hiagm", {}),
    "hiagm-la": ("hiagm", {"fusion": "la"}),
    "himatch": ("himatch", {"node_width": 16, "joint_width": 12}),
    "textrcnn": ("textrcnn", SMALL),
    "htcinfomax": ("htcinfomax", {}),
}


def classifier_with(stored: SavedModel) -> HillClassifier:
    """A classifier with this model."""
    classifier = HillClassifier(stored.taxonomy, stored.name, stored.settings, preset=None)
    classifier.set_stored(stored)
    return classifier


@pytest.fixture(scope="module")
def build(tiny_encoder: Path) -> Callable[[str], HillClassifier]:
    """A cached classifier per kind, trained for a few steps, so that logits are not linear along the path."""

    @cache
    def made(kind: str) -> HillClassifier:
        found = make_model(*KINDS[kind], tiny_encoder)
        if kind.startswith("hill"):
            with torch.no_grad():  # otherwise the structure of so small a model adds almost nothing
                for weight in found.model.structure.parameters():
                    weight.mul_(8)
        fit(found.model, found.batch, 25)
        with torch.no_grad():
            nothing = encoder_embeddings(found.model).weight[0]
            nothing.copy_(torch.linspace(-0.3, 0.3, len(nothing)))  # so that the baseline is not zero
        return classifier_with(found.stored)

    return made


@pytest.fixture(scope="module")
def fitted(tiny_encoder: Path) -> HillClassifier:
    """HILL with a high F1 on the animals."""
    settings = {
        "model": {"encoder": str(tiny_encoder), "pooling": "mean"},
        "train": {
            "epochs": 12,
            "patience": 12,
            "batch_size": 16,
            "lr": 0.01,
            "encoder_lr": 0.01,
            "device": "cpu",
            "freeze": 0,
        },
    }
    found = HillClassifier(animals_taxonomy(), "hill", settings, preset=None).fit(*noisy(300, seed=0))
    assert found.metrics["micro_f1"] > 0.95
    return found


def noisy(count: int, seed: int) -> tuple[list[str], list[list[str]]]:
    """Documents mixed with words that have no meaning and are unknown to the encoder."""
    texts, labels = toy_documents(count, seed)
    draw = np.random.default_rng(seed)
    mixed = [draw.permutation([*text.split()[:4], *(f"word{n}" for n in range(6))]) for text in texts]
    return [" ".join(words) for words in mixed], labels


def encoder_embeddings(model: Any) -> Any:
    return model.text.words if hasattr(model.text, "words") else model.text.encoder.embeddings.word_embeddings


def slow_logits(model: Any, ids: list[int], vectors: torch.Tensor) -> torch.Tensor:
    """Logits (L) of a text whose word vectors (T, D) are given, one text at a time."""
    words, tokens = encoder_embeddings(model), torch.tensor([ids])
    original, words.forward = words.forward, lambda _: vectors[None]
    try:
        found: torch.Tensor = model(Batch(tokens, torch.ones_like(tokens))).logits[0]
        return found
    finally:
        words.forward = original


def slow_integrated(classifier: HillClassifier, text: str, row: int, steps: int) -> tuple[np.ndarray, float, float]:
    """Integrated gradients by its definition: a loop over steps, autograd at each; the sum a token, logit, baseline."""
    model, tokenizer = classifier.stored.model.eval(), classifier.stored.tokenizer
    encoding = tokenizer.encode(text)
    table = encoder_embeddings(model).weight.detach()
    end = table[torch.tensor(encoding.ids)]
    start = torch.stack(
        [vector if special else table[0] for vector, special in zip(end, encoding.special_tokens_mask, strict=True)]
    )
    total = torch.zeros(len(encoding.ids), dtype=torch.float64)
    for step in range(steps + 1):
        point = (start + step / steps * (end - start)).requires_grad_()
        (slope,) = torch.autograd.grad(slow_logits(model, encoding.ids, point)[row], point)
        weight = 0.5 if step in (0, steps) else 1.0
        total += weight / steps * (slope * (end - start)).sum(dim=1).double()
    with torch.no_grad():
        ends = [float(slow_logits(model, encoding.ids, vectors)[row]) for vectors in (end, start)]
    inner = [not special for special in encoding.special_tokens_mask]
    return total.numpy()[inner], *ends


@pytest.mark.parametrize("kind", KINDS)
def test_integrated_gradients_match_the_definition(build: Callable[[str], HillClassifier], kind: str) -> None:
    classifier = build(kind)
    found = explain(classifier, TEXT, ["bat", "p"], steps=12)
    comma = [] if "rcnn" in kind else [(19, 20)]
    assert [(word.start, word.end) for word in found.words] == sorted(
        [(0, 4), (5, 8), (9, 14), (15, 19), (21, 25), (26, 30), (31, 35), *comma]
    )
    for label in found.labels:
        values, logit, baseline = slow_integrated(classifier, TEXT, classifier.taxonomy.row(label.id), 12)
        assert np.abs(np.array(label.values) - values).max() < 1e-4
        assert (label.logit, label.baseline) == pytest.approx((logit, baseline), abs=1e-4)
        assert label.gap == pytest.approx(logit - baseline - values.sum(), abs=2e-4) and label.steps == 12
    assert max(abs(value) for label in found.labels for value in label.values) > 0.002, "zeros would show nothing"


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_doubled_until_the_gap_is_small(build: Callable[[str], HillClassifier], kind: str) -> None:
    classifier = build(kind)
    for label in explain(classifier, TEXT, ["a", "bat"]).labels:
        row = classifier.taxonomy.row(label.id)
        wrong = [
            abs(logit - baseline - values.sum()) > 0.05 * max(abs(logit - baseline), 1)
            for values, logit, baseline in (slow_integrated(classifier, TEXT, row, steps) for steps in (8, 16))
        ]
        assert label.steps == (8 if not wrong[0] else 16 if not wrong[1] else label.steps)
        assert abs(label.gap) <= 0.05 * max(abs(label.logit - label.baseline), 1) or label.steps == 256


def test_labels_with_a_large_gap_take_more_steps(fitted: HillClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    text = noisy(1, seed=5)[0][0]
    monkeypatch.setattr(explain_module, "TOLERANCE", 1e9)
    first = explain(fitted, text, fitted.taxonomy.ids).labels
    gaps = [abs(label.gap) / max(abs(label.logit - label.baseline), 1) for label in first]
    between = float(np.mean(sorted(gaps)[2:4]))
    monkeypatch.setattr(explain_module, "TOLERANCE", between)
    labels = explain(fitted, text, fitted.taxonomy.ids).labels
    assert {label.steps for label in first} == {8}
    assert [label.steps > 8 for label in labels] == [gap > between for gap in gaps]
    for label in labels:
        values, _, _ = slow_integrated(fitted, text, fitted.taxonomy.row(label.id), label.steps)
        assert np.abs(np.array(label.values) - values).max() < 1e-3
    monkeypatch.setattr(explain_module, "TOLERANCE", 0.0)
    assert explain(fitted, TEXT, ["bat"]).labels[0].steps == 256


@pytest.mark.parametrize("kind", ["hill", "textrcnn", "hiagm-la"])
def test_gradient_x_input_uses_the_gradient_at_the_text(build: Callable[[str], HillClassifier], kind: str) -> None:
    classifier = build(kind)
    model, tokenizer = classifier.stored.model.eval(), classifier.stored.tokenizer
    (label,) = explain(classifier, TEXT, ["m"], "gradient").labels
    encoding = tokenizer.encode(TEXT)
    table = encoder_embeddings(model).weight.detach()
    point = table[torch.tensor(encoding.ids)].requires_grad_()
    slow_logits(model, encoding.ids, point)[1].backward()
    wanted = (point.grad * (point - table[0])).sum(dim=1).detach().numpy()
    inner = [not special for special in encoding.special_tokens_mask]
    assert np.abs(np.array(label.values) - wanted[inner]).max() < 1e-5 and label.steps == 1
    assert label.logit - label.baseline == pytest.approx(sum(label.values) + label.gap)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("hill")])
def test_branches_add_up_to_the_logit(build: Callable[[str], HillClassifier], kind: str) -> None:
    classifier = build(kind)
    model: Any = classifier.stored.model.eval()
    (label,) = explain(classifier, TEXT, ["bat"], "gradient").labels
    assert label.branches is not None and sum(label.branches.values()) == pytest.approx(label.logit, abs=1e-4)
    batch = tokenize_words(TEXT, classifier.stored.tokenizer, 64).batch(model)
    zero = model.structure.register_forward_hook(lambda *found: torch.zeros_like(found[2]))
    units = model.head_leaves and model.head_leaves.register_forward_hook(lambda *found: torch.zeros_like(found[2]))
    with torch.no_grad():
        without = float(model(batch).logits[0, classifier.taxonomy.row("bat")])
    zero.remove()
    if units:
        units.remove()
    assert label.branches["structure"] == pytest.approx(label.logit - without, abs=1e-4)
    assert ("names" in label.branches) == (kind == "hill-units-names")
    assert label.branches["bias"] == pytest.approx(model.head.bias[classifier.taxonomy.row("bat")].item())
    assert (label.branches["structure"] != 0) == (kind != "hill-text")
    assert (label.branches["text"] != 0) == (kind != "hill-tree")


def test_other_models_have_no_branches(build: Callable[[str], HillClassifier]) -> None:
    for kind in KINDS:
        if not kind.startswith("hill"):
            assert explain(build(kind), TEXT, ["bat"], "gradient").labels[0].branches is None


def test_the_model_is_restored(tiny_encoder: Path) -> None:
    classifier = classifier_with(make_model("hill", {}, tiny_encoder).stored)
    model = classifier.stored.model
    explain(classifier, TEXT, ["bat"])
    model.train()
    model.text.eval()
    frozen = next(model.text.parameters()).requires_grad_(False)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [part.training for part in model.modules()]
    path = EmbeddingPath(model, classifier.stored.tokenizer, tokenize_words(TEXT, classifier.stored.tokenizer, 64))
    first = integrated_gradients(path, np.array([1, 3]), 0)
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        second = integrated_gradients(path, np.array([1, 3]), 0)
    assert np.array_equal(first.values, second.values) and first.values.any()
    assert [part.training for part in model.modules()] == modes and True in modes and False in modes
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    assert [weight for weight in model.parameters() if not weight.requires_grad] == [frozen]
    assert not encoder_embeddings(model)._forward_hooks
    with pytest.raises(ZeroDivisionError), eval_mode(model):
        _ = 1 / 0
    assert [part.training for part in model.modules()] == modes


def test_small_batches_give_the_same_gradients(
    build: Callable[[str], HillClassifier], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = explain(build("hill"), TEXT, ["bat", "p"], steps=9)
    for tokens in (1, 25):
        monkeypatch.setattr(explain_module, "BATCH_TOKENS", tokens)
        parts = explain(build("hill"), TEXT, ["bat", "p"], steps=9)
        for one, other in zip(whole.labels, parts.labels, strict=True):
            assert np.allclose(one.values, other.values, atol=1e-5) and one.logit == pytest.approx(
                other.logit, abs=1e-5
            )


def test_other_threads_can_predict(build: Callable[[str], HillClassifier], monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = build("flat")
    wanted, found = classifier.predict_proba(["fur milk"]), []
    words = encoder_embeddings(classifier.stored.model)
    forward = words.forward

    def interrupted(ids: torch.Tensor) -> torch.Tensor:
        if threading.current_thread() is threading.main_thread() and len(ids) == 3 and not found:
            other = threading.Thread(target=lambda: found.append(classifier.predict_proba(["fur milk"])))
            other.start()
            other.join()
        out: torch.Tensor = forward(ids)
        return out

    monkeypatch.setattr(words, "forward", interrupted)
    explain(classifier, TEXT, ["bat"], steps=2)
    assert len(found) == 1 and np.array_equal(found[0], wanted)


def test_the_linear_model_matches_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "MIN_WEIGHT", 0.0)
    texts, labels = toy_documents(120, seed=0)
    classifier = HillClassifier(animals_taxonomy(), "linear", {"model": {"characters": 0}}, preset=None).fit(
        texts, labels
    )
    text = "Milk fur, cave unheard cave echo. Milk fur"
    found = explain(classifier, text, ["bat", "p"])
    train, _ = classifier._split({"train": label_documents(texts, labels, classifier.taxonomy)})
    theirs = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+", min_df=2).fit(train.texts)
    names, value = theirs.get_feature_names_out(), theirs.transform([text]).toarray()[0]
    assert (
        found.method == "exact"
        and [word.text for word in found.words] == text.replace(",", "").replace(".", "").split()
    )
    for label in found.labels:
        machine = LinearSVC(random_state=42)
        machine.fit(theirs.transform(train.texts), train.labels.toarray()[:, classifier.taxonomy.row(label.id)])
        wanted = {name: w * v for name, w, v in zip(names, machine.coef_[0], value, strict=True) if v}
        assert label.ngrams is not None and dict(label.ngrams) == pytest.approx(wanted, abs=1e-3)
        assert {"milk fur", "cave", "milk"} <= set(wanted) and "cave cave" not in wanted
        share = {"milk": wanted["milk"] / 2 + wanted["milk fur"] / 4}
        assert label.values[0] == pytest.approx(share["milk"], abs=1e-3) and label.values[3] == 0
        assert label.baseline == pytest.approx(machine.intercept_[0], abs=1e-3)
        assert label.logit == pytest.approx(machine.decision_function(theirs.transform([text]))[0], abs=1e-3)
        assert abs(label.gap) < 1e-9 and label.branches is None
    assert json.dumps(found.to_dict()) and "milk fur" in found.text()


def test_a_text_of_unknown_words_has_no_ngrams() -> None:
    texts, labels = toy_documents(40, seed=0)
    settings = {"model": {"ngrams": 1, "characters": 0}}
    found = explain(
        HillClassifier(animals_taxonomy(), "linear", settings, preset=None).fit(texts, labels), "unheard of"
    )
    assert found.labels[0].ngrams == () and found.labels[0].values == (0, 0)


def test_deleting_the_strongest_words_lowers_the_logit_most(fitted: HillClassifier) -> None:
    draw = np.random.default_rng(0)
    falls: dict[str, list[float]] = {"for": [], "random": [], "gradient": []}
    for text in noisy(12, seed=5)[0]:
        found = explain(fitted, text)
        label = found.labels[0]
        fast = explain(fitted, text, [label.id], "gradient").labels[0]
        orders = {
            "for": np.argsort(-np.array(label.values)),
            "gradient": np.argsort(-np.array(fast.values)),
            "random": draw.permutation(len(found.words)),
        }
        for name, order in orders.items():
            left = " ".join(found.words[place].text for place in sorted(order[len(order) // 2 :]))
            falls[name].append(label.logit - explain(fitted, left, [label.id], "gradient").labels[0].logit)
    assert np.mean(falls["for"]) > 2 * max(np.mean(falls["random"]), 0.2), falls
    assert np.mean(falls["gradient"]) > 2 * np.mean(falls["random"])


def test_predicted_labels_are_explained_most_specific_first(fitted: HillClassifier) -> None:
    found = explain(fitted, "cave echo night wing fur")
    (prediction,) = fitted.predictions(["cave echo night wing fur"])
    assert found.labels[0].id == "bat" and found.labels[-1].id == "a"
    assert {label.id: label.score for label in found.labels} == pytest.approx(
        dict(zip(prediction.labels, prediction.scores, strict=True)), abs=1e-6
    )
    assert all(label.predicted for label in found.labels) and found.labels[0].path == "Animals > Mammals > Bats"
    asked = explain(fitted, "cave echo night wing fur", ["Plants", "Animals > Flyers", "p"]).labels
    assert [(label.id, label.predicted) for label in asked] == [("p", False), ("f", True)]


def test_without_predicted_labels_the_best_label_is_explained(fitted: HillClassifier, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    strict = HillClassifier.load(tmp_path / "model")
    strict.set_thresholds({"strategy": "ancestors", "threshold": 1.0})
    (label,) = explain(strict, "leaf root").labels
    assert not label.predicted and label.score == pytest.approx(strict.predict_proba(["leaf root"]).max())
    assert "not predicted" in explain(strict, "leaf root").text()


def test_error_messages(fitted: HillClassifier) -> None:
    with pytest.raises(ConfigError, match="unknown method 'integrate'; did you mean 'integrated'"):
        explain(fitted, TEXT, method="integrate")
    with pytest.raises(ConfigError, match="steps is -1; expected a whole number from 0 to 10,000"):
        explain(fitted, TEXT, steps=-1)
    with pytest.raises(DataError, match="the text is empty; expected at least one word"):
        explain(fitted, "  ")
    with pytest.raises(DataError, match="labels is 'bat'; expected a list"):
        explain(fitted, TEXT, "bat")
    with pytest.raises(TaxonomyError, match="label 'batz' is not in the taxonomy; did you mean 'bat'"):
        explain(fitted, TEXT, ["batz"])
    with pytest.raises(ConfigError, match="an exported model has no gradients, which an explanation needs"):
        explain(Exported(), TEXT)


class Exported(Predictor):
    """A predictor without weights."""

    def scores(self, texts: Any) -> Any:
        raise AssertionError


def test_tokens_are_the_same_as_in_prediction(fitted: HillClassifier) -> None:
    tokenizer = fitted.stored.tokenizer
    for text, length in ((TEXT, 64), ("fur " * 90, 64), ("x" * 3000, 8)):
        assert tokenize_words(text, tokenizer, length).ids.tolist() == tokenize([text], tokenizer, length)[0].tolist()
        assert len(tokenize_words(text, tokenizer, length).ids) <= length and tokenizer.truncation is None
    found = explain(fitted, "fur " * 90)
    assert len(found.words) == 62 and found.read == 62 * 4 - 1


def test_a_text_without_tokens_has_no_words(build: Callable[[str], HillClassifier]) -> None:
    for kind in ("hill-rcnn", "textrcnn"):
        classifier = build(kind)
        found = explain(classifier, "?!", ["bat"])
        label = found.labels[0]
        assert found.words == () and label.values == () and label.gap == 0 and found.read == 0
        assert isinstance(found, Explanation) and "nothing" in found.text()
        _, scores = next(classifier.scores(["?!"]))
        assert 1 / (1 + np.exp(-label.logit)) == pytest.approx(float(scores[0, 3]), abs=1e-5)
