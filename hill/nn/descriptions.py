"""Descriptions of labels, encoded by the text encoder that is being trained."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hill.nn.text import TextEncoder

CHUNK = 256
"""Descriptions encoded at a time."""


class Descriptions(nn.Module):
    """The vectors of the labels' descriptions (L, D), without gradient, encoded anew every so many steps."""

    ids: Tensor
    mask: Tensor
    vectors: Tensor

    def __init__(self, ids: Sequence[Sequence[int]], pad: int, width: int, every: int) -> None:
        super().__init__()
        self.every = every
        self.steps = 0
        lengths = torch.tensor([max(len(each), 1) for each in ids])
        longest = int(lengths.max())
        padded = [[*each, *[pad] * (longest - len(each))] for each in ids]
        self.register_buffer("ids", torch.tensor(padded), persistent=False)
        self.register_buffer("mask", (torch.arange(longest) < lengths[:, None]).long(), persistent=False)
        self.register_buffer("vectors", torch.zeros(len(ids), width))

    def forward(self, text: TextEncoder) -> Tensor:
        """The vectors at this step."""
        if self.steps % self.every == 0:
            self.vectors = self.encode(text)
        self.steps += 1
        return self.vectors

    @torch.no_grad()
    def encode(self, text: TextEncoder) -> Tensor:
        """The vectors that the encoder gives now, without dropout."""
        training = text.training
        text.eval()
        ids, mask = self.ids[:, : text.longest], self.mask[:, : text.longest]
        starts = range(0, len(ids), CHUNK)
        vectors = torch.cat([text(ids[i : i + CHUNK], mask[i : i + CHUNK]) for i in starts])
        text.train(training)
        return vectors.float()

    def get_extra_state(self) -> Tensor:
        """The steps taken, saved with the weights, so that a resumed training encodes when it would have."""
        return torch.tensor(self.steps)

    def set_extra_state(self, state: Tensor) -> None:
        """Go on from these steps."""
        self.steps = int(state)
