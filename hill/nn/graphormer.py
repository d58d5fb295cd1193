"""Graphormer: self-attention over the nodes of a graph that knows how far apart two are and what lies between them.

Ying et al., Do Transformers Really Perform Badly for Graph Representation?, NeurIPS 2021, in the form HGCLR gave it.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path
from torch import Tensor, nn

from hill.nn.text import initialise
from hill.types import FloatArray, IntArray

Int32Array = npt.NDArray[np.int32]
EPSILON = 1e-12
"""In the norms, as BERT has it."""


@dataclass(frozen=True)
class Paths:
    """The way between any two of L nodes: up from both to the nearest node above both, their top, which is left out.

    In a DAG too it leads up, then down: a child that two nodes share brings them no nearer. A climb is one half of a
    way: the nodes from one up to another above it, the last left out. There are only as many climbs as pairs of a node
    and one above it, so that two numbers tell the way between two nodes, whatever its length.
    """

    distance: Int32Array
    """Steps between two nodes (L, L), as many as there are nodes on the way."""
    climb: Int32Array
    """Number of the climb from the first of two nodes (L, L); from the second it is the one of the swapped pair."""
    nodes: Int32Array
    """Nodes of each climb (climbs, longest), filled up with L."""


def find_paths(edges: IntArray, count: int) -> Paths:
    """The ways between nodes, given as rows (child, parent) of a forest or DAG; a virtual root lies above all roots.

    Of several shortest ways in a DAG one is taken, always the same.
    """
    steps, above = shortest_path(_down(edges, count), method="D", unweighted=True, return_predecessors=True)
    tops, bottoms = np.nonzero(np.isfinite(steps[:, :count]))
    climbs = np.zeros((count + 1, count), dtype=np.int32)
    climbs[tops, bottoms] = np.arange(len(tops))
    distance, top = _meet(steps)
    return Paths(distance, climbs[top, np.arange(count)[:, None]], _climb(tops, bottoms, above, count))


def _meet(steps: FloatArray) -> tuple[Int32Array, Int32Array]:
    """Distance and top of any two nodes (L, L), from the steps down from each node to each, the root being the last.

    Parents come before children, for they have fewer nodes above them. A node is then above none of those before it, so
    that its way to any of them is one step longer than that of its nearest parent, and has the same top.
    """
    order = np.argsort(np.isfinite(steps).sum(axis=0), kind="stable")
    distance, top = np.zeros(steps.shape, dtype=np.int32), np.diag(np.arange(len(steps), dtype=np.int32))
    for place, node in enumerate(order[1:], start=1):
        before, parents = order[:place], np.flatnonzero(steps[:, node] == 1)
        nearest = parents[distance[np.ix_(parents, before)].argmin(axis=0)]
        distance[node, before] = distance[before, node] = distance[nearest, before] + 1
        top[node, before] = top[before, node] = top[nearest, before]
    return distance[:-1, :-1].copy(), top[:-1, :-1]


def _down(edges: IntArray, count: int) -> csr_array[np.float64]:
    """The graph from parents to children (L + 1, L + 1), a root above all roots at its end."""
    child, parent = edges.T
    roots = np.setdiff1d(np.arange(count), child)
    child, parent = np.concatenate([child, roots]), np.concatenate([parent, np.full(len(roots), count)])
    return csr_array((np.ones(len(child)), (parent, child)), shape=(count + 1, count + 1))


def _climb(tops: IntArray, bottoms: IntArray, above: Int32Array, count: int) -> Int32Array:
    """The nodes from each bottom up to its top, the top left out; `above` names the next node for top and node."""
    node, found = bottoms, []
    while (under := node != tops).any():
        found.append(np.where(under, node, count))
        node = np.where(under, above[tops, node], node)
    return np.stack(found, axis=1).astype(np.int32)


class Graphormer(nn.Module):
    """Vectors of L nodes (L, D) to vectors that know of each other: layers of biased self-attention and a feed-forward.

    As in HGCLR's code: every node has a learned vector of its own, all heads and layers share the bias, the last layer
    ends after its attention. Different: no limit of 20 steps and 15 nodes on a way, any order of the nodes, several
    parents; no weights without effect, which are the last layer's feed-forward net, biases of keys and of the last norm
    (what all nodes have in common cancels in a softmax over them), rows for padding and for distances never reached.
    """

    distance: Tensor
    climb: Tensor
    nodes: Tensor

    def __init__(self, paths: Paths, width: int, heads: int, layers: int = 1, dropout: float = 0.1) -> None:
        super().__init__()
        for name in ("distance", "climb", "nodes"):
            self.register_buffer(name, torch.from_numpy(getattr(paths, name)), persistent=False)
        count = len(paths.distance)
        self.own = nn.Parameter(torch.empty(count, width).normal_(0.0, 0.02))
        self.far = nn.Parameter(torch.empty(int(paths.distance.max()), 1).normal_(0.0, 0.02))
        self.between = nn.Parameter(torch.empty(count, 1).normal_(0.0, 0.02))
        self.attention = nn.ModuleList(
            BiasedAttention(width, heads, dropout, last=layer == layers) for layer in range(1, layers + 1)
        )
        self.feed = nn.ModuleList(FeedForward(width, dropout) for _ in range(layers - 1))
        initialise(self)

    def forward(self, vectors: Tensor) -> Tensor:
        """(L, D) to (L, D)."""
        bias = self.bias()
        vectors = self.attention[0](vectors + self.own, bias)
        for feed, attention in zip(self.feed, self.attention[1:], strict=True):
            vectors = attention(feed(vectors), bias)
        return vectors

    def bias(self) -> Tensor:
        """What attention adds for each pair (L, L): a number for its distance and the mean over nodes on the way."""
        far = F.embedding(self.distance, F.pad(self.far, (0, 0, 1, 0)))  # a node is at no distance from itself
        climbs = F.embedding(self.nodes, F.pad(self.between, (0, 0, 0, 1))).sum(dim=1)  # (climbs, 1)
        half = F.embedding(self.climb, climbs).squeeze(2)  # (L, L)
        return far.squeeze(2) + (half + half.T) / self.distance.clamp(min=1)


class BiasedAttention(nn.Module):
    """Self-attention with a bias, residual and norm."""

    def __init__(self, width: int, heads: int, dropout: float, last: bool) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.value, self.out = (nn.Linear(width, width) for _ in range(3))
        self.key = nn.Linear(width, width, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width, eps=EPSILON, bias=not last)

    def forward(self, vectors: Tensor, bias: Tensor) -> Tensor:
        """(L, D) to (L, D)."""
        query, key, value = (
            part(vectors).unflatten(1, (self.heads, -1)).transpose(0, 1).unsqueeze(0)  # (1, heads, L, D / heads)
            for part in (self.query, self.key, self.value)
        )
        drop = self.dropout.p if self.training else 0.0
        read = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=drop)
        read = self.out(read.squeeze(0).transpose(0, 1).flatten(1))  # (L, D)
        normed: Tensor = self.norm(vectors + self.dropout(read))
        return normed


class FeedForward(nn.Module):
    """Two linear layers, four times as wide between them, residual and norm."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )
        self.norm = nn.LayerNorm(width, eps=EPSILON)

    def forward(self, vectors: Tensor) -> Tensor:
        """(L, D) to (L, D)."""
        normed: Tensor = self.norm(vectors + self.net(vectors))
        return normed
