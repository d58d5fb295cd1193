"""Documents that live on the device: batches are gathered there, without a copy or a wait for each step."""

from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from hill.data.batches import label_lists, most_labels
from hill.data.tokens import Tokens
from hill.types import IntArray, Packed

STEPS = ((8_192, 256), (32_768, 512))
"""Up to so many tokens a batch is filled up to a multiple of so many: few shapes, little waste."""
LARGE_STEP = 1_024
FILLER = 256
"""Tokens of each document of padding at the end: short, so that it does not become the longest."""


def packed_size(tokens: int) -> int:
    """The number of tokens that a packed batch of this many is filled up to."""
    step = next((step for most, step in STEPS if tokens <= most), LARGE_STEP)
    return -(-max(tokens, 1) // step) * step


class Resident:
    """Tokens and labels of a split, held on a device; where they are to be listed, batches have label lists."""

    def __init__(
        self, tokens: Tokens, labels: csr_array[Any] | None, pad: int, device: torch.device, listed: bool = False
    ) -> None:
        self._lengths = tokens.lengths
        self.ids = torch.from_numpy(np.append(tokens.ids.astype(np.int32), pad).astype(np.int32)).to(device)
        self.starts = torch.from_numpy(tokens.starts).to(device)
        self.longest = -(-int(max(self._lengths.max(initial=1), FILLER)) // 128) * 128
        self.labels = None if labels is None else _on_device(labels, device)
        self.label_count = 0 if labels is None else labels.shape[1]
        self.listed = listed

    def size(self, documents: IntArray) -> int:
        """The number of tokens that these documents are packed into."""
        return packed_size(int(self._lengths[documents].sum()))

    def packed(self, documents: Tensor, size: int) -> Packed:
        """These documents (on the device) one after the other, filled up to a size; nothing here waits for the device.

        What is left over at the end are a few more documents of padding, which nothing reads.
        """
        starts = self.starts[documents]
        lengths = self.starts[documents + 1] - starts
        ends = lengths.cumsum(0)
        place = torch.arange(size, device=documents.device)
        document = torch.searchsorted(ends, place, right=True)  # B for what is left over
        begins = torch.nn.functional.pad(ends, (1, 0))  # (B + 1)
        within = place - begins[document]
        filled = document < len(documents)
        source = torch.where(filled, torch.nn.functional.pad(starts, (0, 1))[document] + within, len(self.ids) - 1)
        filler = ends[-1:] + FILLER * torch.arange(1, LARGE_STEP // FILLER + 1, device=documents.device)
        bounds = torch.cat([begins, filler.clamp(max=size)]).int()
        ids, places = self.ids[source], torch.where(filled, within, 0).int()  # half the keys to sort of int64
        return Packed(ids, places, document, bounds, len(documents), self.longest, self._gold(documents))

    def _gold(self, documents: Tensor) -> Tensor | None:
        if self.labels is None:
            return None
        rows = self.labels[documents].long()  # (B, most), L where a document has fewer
        if self.listed:
            return rows
        gold = torch.zeros(len(rows), self.label_count + 1, device=rows.device)
        return gold.scatter_(1, rows, 1.0)[:, : self.label_count]


def _on_device(labels: csr_array[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(label_lists(labels, most_labels(labels))).to(device)
