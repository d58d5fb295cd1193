"""The best rows of a linear head without the logits of all of them at once."""

import torch.nn.functional as F
from torch import Tensor, cat, nn

CELLS = 1 << 24
"""Logits that are held at a time."""


def best_rows(features: Tensor, head: nn.Linear, count: int) -> tuple[Tensor, Tensor]:
    """The highest logits of each document (B, D) and the labels they are of: (B, count) each, the best first.

    Exact: the best of all are among the best of each block of rows.
    """
    size = max(count, CELLS // max(len(features), 1))
    values, rows = features.new_empty(len(features), 0), None
    for start in range(0, head.out_features, size):
        block = slice(start, start + size)
        found = F.linear(features, head.weight[block], head.bias[block])  # (B, size)
        best = found.topk(min(count, found.shape[1]), dim=1)
        both = best.indices + start if rows is None else cat([rows, best.indices + start], dim=1)
        values, kept = cat([values, best.values], dim=1).topk(min(count, both.shape[1]), dim=1)
        rows = both.gather(1, kept)
    assert rows is not None
    return values, rows
