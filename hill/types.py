"""Values that travel between the rooms, and the letters that name their shapes.

B documents of a batch, T tokens of a document, P tokens of a packed batch, L labels of the taxonomy, N nodes of a level
of the coding tree, D width of a vector.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
MANY_LABELS = 10_000
"""Above so many labels, a loss is over a sample of them by default, and of a document only the best scores are kept."""


@dataclass(frozen=True)
class Batch:
    """Documents for a model: token ids and mask (B, T), labels (B, L) where they are known.

    Where the model learns from a sample of labels, they are lists (B, M) of label rows, filled up with L.
    """

    ids: Tensor
    mask: Tensor
    labels: Tensor | None = None


@dataclass(frozen=True)
class Packed:
    """Documents one after the other without padding between them, which a GPU reads faster.

    Token ids (P), each with its place in its document and its document's number (P); where documents begin and end
    (B + 1 and more), the last ones being what fills up the batch; the most tokens of a document; labels (B, L) where
    they are known.
    """

    ids: Tensor
    places: Tensor
    document: Tensor
    bounds: Tensor
    count: int
    longest: int
    labels: Tensor | None = None


@dataclass(frozen=True)
class Output:
    """What a model says of a batch: logits (B, L), and with labels the loss and the parts it is the sum of."""

    logits: Tensor
    loss: Tensor | None = None
    parts: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Prediction:
    """What is predicted for one text: label ids from the roots down, the score of each, and the paths they form."""

    labels: tuple[str, ...]
    scores: tuple[float, ...]
    paths: tuple[tuple[str, ...], ...]
