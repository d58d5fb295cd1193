"""Batches of documents of similar length, padded to a few lengths, in an order that a seed and an epoch fix."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array

from hill.data.tokens import Tokens
from hill.types import Batch, IntArray

LENGTHS = np.array([8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512])
POOL = 50
"""Batches drawn together: large enough to sort by length, small enough to keep an epoch's order random."""


def padded_length(longest: int) -> int:
    """The length that documents up to this long are padded to."""
    place = int(np.searchsorted(LENGTHS, longest))
    return int(LENGTHS[place]) if place < len(LENGTHS) else longest


def training_order(lengths: IntArray, size: int, seed: int, epoch: int) -> list[IntArray]:
    """The documents of each batch of an epoch: every document once, similar lengths together, shuffled."""
    draw = np.random.default_rng([seed, epoch])
    order = draw.permutation(len(lengths))
    batches: list[IntArray] = []
    for start in range(0, len(order), size * POOL):
        pool = order[start : start + size * POOL]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches.extend(pool[i : i + size] for i in range(0, len(pool), size))
    return [batches[i] for i in draw.permutation(len(batches))]


def reading_order(lengths: IntArray, size: int) -> list[IntArray]:
    """The documents of each batch for prediction: longest first, so that memory runs out at once or never."""
    order = np.argsort(-lengths, kind="stable")
    return [order[i : i + size] for i in range(0, len(order), size)]


def collate(tokens: Tokens, labels: csr_array[Any] | None, documents: IntArray, pad: int) -> Batch:
    """These documents as tensors."""
    width = padded_length(int(tokens.lengths[documents].max(initial=1)))
    ids = np.full((len(documents), width), pad, dtype=np.int64)
    mask = np.zeros((len(documents), width), dtype=np.int64)
    for row, document in enumerate(documents):
        found = tokens[document]
        ids[row, : len(found)] = found
        mask[row, : len(found)] = 1
    gold = None if labels is None else torch.from_numpy(labels[documents].toarray())
    return Batch(torch.from_numpy(ids), torch.from_numpy(mask), gold)


def batches(
    tokens: Tokens, labels: csr_array[Any] | None, order: list[IntArray], pad: int, device: torch.device
) -> Iterator[Batch]:
    """The batches of an order, on a device."""
    for documents in order:
        batch = collate(tokens, labels, documents, pad)
        gold = None if batch.labels is None else batch.labels.to(device, non_blocking=True)
        yield Batch(batch.ids.to(device, non_blocking=True), batch.mask.to(device, non_blocking=True), gold)
