"""The result of an explanation, and its forms: JSON, text for a terminal, and an HTML page."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from hill.html import render

TOP = 10
METHOD_NAMES = {
    "integrated": "integrated gradients",
    "gradient": "gradient × input",
    "exact": "exact: weight × TF-IDF of each n-gram",
}
BASELINE_NAMES = {"zero": "token embeddings of zero", "empty text": "an empty text"}


class Word(NamedTuple):
    """A word of the text, and its start and end in characters."""

    text: str
    start: int
    end: int


class Term(NamedTuple):
    """A word or n-gram, what it adds to a logit, and how often it occurs."""

    text: str
    value: float
    times: int

    def __str__(self) -> str:
        return f"{self.text}{f' ×{self.times}' if self.times > 1 else ''} {self.value:+.2f}"


@dataclass(frozen=True)
class LabelExplanation:
    """What the words of a text add to the logit of one label."""

    id: str
    name: str
    path: str
    score: float
    """The predicted score. It may come from a descendant, while the logit is the label's own."""
    predicted: bool
    logit: float
    baseline: float
    """The logit of the baseline. Baseline, values and gap add up to the logit."""
    values: tuple[float, ...]
    """One value per word: positive values raise the logit, negative values lower it."""
    steps: int
    branches: dict[str, float] | None = None
    """What text, structure and bias add to the logit, if the model can split it."""
    ngrams: tuple[tuple[str, float], ...] | None = None
    """What each n-gram adds, if the model uses n-grams."""

    @property
    def gap(self) -> float:
        """The part of logit - baseline that the words do not account for (completeness check)."""
        return self.logit - self.baseline - sum(self.values)

    @property
    def check(self) -> str:
        """The completeness check as text."""
        added = sum(self.values)
        return f"logit {self.logit:+.2f} = baseline {self.baseline:+.2f}, words {added:+.2f}, gap {self.gap:+.2f}"

    def strongest(self, words: Sequence[Word], top: int = TOP) -> tuple[list[Term], list[Term]]:
        """Return the words or n-grams that raise the logit most and those that lower it most.

        The values of repeated words are added up.
        """
        if self.ngrams is not None:
            terms = [Term(text, value, 1) for text, value in self.ngrams]
        else:
            sums: defaultdict[str, float] = defaultdict(float)
            for word, value in zip(words, self.values, strict=True):
                sums[word.text.casefold()] += value
            times = Counter(word.text.casefold() for word in words)
            terms = [Term(text, value, times[text]) for text, value in sums.items()]
        terms.sort(key=lambda term: term.value)
        return [term for term in terms[::-1][:top] if term.value > 0], [term for term in terms[:top] if term.value < 0]


@dataclass(frozen=True)
class Explanation:
    """The words of a text, and what they add to each label: most specific labels first, or in the requested order."""

    given: str
    """The text."""
    model: str
    method: str
    baseline: str
    """What words are compared with: a token in place of each token, `zero`, or `empty text`."""
    words: tuple[Word, ...]
    labels: tuple[LabelExplanation, ...]

    @property
    def read(self) -> int:
        """The number of characters that the model reads; the rest of the text is truncated."""
        return max((word.end for word in self.words), default=0)

    def word_values(self, label: LabelExplanation) -> list[tuple[int, int, float]]:
        """Return start, end and value of each word for a label."""
        return [(word.start, word.end, value) for word, value in zip(self.words, label.values, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "text": self.given,
            "model": self.model,
            "method": self.method,
            "baseline": self.baseline,
            "read": self.read,
            "words": [word._asdict() for word in self.words],
            "labels": [{**asdict(label), "gap": label.gap} for label in self.labels],
        }

    def text(self, top: int = TOP) -> str:
        """Return text for a terminal: each label with the words that raise or lower its logit most."""
        lines = []
        for label in self.labels:
            lines.append(f"{label.score:.3f}  {label.path} ({label.id}){'' if label.predicted else ', not predicted'}")
            lines.append(f"  {label.check}")
            if label.branches:
                lines.append(f"  branches {'  '.join(f'{name} {v:+.2f}' for name, v in label.branches.items())}")
            for side, terms in zip(("for", "against"), label.strongest(self.words, top), strict=True):
                lines.append(f"  {side:8} {',  '.join(map(str, terms)) or 'nothing'}")
        return "\n".join(lines)

    def html(self) -> str:
        """Return a page without network access: the text with its words in colour, for each label."""
        replaced = f"the text with {self.baseline} in place of every token"
        baseline = BASELINE_NAMES.get(self.baseline, replaced)
        return render("explanation.html", explanation=self, method=METHOD_NAMES[self.method], baseline=baseline)
