"""HiAGM's graph convolution over labels: every node hears its children, its parents and itself, each through a gate.

Zhou et al., Hierarchy-Aware Global Model for Hierarchical Text Classification, ACL 2020, section 4.2.
"""

import torch
from torch import Tensor, nn


class LabelGCN(nn.Module):
    """One layer over the edges from `child[e]` to `parent[e]`, where `prior[e]` is P(child | parent).

    With trainable weights a of the edges up (from 1) and z of those down (from the prior), and σ a scalar gate a node,

        up_k   = σ(h_k g1 + b1_k) (Σ over children j of k a_jk h_j + B1_k)
        down_k = σ(h_k g2 + b2_k) (Σ over parents j of k z_kj h_j + B2_k)
        self_k = σ(h_k g3) h_k

    and the result is ReLU of their sum, with dropout on each. The released code holds a and z as masked matrices of all
    pairs of labels; here only the edges have weights. It also leaves b2 uninitialised; here it starts at 0 as b1 does.
    """

    child: Tensor
    parent: Tensor

    def __init__(
        self, child: Tensor, parent: Tensor, prior: Tensor, nodes: int, width: int, dropout: float = 0.05
    ) -> None:
        super().__init__()
        self.register_buffer("child", child, persistent=False)
        self.register_buffer("parent", parent, persistent=False)
        self.up = nn.Parameter(torch.ones(len(child)))
        self.down = nn.Parameter(prior.float().clone())
        self.gates = nn.ParameterList(nn.init.xavier_normal_(torch.empty(width, 1)) for _ in range(3))
        self.gate_bias = nn.ParameterList(torch.zeros(nodes, 1) for _ in range(2))
        self.bias = nn.ParameterList(torch.zeros(nodes, width) for _ in range(2))
        self.dropout = nn.Dropout(dropout)

    def forward(self, nodes: Tensor) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        up = self._gate(nodes, 0) * (self._hear(nodes, self.child, self.parent, self.up) + self.bias[0])
        down = self._gate(nodes, 1) * (self._hear(nodes, self.parent, self.child, self.down) + self.bias[1])
        own = (nodes @ self.gates[2]).sigmoid() * nodes
        heard: Tensor = self.dropout(up) + self.dropout(down) + self.dropout(own)
        return heard.relu()

    def _gate(self, nodes: Tensor, direction: int) -> Tensor:
        """One number between 0 and 1 a node: (B, N, 1)."""
        gate: Tensor = (nodes @ self.gates[direction] + self.gate_bias[direction]).sigmoid()
        return gate

    @staticmethod
    def _hear(nodes: Tensor, source: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        """The weighted sum of what comes along the edges into each node: (B, N, D)."""
        said = nodes[:, source] * weight[:, None]  # (B, edges, D)
        return torch.zeros_like(nodes, dtype=said.dtype).index_add(1, target, said)
