"""Text encoders: what turns token ids into one vector a document, or one state a token."""

from abc import abstractmethod
from typing import Any, ClassVar

from torch import Tensor, nn

from hill.types import Batch, Packed

UNLIMITED = 1_000_000


class TextEncoder(nn.Module):
    """The contract of every text encoder. D is the width of a document's vector, S that of a token's state."""

    pretrained: ClassVar[bool] = False
    """Whether it starts from weights that know language: those get their own small learning rate."""
    pooling: str = ""
    """How token states become one vector, where there is a choice."""

    @property
    @abstractmethod
    def width(self) -> int:
        """D of the vectors."""

    @property
    def state_width(self) -> int:
        """S of the token states."""
        return self.width

    @property
    def pad(self) -> int:
        """The token id that fills up a batch."""
        return 0

    @property
    def longest(self) -> int:
        """Most tokens it can read."""
        return UNLIMITED

    @abstractmethod
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Token ids and mask (B, T) to vectors (B, D), dropout included."""

    @abstractmethod
    def states(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The state of every token: (B, T, S)."""

    def read(self, batch: Batch | Packed) -> Tensor:
        """The vectors (B, D) of a batch, packed where the encoder can read that."""
        if isinstance(batch, Packed):
            raise TypeError(f"{type(self).__name__} reads no packed batches")
        found: Tensor = self(batch.ids, batch.mask)
        return found

    @property
    def packs(self) -> bool:
        """Whether it reads packed batches."""
        return False

    def documents(self) -> dict[str, Any]:
        """Documents from which an empty encoder of the same shape is made, by file name."""
        return {}
