"""Text encoders: a Hugging Face encoder with its pooling and the one dropout that all later parts share."""

import torch
from torch import Tensor, nn


class TextEncoder(nn.Module):
    """A document as one vector h: the first token's last state (CLS) or the mean over tokens, with dropout.

    The released code drops out h once; classifier, structure encoder and contrastive projector see the same vector.
    """

    def __init__(self, encoder: nn.Module, pooling: str, dropout: float) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        self.dropout = nn.Dropout(dropout)

    @property
    def width(self) -> int:
        """D of the vectors."""
        return int(self.encoder.config.hidden_size)  # type: ignore[union-attr,arg-type]

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Token ids and mask (B, T) to vectors (B, D)."""
        dropped: Tensor = self.dropout(self.pool(self.states(ids, mask), mask))
        return dropped

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


@torch.no_grad()
def initialise(module: nn.Module, deviation: float = 0.02) -> None:
    """Linear layers as BERT starts them: weights from N(0, 0.02²), biases 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.normal_(0.0, deviation)
            if layer.bias is not None:
                layer.bias.zero_()
