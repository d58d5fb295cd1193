"""The structure encoder of HILL: a document's vector runs up the coding tree and comes back as another vector.

Zhu et al., HILL, NAACL 2024, section 3.3; details the paper leaves out follow the released code (see `TreeEncoder`).
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hill.nn.across import is_shared, summed
from hill.nn.labelmap import LabelMap
from hill.nn.leaves import LeafUnits
from hill.nn.text import initialise


class StructureEncoder(nn.Module):
    """h (B, D) to h_T (B, D): projector, layers of nodes, readout of each layer, alignment.

    `parents[i]` is the node that receives label i. What the layers are is left to subclasses, which set `align` too.
    """

    align: nn.Sequential
    units: LeafUnits | None
    """What labels compute of a document by weights of their own; nothing in the paper."""

    def __init__(
        self, parents: Tensor, nodes: int, width: int, hidden: int, readout: str, dropout: float, label_rank: int
    ) -> None:
        super().__init__()
        self.readout = readout
        self.features = nn.Sequential(
            nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.Dropout(dropout)
        )
        self.labels = LabelMap(parents, nodes, label_rank)
        self.dropout = nn.Dropout(dropout)
        self.units = None

    @abstractmethod
    def layers(self, received: Tensor) -> Iterator[Tensor]:
        """The nodes of each layer, from what the projector gives the first: (B, N, D) to (B, N, D) a layer."""

    def forward(self, text: Tensor, units: Tensor | None = None) -> Tensor:
        """Vectors of documents, and units of the labels if there are any, to vectors that passed through: (B, D)."""
        with torch.autocast(text.device.type, enabled=False):
            received = self.labels(self.features(text.float())).transpose(1, 2)  # (B, N, D)
            if self.units is not None and units is not None:
                received = received + self.units.lifted(units)
            received = self.dropout(received)
        read = [self._read(nodes) for nodes in self.layers(received)]
        aligned: Tensor = self.align(torch.cat(read, dim=1))
        return aligned

    def add_units(self, count: int, dropout: float) -> None:
        """Let each label compute so many numbers of a document's vector, and pass them on upwards."""
        width = int(self.features[0].in_features)  # type: ignore[arg-type]
        self.units = LeafUnits(width, count, self.labels.parents, self.labels.nodes, self.hidden, dropout)

    @property
    def hidden(self) -> int:
        """Width of the nodes."""
        return int(self.features[0].out_features)  # type: ignore[arg-type]

    def _read(self, nodes: Tensor) -> Tensor:
        """η: one vector of a layer's nodes, (B, N, D) to (B, D)."""
        if self.readout == "sum":
            return nodes.sum(dim=1)
        return nodes.mean(dim=1) if self.readout == "mean" else nodes.amax(dim=1)


class TreeEncoder(StructureEncoder):
    """h (B, D) to h_T (B, D): projector, one feed-forward net a level over child sums, readout, alignment.

    `parents[k][i]` is the parent on level k + 1 of node i on level k. As in the released code: two linear layers a net,
    BatchNorm after each except at the root, dropout 0.5 and a linear layer after the concatenated readouts. Different:
    the leaves are never materialised (see `LabelMap`), so that the dropouts of the projector fall on the document's
    features and on what level 1 receives, not on each copy and each leaf.
    """

    def __init__(
        self,
        parents: Sequence[Tensor],
        width: int,
        hidden: int,
        readout: str = "sum",
        norm: str = "batch",
        dropout: float = 0.1,
        readout_dropout: float = 0.5,
        label_rank: int = 0,
    ) -> None:
        sizes = [*(len(level) for level in parents), 1]
        super().__init__(parents[0], sizes[1], width, hidden, readout, dropout, label_rank)
        self.sizes = sizes
        for level, above in enumerate(parents[1:], start=1):
            self.register_buffer(f"parents{level}", above, persistent=False)
        self.levels = nn.ModuleList(
            LevelNet(hidden, norm if level < len(parents) else "none") for level in range(1, len(parents) + 1)
        )
        self.align = alignment(len(parents) * hidden, width, readout_dropout)
        initialise(self)

    def layers(self, received: Tensor) -> Iterator[Tensor]:
        """The nodes of levels 1, ..., K: (B, N1, D) to (B, N, D) a level."""
        for level, net in enumerate(self.levels, start=1):
            nodes = net(received)
            yield nodes
            if level < len(self.levels):
                received = self._sum_children(nodes, level)

    def _sum_children(self, nodes: Tensor, level: int) -> Tensor:
        """u_v = Σ over children of v: (B, N below, D) to (B, N, D)."""
        above = self.get_buffer(f"parents{level}")
        sums = nodes.new_zeros(len(nodes), self.sizes[level + 1], nodes.shape[2])
        return sums.index_add(1, above, nodes)


class LevelNet(nn.Module):
    """φ_FFN of one level: linear, norm, ReLU, twice; the same for all its nodes."""

    def __init__(self, width: int, norm: str) -> None:
        super().__init__()
        self.linear = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.norm = nn.ModuleList(row_norm(norm, width) for _ in range(2))

    def forward(self, nodes: Tensor) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        shape = nodes.shape
        nodes = nodes.reshape(-1, shape[-1])  # BatchNorm sees all nodes of all documents as rows
        for linear, norm in zip(self.linear, self.norm, strict=True):
            nodes = F.relu(norm(linear(nodes)))
        return nodes.reshape(shape)


class RowNorm(nn.BatchNorm1d):
    """BatchNorm over all rows of a batch, also of one that several processes share.

    For a batch of a single row, which has no variance, it uses its running statistics.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, D) to (rows, D)."""
        if self.training and is_shared():
            return self._normalise_shared(rows)
        if self.training and len(rows) == 1:
            return F.batch_norm(rows, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        return super().forward(rows)

    def _normalise_shared(self, rows: Tensor) -> Tensor:
        """The same with mean and variance over the rows of all processes, of which there are at least 2."""
        count = summed(rows.new_tensor(float(len(rows))))
        mean = summed(rows.sum(dim=0)) / count
        centred = rows - mean
        variance = summed(centred.square().sum(dim=0)) / count
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * count / (count - 1), self.momentum)
        return centred * (variance + self.eps).rsqrt() * self.weight + self.bias


def row_norm(name: str, width: int) -> nn.Module:
    """The normalisation of rows with this name: batch, layer or none."""
    return {"batch": RowNorm, "layer": nn.LayerNorm}[name](width) if name != "none" else nn.Identity()


def alignment(read: int, width: int, dropout: float) -> nn.Sequential:
    """From the concatenated readouts to the width of the text's vector."""
    return nn.Sequential(nn.Dropout(dropout), nn.Linear(read, width))
