"""Explain a text: choose the labels, ask the model, and tell words from tokens."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hill.errors import ConfigError, DataError
from hill.explain.branches import Branches, split
from hill.explain.gradients import Attribution, integrate, multiply
from hill.explain.ngrams import name_ngrams, weigh
from hill.explain.result import Explanation, LabelExplanation, Word
from hill.explain.way import find_way, neutral
from hill.explain.words import Reading, read_text
from hill.hub.kept import Kept
from hill.models import Linear
from hill.predictor import Predictor, check_texts
from hill.settings import at_least, one_of
from hill.taxonomy import Taxonomy
from hill.taxonomy.cells import as_dense
from hill.types import BoolArray, FloatArray, IntArray

METHODS = ("integrated", "gradient")
About = tuple[str, str, str, float, bool]
"""Of a label its id, name and path, its score, and whether it is predicted."""


def explain(
    classifier: Predictor, text: str, labels: Iterable[str] | None = None, method: str = "integrated", steps: int = 0
) -> Explanation:
    """What each word of a text adds to the logits of labels.

    Args:
        classifier: a trained `HillClassifier`.
        text: the text.
        labels: ids, names or paths; without any, the predicted labels, or the best one where none is predicted.
        method: integrated, integrated gradients; gradient, the faster and coarser gradient × input. The linear model
            needs neither: it is explained exactly.
        steps: of integrated gradients; 0 for as many as the summing check needs.
    """
    one_of(method, METHODS, "method")
    at_least(steps, 0, "steps")
    if not isinstance(classifier, Kept):
        raise ConfigError(
            "an exported model has no gradients, which an explanation needs; explain with the model it was made from"
        )
    check_texts([text])
    scores, chosen = _predict(classifier, text)
    rows = _rows(classifier.taxonomy, labels, scores, chosen)
    reading = read_text(text, classifier.stored.tokenizer, classifier.max_length)
    evidence = _ask(classifier, reading, rows, method, steps)
    words = tuple(Word(text[a:b], a, b) for a, b in zip(reading.starts.tolist(), reading.ends.tolist(), strict=True))
    values = reading.merge(evidence.tokens.values)
    found = tuple(
        evidence.label(place, values[place], _about(classifier.taxonomy, row, scores, chosen))
        for place, row in enumerate(rows.tolist())
    )
    return Explanation(text, classifier.stored.name, evidence.method, evidence.baseline, words, found)


@dataclass(frozen=True)
class Evidence:
    """What a model says of tokens, and where it can of branches and n-grams, for each label."""

    method: str
    baseline: str
    tokens: Attribution
    branches: Branches | None = None
    ngrams: tuple[list[str], FloatArray] | None = None

    def label(self, place: int, values: FloatArray, about: About) -> LabelExplanation:
        """What is told of one label, whose words add these values (W)."""
        tokens, ngrams = self.tokens, self.ngrams
        return LabelExplanation(
            *about,
            logit=float(tokens.logits[place]),
            baseline=float(tokens.baselines[place]),
            values=tuple(values.tolist()),
            steps=int(tokens.steps[place]),
            branches=None if self.branches is None else {name: float(of[place]) for name, of in self.branches.items()},
            ngrams=ngrams and tuple(zip(ngrams[0], ngrams[1][place].tolist(), strict=True)),
        )


def _predict(classifier: Kept, text: str) -> tuple[FloatArray, BoolArray]:
    """The scores of a text as in prediction, and the labels that are predicted (L)."""
    (found,) = classifier.scores([text])
    chosen, scores = map(as_dense, classifier.decoder().decide(found[1]))
    return scores[0].astype(np.float64), chosen[0]


def _rows(taxonomy: Taxonomy, labels: Iterable[str] | None, scores: FloatArray, chosen: BoolArray) -> IntArray:
    """The labels that were asked for; without any, the predicted ones, most specific first, or the best one."""
    if isinstance(labels, str):
        raise DataError(f"labels is one string, '{labels}'; expected a list of labels")
    if asked := list(labels or []):
        rows = list(dict.fromkeys(int(taxonomy.encode([label])[0]) for label in asked))
        return np.array(rows, dtype=np.int64)
    if not chosen.any():
        return np.array([scores.argmax()])
    level = np.empty(len(taxonomy), dtype=np.int64)
    for number, rows_of_level in enumerate(taxonomy.levels):
        level[rows_of_level] = number
    return np.array([row for row in np.lexsort([-scores, -level]) if chosen[row]])


def _ask(classifier: Kept, reading: Reading, rows: IntArray, method: str, steps: int) -> Evidence:
    stored = classifier.stored
    model, tokenizer = stored.model, stored.tokenizer
    if isinstance(model, Linear):
        tokens, keys, values = weigh(model, reading.batch(model.text.pad, model.bias.device), rows)
        return Evidence("exact", "empty text", tokens, ngrams=(name_ngrams(keys, tokenizer), values))
    way = find_way(model, tokenizer, reading)
    tokens = integrate(way, rows, steps) if method == "integrated" else multiply(way, rows)
    return Evidence(method, neutral(tokenizer) or "zero", tokens, split(model, way.batch, rows))


def _about(taxonomy: Taxonomy, row: int, scores: FloatArray, chosen: BoolArray) -> About:
    label = taxonomy[row]
    return label.id, label.name, taxonomy.path_name(row), float(scores[row]), bool(chosen[row])
