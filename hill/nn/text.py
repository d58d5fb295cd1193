"""Text encoders: what turns token ids into one vector a document, or one state a token."""

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hill.nn.packed import best_layer, can_pack, pack, packed_states
from hill.nn.pretrained import longest_input
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


class Transformer(TextEncoder):
    """A Hugging Face encoder: a document is the first token's last state (CLS) or the mean over tokens, with dropout.

    The released code of HILL drops out the vector once; classifier, structure and contrast see the same one.
    """

    pretrained: ClassVar[bool] = True

    def __init__(self, encoder: nn.Module, pooling: str, dropout: float) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        self.dropout = nn.Dropout(dropout)
        self.packed_layer = best_layer()
        self.unpadded = False
        """Whether a training leaves out the padding of a batch, where the encoder can be read so."""

    @property
    def _config(self) -> Any:
        return self.encoder.config

    @property
    def width(self) -> int:
        """D of the vectors."""
        return int(self._config.hidden_size)

    @property
    def pad(self) -> int:
        """The token id that fills up a batch."""
        return int(getattr(self._config, "pad_token_id", None) or 0)

    @property
    def longest(self) -> int:
        """Most tokens it can read."""
        return longest_input(self.encoder)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Token ids and mask (B, T) to vectors (B, D)."""
        if self.unpadded and self.training and self.packs:
            return torch.cat([self.read(part) for part in pack(ids, mask)])
        dropped: Tensor = self.dropout(self.pool(self.states(ids, mask), mask))
        return dropped

    @property
    def packs(self) -> bool:
        """Whether it reads packed batches."""
        return can_pack(self.encoder)

    def read(self, batch: Batch | Packed) -> Tensor:
        """The vectors (B, D) of a batch."""
        if isinstance(batch, Batch):
            return super().read(batch)
        kind = batch.ids.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
        with torch.autocast(kind, enabled=False):
            states = packed_states(self.encoder, batch, dtype, self.packed_layer)
            dropped: Tensor = self.dropout(self._pool_packed(states, batch))
        return dropped

    def _pool_packed(self, states: Tensor, batch: Packed) -> Tensor:
        """One vector of a document's token states: (P, D) to (B, D)."""
        if self.pooling == "cls":
            return states[batch.bounds[: batch.count]].float()
        documents = torch.arange(batch.count, device=states.device)
        belongs = (documents[:, None] == batch.document).to(states.dtype)  # (B, P)
        return (belongs @ states).float() / batch.bounds.diff()[: batch.count, None].clamp(min=1)

    def states(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The last layer's state of every token: (B, T, D)."""
        states: Tensor = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        return states

    def pool(self, states: Tensor, mask: Tensor) -> Tensor:
        """One vector of a document's token states: (B, T, D) to (B, D)."""
        if self.pooling == "cls":
            return states[:, 0].float()
        weights = mask.unsqueeze(2).float()
        return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)

    def documents(self) -> dict[str, Any]:
        """The encoder's configuration."""
        return {"encoder/config.json": self._config.to_dict()}


@torch.no_grad()
def initialise(module: nn.Module, deviation: float = 0.02) -> None:
    """Linear layers as BERT starts them: weights from N(0, 0.02²), biases 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.normal_(0.0, deviation)
            if layer.bias is not None:
                layer.bias.zero_()
