"""What labels, the leaves of the coding tree, can bring into it: a learned vector each, or units that read the text.

Neither is in the paper, where a leaf is a copy of the document's vector.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from hill.nn.text import initialise


class LeafVectors(nn.Module):
    """A learned vector for each label, summed for the node that receives it, then projected.

    As the projection is linear, this is the sum of the projected vectors; its cost depends neither on the documents
    nor, but for the sum itself, on the number of labels.
    """

    parents: Tensor

    def __init__(self, vectors: Tensor, parents: Tensor, nodes: int, hidden: int) -> None:
        super().__init__()
        self.nodes = nodes
        self.register_buffer("parents", parents, persistent=False)
        self.vectors = nn.Parameter(vectors.detach().clone())
        self.project = nn.Linear(vectors.shape[1], hidden, bias=False)
        initialise(self)

    def forward(self) -> Tensor:
        """What each node receives of its labels: (N, D)."""
        sums = self.vectors.new_zeros(self.nodes, self.vectors.shape[1]).index_add(0, self.parents, self.vectors)
        projected: Tensor = self.project(sums)
        return projected


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
        return units.unflatten(1, (-1, self.count))

    def lifted(self, units: Tensor) -> Tensor:
        """What each node receives of the units of its labels: (B, L, U) to (B, N, D)."""
        sums = units.new_zeros(len(units), self.nodes, self.count).index_add(1, self.parents, units)
        lifted: Tensor = self.lift(sums)
        return lifted
