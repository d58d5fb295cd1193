"""The structure encoders of HILL's ablations: graph convolutions over the labels in place of the coding tree.

Zhu et al., HILL, NAACL 2024, section 4.3, rows r.p. GCN, GAT and GIN; details follow the released code.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hill.extras import need
from hill.nn.structure import StructureEncoder, alignment, row_norm
from hill.nn.text import initialise

LAYERS = {"gcn": 2, "gat": 2, "gin": 3}
"""The graph convolutions, and how many layers of each the paper has."""


class GraphEncoder(StructureEncoder):
    """h (B, D) to h_T (B, D): projector, x ← norm(ReLU(conv(x))) a layer over the labels, readout, alignment.

    Edges run both ways between `child[e]` and `parent[e]`; nothing stands above the roots. The convolutions are those
    of PyTorch Geometric with its defaults: GCN with symmetric normalisation; GAT with one head and slope 0.2; GIN with
    ε = 0 and a net of two linear layers. As in the released code, weights of GCN and GAT start as Glorot and those of
    GIN's net as all other linear layers do. Different: a batch is one graph by offsets, not copies of a graph that are
    collated each step; the loops that GCN and GAT add to the edges are there from the start, so that no layer has to
    look for loops and wait for the device; the dropouts of the projector fall as in `TreeEncoder`.
    """

    edges: Tensor

    def __init__(
        self,
        kind: str,
        child: Tensor,
        parent: Tensor,
        labels: int,
        width: int,
        hidden: int,
        layers: int = 0,
        readout: str = "sum",
        norm: str = "batch",
        dropout: float = 0.1,
        readout_dropout: float = 0.5,
        label_rank: int = 0,
    ) -> None:
        super().__init__(torch.arange(labels), labels, width, hidden, readout, dropout, label_rank)
        layers = layers or LAYERS[kind]
        loops = torch.arange(0 if kind == "gin" else labels)
        edges = torch.stack([torch.cat([child, parent, loops]), torch.cat([parent, child, loops])])
        self.register_buffer("edges", edges, persistent=False)
        self.convolutions = nn.ModuleList(_convolution(kind, hidden) for _ in range(layers))
        self.norms = nn.ModuleList(row_norm(norm, hidden) for _ in range(layers))
        self.align = alignment(layers * hidden, width, readout_dropout)
        initialise(self)

    def layers(self, received: Tensor) -> Iterator[Tensor]:
        """The labels after each convolution: (B, L, D) to (B, L, D) a layer."""
        edges = self._batch_edges(*received.shape[:2])
        rows = received.flatten(0, 1)  # (B · L, D)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            # float32 under autocast too, since the next layer may sum very many children of a label
            rows = norm(F.relu(convolution(rows, edges)).float())
            yield rows.view(received.shape)

    def _batch_edges(self, documents: int, labels: int) -> Tensor:
        """The edges of a batch, whose document b has the rows b · L, ..., b · L + L - 1: (2, B · E)."""
        starts = labels * torch.arange(documents, device=self.edges.device)
        return (self.edges[:, None] + starts[:, None]).flatten(1)


def _convolution(kind: str, width: int) -> nn.Module:
    library = need("torch_geometric.nn", "gnn", f"structure={kind}")
    if kind == "gin":
        net = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        sums: nn.Module = library.GINConv(net)
        return sums
    convolution: nn.Module = {"gcn": library.GCNConv, "gat": library.GATConv}[kind](width, width, add_self_loops=False)
    return convolution
