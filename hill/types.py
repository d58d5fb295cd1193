"""The values that modules exchange.

Shapes are written with these letters: B documents of a batch, T tokens of a document, P tokens of a packed batch,
L labels of the taxonomy, M labels of a label list, N nodes of a level of the coding tree, D width of a vector.
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
"""With more labels, the default is to compute the loss on a sample of labels and to keep only the top scores."""


@dataclass(frozen=True)
class Batch:
    """A padded batch: token ids and mask (B, T), and optionally labels.

    Labels are targets (B, L). If the model learns from a sample of labels, they are lists of label rows (B, M) that are
    padded with L.
    """

    ids: Tensor
    mask: Tensor
    labels: Tensor | None = None


@dataclass(frozen=True)
class Packed:
    """A batch without padding between documents, which a GPU processes faster."""

    ids: Tensor
    """Token ids (P)."""
    positions: Tensor
    """The position of each token in its document (P)."""
    document: Tensor
    """The document of each token (P)."""
    bounds: Tensor
    """Where documents begin and end (B + 1 or more); entries after the first B + 1 delimit padding documents."""
    count: int
    """The number of documents, without padding documents."""
    longest: int
    """An upper bound of the tokens per document."""
    labels: Tensor | None = None
    """Labels as in `Batch`."""


@dataclass(frozen=True)
class Encoded:
    """A batch as vectors of a frozen text encoder (B, D), before dropout, and optionally labels as in `Batch`."""

    vectors: Tensor
    labels: Tensor | None = None


AnyBatch = Batch | Packed | Encoded


@dataclass(frozen=True)
class Output:
    """The output of a model: logits (B, L) and, if the batch has labels, the loss and its named terms."""

    logits: Tensor
    loss: Tensor | None = None
    parts: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Prediction:
    """The prediction for one text: label ids from the roots down, the score of each, and the paths that they form."""

    labels: tuple[str, ...]
    scores: tuple[float, ...]
    paths: tuple[tuple[str, ...], ...]
    runners_up: tuple[tuple[str, float], ...] | None = None
    """The best labels that are not predicted, with their scores, if they were asked for."""
