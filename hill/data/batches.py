"""Batches of documents: which documents, in an order that a seed and an epoch fix, and their tensors."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array

from hill.data.tokens import Tokens
from hill.types import Batch, IntArray

LENGTHS = np.array([8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512])


def padded_length(longest: int) -> int:
    """The length that documents up to this long are padded to."""
    place = int(np.searchsorted(LENGTHS, longest))
    return int(LENGTHS[place]) if place < len(LENGTHS) else longest


def training_order(count: int, size: int, seed: int, epoch: int) -> list[IntArray]:
    """The documents of each batch of an epoch: every document once, shuffled.

    Batches of documents that are alike in length would need less padding, but a model learns less from them.
    """
    order = np.random.default_rng([seed, epoch]).permutation(count)
    return [order[i : i + size] for i in range(0, count, size)]


def reading_order(lengths: IntArray, size: int, budget: int = 0) -> list[IntArray]:
    """The documents of each batch for prediction: longest first, so that memory runs out at once or never.

    With a budget, a batch holds as many documents as have this many tokens together, but at least one.
    """
    order = np.argsort(-lengths, kind="stable")
    if not budget:
        return [order[i : i + size] for i in range(0, len(order), size)]
    batch = np.cumsum(lengths[order]) // budget
    return [part for part in np.split(order, np.flatnonzero(np.diff(batch)) + 1) if len(part)]


def collate(
    tokens: Tokens, labels: csr_array[Any] | None, documents: IntArray, pad: int, listed: bool = False
) -> Batch:
    """These documents as tensors; labels are targets (B, L), or lists (B, M)."""
    starts = tokens.starts[documents]
    lengths = tokens.starts[documents + 1] - starts
    places = np.arange(padded_length(int(lengths.max(initial=1))))
    mask = places < lengths[:, None]
    ids = np.full(mask.shape, pad, dtype=np.int64)
    ids[mask] = tokens.ids[(starts[:, None] + places)[mask]]
    gold = None if labels is None else gold_of(labels, documents, listed)
    return Batch(torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64)), gold)


def gold_of(labels: csr_array[Any], documents: IntArray, listed: bool) -> torch.Tensor:
    """The labels of these documents: targets (B, L), or lists (B, M) that are as wide for all documents."""
    if listed:
        return torch.from_numpy(label_lists(labels[documents], most_labels(labels))).long()
    return torch.from_numpy(labels[documents].toarray())


def most_labels(labels: csr_array[Any]) -> int:
    """The most labels that a document has, but at least 1."""
    return max(int(np.diff(labels.indptr).max(initial=1)), 1)


def label_lists(labels: csr_array[Any], most: int) -> npt.NDArray[np.int32]:
    """The labels of each document as a row of so many numbers, filled up with the number of labels."""
    lists = np.full((labels.shape[0], most), labels.shape[1], dtype=np.int32)
    lists[np.arange(most) < np.diff(labels.indptr)[:, None]] = labels.indices
    return lists


def to_device(batch: Batch, device: torch.device) -> Batch:
    """A batch on a device."""
    labels = None if batch.labels is None else move(batch.labels, device)
    return Batch(move(batch.ids, device), move(batch.mask, device), labels)


def move(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor on a device; to a GPU from pinned memory, so that the copy runs beside the computation."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
