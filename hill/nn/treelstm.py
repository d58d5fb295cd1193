"""HiAGM's Tree-LSTM over labels: one LSTM runs up from the leaves, one down from the roots.

Zhou et al., Hierarchy-Aware Global Model for Hierarchical Text Classification, ACL 2020, section 4.2, after the
child-sum Tree-LSTM of Tai et al., ACL 2015.
"""

import torch
from torch import Tensor, nn


class TreeLSTM(nn.Module):
    """Half of each node's result comes from below and half from above; it is built as `LabelGCN` is.

    The released code runs node by node, and reads the weights of the edges down where no edge is, so that they start at
    0; here they start at P(child | parent). A node with several parents hears the sum of them.
    """

    def __init__(
        self, child: Tensor, parent: Tensor, prior: Tensor, nodes: int, width: int, dropout: float = 0.05
    ) -> None:
        super().__init__()
        self.up = EdgeLSTM(child, parent, torch.ones(len(child)), nodes, width, width - width // 2)
        self.down = EdgeLSTM(parent, child, prior, nodes, width, width // 2)
        self.dropout = nn.Dropout(dropout)

    def forward(self, nodes: Tensor) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        states: Tensor = self.dropout(torch.cat([self.up(nodes), self.down(nodes)], dim=2))
        return states


class EdgeLSTM(nn.Module):
    """An LSTM along edges without cycles: a node waits for all sources of its edges, and hears their states weighted.

    Nodes equally far from a start run together, so that time grows with the longest way and not with the nodes.
    """

    source: Tensor
    target: Tensor

    def __init__(self, source: Tensor, target: Tensor, weight: Tensor, nodes: int, width: int, memory: int) -> None:
        super().__init__()
        self.memory = memory
        self.weight = nn.Parameter(weight.float().clone())
        self.read = nn.Linear(width, 4 * memory)
        self.hear = nn.Linear(memory, 3 * memory)
        self.forget = nn.Linear(memory, memory)
        self.register_buffer("source", source, persistent=False)
        self.register_buffer("target", target, persistent=False)
        wave = _waves(source, target, nodes)
        self.waves = int(wave.max()) + 1 if nodes else 0
        for number in range(self.waves):
            rows = (wave == number).nonzero()[:, 0]
            edges = (wave[target] == number).nonzero()[:, 0]
            self.register_buffer(f"rows{number}", rows, persistent=False)
            self.register_buffer(f"edges{number}", edges, persistent=False)
            self.register_buffer(f"place{number}", torch.searchsorted(rows, target[edges]), persistent=False)

    def forward(self, nodes: Tensor) -> Tensor:
        """(B, N, D) to states (B, N, memory)."""
        gates: Tensor = self.read(nodes).to(self.weight.dtype)  # (B, N, 4 · memory)
        states = gates.new_zeros(*gates.shape[:2], self.memory)
        cells = states
        for number in range(self.waves):
            rows = self.get_buffer(f"rows{number}")
            state, cell = self._step(number, gates[:, rows], states, cells)
            states, cells = states.index_copy(1, rows, state), cells.index_copy(1, rows, cell)
        return states

    def _step(self, number: int, gates: Tensor, states: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
        """States and cells of the nodes of one wave: (B, nodes of the wave, memory) each."""
        edges, place = self.get_buffer(f"edges{number}"), self.get_buffer(f"place{number}")
        source, weight = self.source[edges], self.weight[edges, None]
        heard = states[:, source] * weight  # (B, edges of the wave, memory)
        nothing = gates.new_zeros(*gates.shape[:2], self.memory)
        keys = gates[..., : 3 * self.memory] + self.hear(nothing.index_add(1, place, heard))
        enter, leave, content = keys.chunk(3, dim=2)
        keep = (gates[:, place, 3 * self.memory :] + self.forget(heard)).sigmoid()
        kept = nothing.index_add(1, place, keep * cells[:, source] * weight)
        cell = enter.sigmoid() * content.tanh() + kept
        return leave.sigmoid() * cell.tanh(), cell


def _waves(source: Tensor, target: Tensor, nodes: int) -> Tensor:
    """How many edges the longest way that ends in each node has: (nodes)."""
    wave = torch.zeros(nodes, dtype=torch.long)
    while not torch.equal(wave, later := wave.scatter_reduce(0, target, wave[source] + 1, "amax")):
        wave = later
    return wave
