"""What labels, the leaves of the coding tree, can bring along: units that read the text, and their names.

Neither is in the paper, where a leaf is a copy of the document's vector.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MIDDLE = 0.25
"""A cosine at which a name says nothing."""


class LeafUnits(nn.Module):
    """ReLU units of each label, read from the document's vector by weights of their own.

    Side by side they are a wide hidden layer, as HiAGM's nodes are; the tree receives their sums.
    """

    parents: Tensor

    def __init__(self, width: int, count: int, parents: Tensor, nodes: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.count, self.nodes = count, nodes
        self.register_buffer("parents", parents, persistent=False)
        self.read = nn.Linear(width, len(parents) * count)
        self.lift = nn.Linear(count, hidden, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, text: Tensor) -> Tensor:
        """(B, D) to (B, L, U)."""
        units: Tensor = self.dropout(F.relu(self.read(text)))
        return units.reshape(len(text), len(self.parents), self.count)

    def lifted(self, units: Tensor) -> Tensor:
        """What each node receives of the units of its labels: (B, L, U) to (B, N, D)."""
        sums = units.new_zeros(len(units), self.nodes, self.count).index_add(1, self.parents, units)
        lifted: Tensor = self.lift(sums)
        return lifted


class LeafNames(nn.Module):
    """How like a label's name and description a document is: weight times the cosine of their vectors, both learned.

    The vectors start small and anywhere; whoever trains a new model sets them to what the text encoder makes of names.
    """

    def __init__(self, labels: int, width: int, weight: float) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(labels, width) * 0.02)
        self.weight = nn.Parameter(torch.full((labels,), weight))

    def forward(self, text: Tensor) -> Tensor:
        """What the names add to the logits: (B, D) to (B, L)."""
        cosines = F.normalize(text, dim=1) @ F.normalize(self.vectors, dim=1).T
        return self.weight * (cosines - MIDDLE)
