"""What an explanation says, as values, as JSON and as text for a terminal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from hill.explain.page import make_page

TOP = 10


class Word(NamedTuple):
    """A word of the text and where it lies, in characters."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class LabelExplanation:
    """What the words of a text add to the logit of one label."""

    id: str
    name: str
    path: str
    score: float
    """As in prediction; it may come from a label below, while the logit is the label's own."""
    predicted: bool
    logit: float
    baseline: float
    """The logit of the baseline; with the values of all words and the gap it adds up to the logit."""
    values: tuple[float, ...]
    """One for each word: above 0 it speaks for the label, below 0 against it."""
    steps: int
    branches: dict[str, float] | None = None
    """What text, structure and bias add to the logit, where the head keeps them apart."""
    ngrams: tuple[tuple[str, float], ...] | None = None
    """What each n-gram adds, where the model reads n-grams."""

    @property
    def gap(self) -> float:
        """The summing check: what logit and baseline differ by and the words do not account for."""
        return self.logit - self.baseline - sum(self.values)

    @property
    def check(self) -> str:
        """The summing check in words."""
        added = sum(self.values)
        return f"logit {self.logit:+.2f} = baseline {self.baseline:+.2f}, words {added:+.2f}, gap {self.gap:+.2f}"

    def strongest(self, words: Sequence[Word], top: int = TOP) -> tuple[list[Term], list[Term]]:
        """What speaks most for the label and most against it, occurrences of a word (or an n-gram) added up."""
        if self.ngrams is not None:
            terms = [Term(text, value, 1) for text, value in self.ngrams]
        else:
            terms = _add_up(words, self.values)
        order = sorted(terms, key=lambda term: term.value)
        return (
            [term for term in order[::-1][:top] if term.value > 0],
            [term for term in order[:top] if term.value < 0],
        )


class Term(NamedTuple):
    """A word or n-gram, what it adds, and how often it occurs."""

    text: str
    value: float
    times: int

    def __str__(self) -> str:
        return f"{self.text}{f' ×{self.times}' if self.times > 1 else ''} {self.value:+.2f}"


def _add_up(words: Sequence[Word], values: Sequence[float]) -> list[Term]:
    sums: defaultdict[str, float] = defaultdict(float)
    for word, value in zip(words, values, strict=True):
        sums[word.text.casefold()] += value
    times = Counter(word.text.casefold() for word in words)
    return [Term(text, value, times[text]) for text, value in sums.items()]


@dataclass(frozen=True)
class Explanation:
    """The words of a text and what they add to labels, most specific labels first or as they were asked for."""

    given: str
    """The text."""
    model: str
    method: str
    baseline: str
    """What words are compared with: a token that takes the place of each, zero, or the empty text."""
    words: tuple[Word, ...]
    labels: tuple[LabelExplanation, ...]

    @property
    def read(self) -> int:
        """How many characters of the text were read; what follows was cut off."""
        return max((word.end for word in self.words), default=0)

    def document(self) -> dict[str, Any]:
        """Everything as plain values."""
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
        """For a terminal: each label with the words that speak most for and against it."""
        return "\n".join(line for label in self.labels for line in self._lines(label, top))

    def _lines(self, label: LabelExplanation, top: int) -> list[str]:
        speaking = zip(("for", "against"), label.strongest(self.words, top), strict=True)
        lines = [
            f"{label.score:.3f}  {label.path} ({label.id}){'' if label.predicted else ', not predicted'}",
            f"  {label.check}",
            *(f"  {side:8} {',  '.join(map(str, terms)) or 'nothing'}" for side, terms in speaking),
        ]
        if label.branches:
            lines.insert(2, f"  branches {'  '.join(f'{name} {v:+.2f}' for name, v in label.branches.items())}")
        return lines

    def html(self) -> str:
        """A page that needs no network: the text with its words in colour, for each label."""
        return make_page(self)
