"""Long documents: cut them into overlapping windows, score the windows, and average the scores per document."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, vstack
from scipy.special import expit, logit
from tokenizers import Tokenizer

from hill.data.tokens import Tokens, tokenize
from hill.sparse import merge_entries, row_indices, with_values
from hill.types import IntArray

EPSILON = 1e-6
"""Scores are clipped to [EPSILON, 1 - EPSILON], so that logits are finite."""


def score_windows(
    texts: Sequence[str],
    tokenizer: Tokenizer,
    max_length: int,
    windows: int,
    score: Callable[[Tokens], Iterable[tuple[IntArray, Any]]],
) -> Iterator[tuple[IntArray, Any]]:
    """Score up to `windows` windows per text, and yield the indices of some texts with their scores (n, L).

    `score` scores windows of up to `max_length` tokens, in batches in any order.
    """
    special = count_special(tokenizer)
    stride = max_length - sum(special) - overlap(max_length)
    tokens = tokenize(texts, tokenizer, max_length + (windows - 1) * stride)
    parts, document = cut(tokens, max_length, special)
    yield from pool(score(parts), document)


def count_special(tokenizer: Tokenizer) -> tuple[int, int]:
    """The number of special tokens that a tokenizer adds before and after a text."""
    is_special = np.array(tokenizer.encode("a").special_tokens_mask, dtype=bool)
    text = np.flatnonzero(~is_special)
    return (int(text[0]), len(is_special) - 1 - int(text[-1])) if len(text) else (0, 0)


def overlap(max_length: int) -> int:
    """The minimum number of tokens that consecutive windows share: 32, or a quarter of short windows."""
    return 32 if max_length > 40 else max_length // 4


def cut(tokens: Tokens, max_length: int, special: tuple[int, int]) -> tuple[Tokens, IntArray]:
    """Cut documents into windows of at most `max_length` tokens, each with the special tokens of its document.

    The last window ends at the end of the document and is as long as the others. A shorter last window would give a few
    words the weight of a whole window.

    Returns:
        The tokens of all windows, and the document of each window in ascending order.
    """
    before, after = special
    length = max_length - before - after
    stride = max(length - overlap(max_length), 1)
    text_lengths = tokens.lengths - before - after
    counts = np.maximum(-(-(text_lengths - length) // stride), 0) + 1
    document = np.repeat(np.arange(len(tokens)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    lengths = np.minimum(text_lengths, length)[document]  # of the windows, without special tokens
    first = np.minimum(number * stride, text_lengths[document] - lengths)
    sizes = lengths + before + after
    starts = np.concatenate([[0], np.cumsum(sizes)])
    position = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)  # of each token in its window
    begin, end = tokens.starts[document], tokens.starts[document + 1]
    source = np.repeat(begin + first, sizes) + position
    source = np.where(position < before, np.repeat(begin, sizes) + position, source)
    from_end = np.repeat(sizes, sizes) - position  # 1 for the last token
    source = np.where(from_end <= after, np.repeat(end, sizes) - from_end, source)
    return Tokens(tokens.ids[source], starts, tokens.truncated), document


def pool(scored: Iterable[tuple[IntArray, Any]], document: IntArray) -> Iterator[tuple[IntArray, Any]]:
    """Average the logits of the windows of each document; yield the scores of a document when it is complete.

    Windows come in any order. Only documents with missing windows stay in memory. A document of one window keeps its
    exact scores.
    """
    counts = np.bincount(document)
    missing = counts.copy()
    pending, sums = np.empty(0, dtype=np.int64), None
    for windows, scores in scored:
        owners = document[windows]
        single = counts[owners] == 1
        if single.any():
            yield owners[single], scores[single]
        owners, logits = owners[~single], _logits(scores[~single])
        merged = np.union1d(pending, owners)
        sums = _add(sums, logits, np.searchsorted(merged, np.concatenate([pending, owners])), len(merged))
        np.subtract.at(missing, owners, 1)
        done = missing[merged] == 0
        if done.any():
            yield merged[done], _mean(sums[done], counts[merged[done]])
        pending, sums = merged[~done], sums[~done]


def _add(sums: Any, logits: Any, index: IntArray, size: int) -> Any:
    """Add the rows of `sums` and `logits` that have the same index in the result (size, L)."""
    if isinstance(logits, csr_array):
        rows = logits if sums is None else csr_array(vstack([sums, logits]))
        return merge_entries(index[row_indices(rows)], rows.indices, rows.data, (size, rows.shape[1]), np.add)
    result = np.zeros((size, logits.shape[1]), dtype=np.float32)
    n_sums = 0 if sums is None else len(sums)
    if n_sums:
        result[index[:n_sums]] = sums
    np.add.at(result, index[n_sums:], logits)
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
