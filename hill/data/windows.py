"""Long documents: windows that overlap, each as long as the model reads, and their scores pooled to documents."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, vstack
from tokenizers import Tokenizer

from hill.data.tokens import Tokens, tokenize
from hill.errors import ConfigError
from hill.settings import at_least, one_of
from hill.taxonomy.cells import documents_of, merge_cells, with_values
from hill.types import IntArray

POOLS = ("mean", "max")
EDGE = 1e-6
"""Scores count as at least this far from 0 and 1, so that one window's certainty has a finite logit."""

Scores = npt.NDArray[np.float32]
Chunk = tuple[IntArray, Any]
"""Numbers of some windows or documents (n) and their scores (n, L): an array, or a `csr_array` of those kept."""


@dataclass(frozen=True)
class WindowConfig:
    """How documents are read that are longer than a model's longest text."""

    most: int = 0
    """Windows of a long text that are read at most; 0 to read one, and cut the rest off."""
    overlap: int = 32
    """Tokens that a window has in common with the one before it, at least."""
    pool: str = "mean"
    """The score of a text whose windows differ: mean, of their logits, or max."""

    def __post_init__(self) -> None:
        at_least(self.most, 0, "data.windows")
        at_least(self.overlap, 0, "data.overlap")
        one_of(self.pool, POOLS, "data.pool")


@dataclass(frozen=True)
class Windows:
    """The tokens of all windows, and of each window the document it is of, in ascending order."""

    tokens: Tokens
    document: IntArray


@dataclass(frozen=True)
class Frame:
    """How many special tokens a tokenizer puts before and after a text."""

    before: int
    after: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Frame":
        """The frame that this tokenizer gives every text."""
        special = np.array(tokenizer.encode("a").special_tokens_mask, dtype=bool)
        own = np.flatnonzero(~special)
        return cls(int(own[0]), len(special) - 1 - int(own[-1])) if len(own) else cls(0, 0)

    @property
    def size(self) -> int:
        """Special tokens of a window."""
        return self.before + self.after


def longest_read(max_length: int, frame: Frame, config: WindowConfig) -> int:
    """Tokens of a document that its windows can hold, the frame counted once."""
    step = _step(max_length, frame, config)
    return max_length + (max(config.most, 1) - 1) * step


def cut(tokens: Tokens, max_length: int, frame: Frame, config: WindowConfig) -> Windows:
    """Windows of at most `max_length` tokens, each framed as its document is, that cover what `longest_read` allows.

    The last window of a document ends where the document does and is as long as the others: else a few words at the
    end would count as much as all of a window.
    """
    step, body = _step(max_length, frame, config), max_length - frame.size
    own = np.minimum(tokens.lengths, longest_read(max_length, frame, config)) - frame.size
    counts = np.maximum(-(-(own - body) // step), 0) + 1
    document = np.repeat(np.arange(len(tokens)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    lengths = np.minimum(own, body)[document]  # without the frame
    first = np.minimum(number * step, own[document] - lengths)
    return Windows(_gather(tokens, document, first, lengths, frame), document)


def _step(max_length: int, frame: Frame, config: WindowConfig) -> int:
    step = max_length - frame.size - config.overlap
    if step < 1:
        raise ConfigError(
            f"data.overlap is {config.overlap}, but a window has {max_length - frame.size} tokens of its text; "
            "set a smaller overlap, or a larger data.max_length"
        )
    return step


def _gather(tokens: Tokens, document: IntArray, first: IntArray, lengths: IntArray, frame: Frame) -> Tokens:
    """For each window the frame of its document around `lengths` tokens from `first` on."""
    sizes = lengths + frame.size
    starts = np.concatenate([[0], np.cumsum(sizes)])
    place = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)  # of a token in its window
    begin, end = tokens.starts[document], tokens.starts[document + 1]
    source = np.repeat(begin + first, sizes) + place
    source = np.where(place < frame.before, np.repeat(begin, sizes) + place, source)
    behind = np.repeat(sizes, sizes) - place  # 1 for the last token
    source = np.where(behind <= frame.after, np.repeat(end, sizes) - behind, source)
    return Tokens(tokens.ids[source], starts, tokens.truncated)


def pool(scored: Iterable[Chunk], document: IntArray, how: str) -> Iterator[Chunk]:
    """Scores of windows, which come in any order, as scores of documents, each as soon as it is complete.

    Only documents some windows of which are still missing are held in memory.
    """
    counts = np.bincount(document)
    missing = counts.copy()
    held, sums = np.empty(0, dtype=np.int64), None
    for windows, scores in scored:
        of = document[windows]
        alone = counts[of] == 1
        if alone.any():
            yield of[alone], scores[alone]
        known = np.union1d(held, of[~alone])
        places = np.searchsorted(known, np.concatenate([held, of[~alone]]))
        added = _add(sums, scores[~alone] if how == "max" else _logits(scores[~alone]), places, len(known), _ADD[how])
        np.subtract.at(missing, of[~alone], 1)
        done = missing[known] == 0
        if done.any():
            yield known[done], added[done] if how == "max" else _mean(added[done], counts[known[done]])
        held, sums = known[~done], added[~done]


_ADD = {"mean": np.add, "max": np.maximum}


def _add(sums: Any, scores: Any, places: IntArray, size: int, join: np.ufunc) -> Any:
    """Rows of sums and then of scores, joined where they have the same place in the result: (size, L)."""
    if isinstance(scores, csr_array):
        rows = scores if sums is None else csr_array(vstack([sums, scores]))
        return merge_cells(places[documents_of(rows)], rows.indices, rows.data, (size, rows.shape[1]), join)
    added = np.full((size, scores.shape[1]), -np.inf if join is np.maximum else 0, dtype=np.float32)
    before = 0 if sums is None else len(sums)
    if before:
        added[places[:before]] = sums
    join.at(added, places[before:], scores)
    return added


def _logits(scores: Any) -> Any:
    """What is summed for the mean: the logits; of a sparse table, how far they are above that of a missing score."""
    if isinstance(scores, csr_array):
        return with_values(scores, _logit(scores.data) - _logit(np.zeros(1)))
    return _logit(scores)


def _mean(sums: Any, counts: IntArray) -> Any:
    """The scores whose logits are these sums, divided by how many windows each document (n) has."""
    if isinstance(sums, csr_array):
        return with_values(sums, _sigmoid(sums.data / counts[documents_of(sums)] + _logit(np.zeros(1))))
    return _sigmoid(sums / counts[:, None])


def _logit(scores: npt.NDArray[np.floating]) -> Scores:
    inside = np.clip(scores.astype(np.float64), EDGE, 1 - EDGE)
    logits: Scores = (np.log(inside) - np.log1p(-inside)).astype(np.float32)
    return logits


def _sigmoid(logits: npt.NDArray[np.floating]) -> Scores:
    scores: Scores = (1 / (1 + np.exp(-logits))).astype(np.float32)
    return scores


def score_windows(
    texts: Sequence[str],
    tokenizer: Tokenizer,
    max_length: int,
    config: WindowConfig,
    score: Callable[[Tokens], Iterable[Chunk]],
) -> Iterator[Chunk]:
    """Scores of texts of any length, from what scores the tokens of texts up to `max_length`."""
    if config.most < 2:
        yield from score(tokenize(texts, tokenizer, max_length))
        return
    frame = Frame.of(tokenizer)
    tokens = tokenize(texts, tokenizer, longest_read(max_length, frame, config))
    windows = cut(tokens, max_length, frame, config)
    yield from pool(score(windows.tokens), windows.document, config.pool)
