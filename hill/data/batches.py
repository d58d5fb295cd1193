"""Batches: which documents are in each batch, padded batches (`collate`) and packed batches (`DeviceDocuments`)."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array
from torch import Tensor
from torch.nn import functional as F

from hill.data.tokens import Tokens
from hill.types import Batch, IntArray, Packed

PADDED_LENGTHS = np.array([8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512])
"""Batches are padded to one of these lengths, so that few shapes occur."""
PACKED_MULTIPLES = ((8_192, 256), (32_768, 512))
"""A packed batch of up to n tokens is padded to a multiple of m, for each (n, m): few shapes, little waste."""
MAX_PACKED_MULTIPLE = 1_024
"""The multiple for larger packed batches."""
PADDING_DOCUMENT = 256
"""Tokens per padding document of a packed batch; short, so that no padding document is the longest document."""


# Order of documents


def training_order(count: int, size: int, seed: int, epoch: int) -> list[IntArray]:
    """The documents of each batch of an epoch: every document once, shuffled.

    Batches of documents of similar length would need less padding, but a model learns less from them.
    """
    order = np.random.default_rng([seed, epoch]).permutation(count)
    return [order[i : i + size] for i in range(0, count, size)]


def reading_order(lengths: IntArray, size: int, budget: int = 0) -> list[IntArray]:
    """The documents of each batch for prediction, longest first: if memory is too small, the first batch fails.

    Args:
        lengths: Tokens per document.
        size: Documents per batch.
        budget: Tokens per batch instead of `size`; every batch has at least one document.
    """
    order = np.argsort(-lengths, kind="stable")
    if not budget:
        return [order[i : i + size] for i in range(0, len(order), size)]
    batch = np.cumsum(lengths[order]) // budget
    return [part for part in np.split(order, np.flatnonzero(np.diff(batch)) + 1) if len(part)]


# Padded batches


def collate(
    tokens: Tokens, labels: csr_array[Any] | None, documents: IntArray, pad: int, as_lists: bool = False
) -> Batch:
    """Make a padded batch; labels are targets (B, L), or lists (B, M) if `as_lists`."""
    lengths = tokens.starts[documents + 1] - tokens.starts[documents]
    ids, mask = tokens.pad(documents, pad, padded_length(int(lengths.max(initial=1))))
    targets = None if labels is None else batch_labels(labels, documents, as_lists)
    return Batch(torch.from_numpy(ids), torch.from_numpy(mask), targets)


def padded_length(longest: int) -> int:
    """The length to which a batch is padded whose longest document has this many tokens."""
    index = int(np.searchsorted(PADDED_LENGTHS, longest))
    return int(PADDED_LENGTHS[index]) if index < len(PADDED_LENGTHS) else longest


def batch_labels(labels: csr_array[Any], documents: IntArray, as_lists: bool) -> Tensor:
    """The labels of these documents: targets (B, L), or lists (B, M) with the same M for every batch."""
    if as_lists:
        return torch.from_numpy(label_lists(labels[documents], most_labels(labels))).long()
    return torch.from_numpy(labels[documents].toarray())


def most_labels(labels: csr_array[Any]) -> int:
    """The maximum number of labels per document, at least 1."""
    return max(int(np.diff(labels.indptr).max(initial=1)), 1)


def label_lists(labels: csr_array[Any], width: int) -> npt.NDArray[np.int32]:
    """The label rows of each document (documents, width), padded with L."""
    lists = np.full((labels.shape[0], width), labels.shape[1], dtype=np.int32)
    lists[np.arange(width) < np.diff(labels.indptr)[:, None]] = labels.indices
    return lists


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Copy a batch to a device."""
    labels = None if batch.labels is None else move(batch.labels, device)
    return Batch(move(batch.ids, device), move(batch.mask, device), labels)


def move(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device; pinned memory lets a copy to a GPU overlap with computation."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


# Packed batches


class DeviceDocuments:
    """The tokens and labels of a split on a device; batches are gathered there without synchronization.

    Args:
        tokens: Tokens of all documents.
        labels: Labels of all documents, or None.
        pad: The id of the padding token.
        device: Where to store them.
        as_lists: Whether batches have label lists (B, M) instead of targets (B, L).
    """

    def __init__(
        self, tokens: Tokens, labels: csr_array[Any] | None, pad: int, device: torch.device, as_lists: bool = False
    ) -> None:
        self._lengths = tokens.lengths
        self.ids = torch.from_numpy(np.append(tokens.ids.astype(np.int32), pad).astype(np.int32)).to(device)
        self.starts = torch.from_numpy(tokens.starts).to(device)
        self.longest = -(-int(max(self._lengths.max(initial=1), PADDING_DOCUMENT)) // 128) * 128
        self.labels, self._n_labels = None, 0
        if labels is not None:
            self.labels = torch.from_numpy(label_lists(labels, most_labels(labels))).to(device)
            self._n_labels = labels.shape[1]
        self._as_lists = as_lists

    def size(self, documents: IntArray) -> int:
        """The number of tokens of a packed batch of these documents, with padding."""
        return packed_size(int(self._lengths[documents].sum()))

    def packed(self, documents: Tensor, size: int) -> Packed:
        """Pack these documents (a tensor on the device) into `size` tokens.

        The rest of the batch is filled with padding documents, which have no output.
        """
        starts = self.starts[documents]
        lengths = self.starts[documents + 1] - starts
        ends = lengths.cumsum(0)
        index = torch.arange(size, device=documents.device)
        document = torch.searchsorted(ends, index, right=True)  # B for padding
        begins = F.pad(ends, (1, 0))  # (B + 1)
        position = index - begins[document]
        is_token = document < len(documents)
        source = torch.where(is_token, F.pad(starts, (0, 1))[document] + position, len(self.ids) - 1)
        steps = torch.arange(1, MAX_PACKED_MULTIPLE // PADDING_DOCUMENT + 1, device=documents.device)
        bounds = torch.cat([begins, (ends[-1:] + PADDING_DOCUMENT * steps).clamp(max=size)]).int()
        positions = torch.where(is_token, position, 0).int()  # int32 keys sort faster than int64 keys
        labels = None if self.labels is None else self.labels[documents].long()  # (B, M)
        if labels is not None and not self._as_lists:
            targets = torch.zeros(len(labels), self._n_labels + 1, device=labels.device)
            labels = targets.scatter_(1, labels, 1.0)[:, : self._n_labels]
        return Packed(self.ids[source], positions, document, bounds, len(documents), self.longest, labels)


def packed_size(tokens: int) -> int:
    """The number of tokens to which a packed batch of this many tokens is padded."""
    multiple = next((m for limit, m in PACKED_MULTIPLES if tokens <= limit), MAX_PACKED_MULTIPLE)
    return -(-max(tokens, 1) // multiple) * multiple
