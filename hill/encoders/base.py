"""The interface of all text encoders: token ids to one vector per document, or one state per token."""

from abc import abstractmethod
from typing import Any, ClassVar

from torch import Tensor, nn

from hill.types import AnyBatch, Batch

UNLIMITED = 1_000_000


class TextEncoder(nn.Module):
    """The base class of text encoders; a subclass sets `width`, and `state_width` if it has token states."""

    pretrained: ClassVar[bool] = False
    """Whether it starts from pretrained weights, which get their own small learning rate."""
    width: int
    """Width D of a document's vector."""
    state_width: int
    """Width S of a token's state."""
    pooling: str = ""
    """How token states become one vector, if there is a choice."""
    pad: int = 0
    """The id of the padding token."""
    longest: int = UNLIMITED
    """The maximum number of tokens per document."""
    packs: bool = False
    """Whether it reads packed batches."""

    @abstractmethod
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Token ids and mask (B, T) to vectors (B, D), with dropout in training."""

    @abstractmethod
    def states(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The state of every token: (B, T, S)."""

    def token_states(self, batch: AnyBatch) -> tuple[Tensor, Tensor]:
        """The state of every token (B, T, S) and the mask of tokens (B, T) of a batch."""
        if not isinstance(batch, Batch):
            raise TypeError(f"{type(self).__name__} reads no {type(batch).__name__.lower()} batches")
        return self.states(batch.ids, batch.mask), batch.mask

    def read(self, batch: AnyBatch) -> Tensor:
        """The vectors (B, D) of a batch."""
        if not isinstance(batch, Batch):
            raise TypeError(f"{type(self).__name__} reads no {type(batch).__name__.lower()} batches")
        vectors: Tensor = self(batch.ids, batch.mask)
        return vectors

    def documents(self) -> dict[str, Any]:
        """JSON files that are saved with the model, by name, from which an empty encoder of the same shape is built."""
        return {}
