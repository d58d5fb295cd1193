"""Long documents: cut them into overlapping windows, score the windows, and pool the scores per document."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, vstack
from scipy.special import expit, logit
from tokenizers import Tokenizer

from hill.data.tokens import Tokens, tokenize
from hill.errors import ConfigError
from hill.settings import check_at_least, check_one_of
from hill.sparse import merge_entries, row_indices, with_values
from hill.types import IntArray

POOLS = ("mean", "max")
EPSILON = 1e-6
"""Scores are clipped to [EPSILON, 1 - EPSILON], so that logits are finite."""

Chunk = tuple[IntArray, Any]
"""Indices of windows or documents (n) and their scores (n, L): an array, or a `csr_array` of the top scores."""


@dataclass(frozen=True)
class WindowConfig:
    """How to read documents that are longer than the maximum length of a model."""

    most: int = 0
    """The maximum number of windows per document; 0 or 1 truncates documents."""
    overlap: int = 32
    """The minimum number of tokens that consecutive windows share."""
    pool: str = "mean"
    """How to combine the scores of windows: mean (of their logits) or max."""

    def __post_init__(self) -> None:
        check_at_least(self.most, 0, "data.windows")
        check_at_least(self.overlap, 0, "data.overlap")
        check_one_of(self.pool, POOLS, "data.pool")


def score_windows(
    texts: Sequence[str],
    tokenizer: Tokenizer,
    max_length: int,
    config: WindowConfig,
    score: Callable[[Tokens], Iterable[Chunk]],
) -> Iterator[Chunk]:
    """Score texts of any length with a function that scores up to `max_length` tokens."""
    if config.most < 2:
        yield from score(tokenize(texts, tokenizer, max_length))
        return
    frame = Frame.of(tokenizer)
    tokens = tokenize(texts, tokenizer, max_document_length(max_length, frame, config))
    windows = cut(tokens, max_length, frame, config)
    yield from pool(score(windows.tokens), windows.document, config.pool)


# Windows


@dataclass(frozen=True)
class Frame:
    """The number of special tokens that a tokenizer adds before and after a text."""

    before: int
    after: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Frame":
        """The special tokens that this tokenizer adds."""
        special = np.array(tokenizer.encode("a").special_tokens_mask, dtype=bool)
        text = np.flatnonzero(~special)
        return cls(int(text[0]), len(special) - 1 - int(text[-1])) if len(text) else cls(0, 0)

    @property
    def size(self) -> int:
        """Special tokens per window."""
        return self.before + self.after


@dataclass(frozen=True)
class Windows:
    """The tokens of all windows, and the document of each window in ascending order."""

    tokens: Tokens
    document: IntArray


def max_document_length(max_length: int, frame: Frame, config: WindowConfig) -> int:
    """The number of tokens per document that the windows can cover, special tokens included."""
    return max_length + (max(config.most, 1) - 1) * _stride(max_length, frame, config)


def cut(tokens: Tokens, max_length: int, frame: Frame, config: WindowConfig) -> Windows:
    """Cut documents into windows of at most `max_length` tokens, each with the special tokens of its document.

    The last window ends at the end of the document and is as long as the others. A shorter last window would give a few
    words the weight of a whole window.
    """
    stride, body = _stride(max_length, frame, config), max_length - frame.size
    text_lengths = np.minimum(tokens.lengths, max_document_length(max_length, frame, config)) - frame.size
    counts = np.maximum(-(-(text_lengths - body) // stride), 0) + 1
    document = np.repeat(np.arange(len(tokens)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    lengths = np.minimum(text_lengths, body)[document]  # without special tokens
    first = np.minimum(number * stride, text_lengths[document] - lengths)
    return Windows(_gather(tokens, document, first, lengths, frame), document)


def _stride(max_length: int, frame: Frame, config: WindowConfig) -> int:
    stride = max_length - frame.size - config.overlap
    if stride < 1:
        raise ConfigError(
            f"data.overlap is {config.overlap}, but a window has {max_length - frame.size} tokens of its text; "
            "set a smaller overlap, or a larger data.max_length"
        )
    return stride


def _gather(tokens: Tokens, document: IntArray, first: IntArray, lengths: IntArray, frame: Frame) -> Tokens:
    """The special tokens of each window's document around `lengths` tokens from `first` on."""
    sizes = lengths + frame.size
    starts = np.concatenate([[0], np.cumsum(sizes)])
    position = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)  # of each token in its window
    begin, end = tokens.starts[document], tokens.starts[document + 1]
    source = np.repeat(begin + first, sizes) + position
    source = np.where(position < frame.before, np.repeat(begin, sizes) + position, source)
    from_end = np.repeat(sizes, sizes) - position  # 1 for the last token
    source = np.where(from_end <= frame.after, np.repeat(end, sizes) - from_end, source)
    return Tokens(tokens.ids[source], starts, tokens.truncated)


# Pooling


def pool(scored: Iterable[Chunk], document: IntArray, how: str) -> Iterator[Chunk]:
    """Pool the scores of windows, which come in any order, and yield each document when it is complete.

    Only documents with missing windows stay in memory. A document of one window keeps its exact scores.
    """
    join = np.maximum if how == "max" else np.add
    counts = np.bincount(document)
    missing = counts.copy()
    pending, sums = np.empty(0, dtype=np.int64), None
    for windows, scores in scored:
        owners = document[windows]
        single = counts[owners] == 1
        if single.any():
            yield owners[single], scores[single]
        owners, scores = owners[~single], scores[~single]
        merged = np.union1d(pending, owners)
        index = np.searchsorted(merged, np.concatenate([pending, owners]))
        totals = _merge(sums, scores if how == "max" else _logits(scores), index, len(merged), join)
        np.subtract.at(missing, owners, 1)
        done = missing[merged] == 0
        if done.any():
            yield merged[done], totals[done] if how == "max" else _mean(totals[done], counts[merged[done]])
        pending, sums = merged[~done], totals[~done]


def _merge(sums: Any, scores: Any, index: IntArray, size: int, join: np.ufunc) -> Any:
    """Join the rows of `sums` and `scores` that have the same index in the result (size, L)."""
    if isinstance(scores, csr_array):
        rows = scores if sums is None else csr_array(vstack([sums, scores]))
        return merge_entries(index[row_indices(rows)], rows.indices, rows.data, (size, rows.shape[1]), join)
    result = np.full((size, scores.shape[1]), -np.inf if join is np.maximum else 0, dtype=np.float32)
    n_sums = 0 if sums is None else len(sums)
    if n_sums:
        result[index[:n_sums]] = sums
    join.at(result, index[n_sums:], scores)
    return result


def _logits(scores: Any) -> Any:
    """Logits of scores. For a sparse matrix they are relative to the logit of a missing score, which is then 0."""
    if isinstance(scores, csr_array):
        return with_values(scores, _clipped_logit(scores.data) - _clipped_logit(np.zeros(1)))
    return _clipped_logit(scores)


def _mean(sums: Any, counts: IntArray) -> Any:
    """Scores from sums of logits and the number of windows per document (n)."""
    if isinstance(sums, csr_array):
        mean = sums.data / counts[row_indices(sums)] + _clipped_logit(np.zeros(1))
        return with_values(sums, expit(mean).astype(np.float32))
    return expit(sums / counts[:, None]).astype(np.float32)


def _clipped_logit(scores: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    logits: npt.NDArray[np.float32] = logit(np.clip(scores.astype(np.float64), EPSILON, 1 - EPSILON)).astype(np.float32)
    return logits
