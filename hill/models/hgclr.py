"""HGCLR: contrastive learning with a second view of each document that keeps only the tokens about its labels.

Wang et al., Incorporating Hierarchy into Text Encoder: a Contrastive Learning Approach for Hierarchical Text
Classification, ACL 2022. A Graphormer over the taxonomy selects these tokens, in training only; prediction is `Flat`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from hill.data import Documents
from hill.data.tokens import tokenize
from hill.encoders import TextEncoder, Transformer
from hill.errors import ConfigError
from hill.models.base import MAX_LAYERS, HTCModel, ModelConfig, total
from hill.models.layers import initialise, nt_xent
from hill.settings import check_at_least, within
from hill.taxonomy import Taxonomy
from hill.types import AnyBatch, Batch, Encoded, FloatArray, IntArray, Output, Packed

Int32Array = npt.NDArray[np.int32]
TOKENS_FILE = "label_tokens.json"
MAX_NAME_TOKENS = 64
MAX_TOKEN_HEADS = 8
"""Heads of the attention of tokens to labels; less if the width is not a multiple."""
EPSILON = 1e-12
"""Of the layer norms, as in BERT."""


class NodePaths(NamedTuple):
    """The paths between any two of L nodes: up from both to their lowest common ancestor, which is not on the path.

    A path has two halves, one from each node up to the ancestor. There are only as many halves as pairs of a node and
    an ancestor, so two indices describe a path of any length. In a DAG, a shared child makes no path shorter.
    """

    distance: Int32Array
    """Number of steps between two nodes (L, L), which is the number of nodes on the path."""
    half_path: Int32Array
    """Index of the half path from the first of two nodes (L, L); that from the second is at the transposed place."""
    nodes: Int32Array
    """The nodes of each half path (halves, longest), padded with L."""


def find_paths(edges: IntArray, count: int) -> NodePaths:
    """The shortest paths in a forest or DAG with rows (child, parent); a virtual root is above all roots."""
    child, parent = edges.T
    roots = np.setdiff1d(np.arange(count), child)
    child, parent = np.concatenate([child, roots]), np.concatenate([parent, np.full(len(roots), count)])
    down = csr_array((np.ones(len(child)), (parent, child)), shape=(count + 1, count + 1))
    steps, above = shortest_path(down, method="D", unweighted=True, return_predecessors=True)
    distance, ancestor = _common_ancestors(steps)
    tops, bottoms = np.nonzero(np.isfinite(steps[:, :count]))
    index = np.zeros((count + 1, count), dtype=np.int32)
    index[tops, bottoms] = np.arange(len(tops))
    node, nodes = bottoms, []
    while (below := node != tops).any():
        nodes.append(np.where(below, node, count))
        node = np.where(below, above[tops, node], node)
    half_path = index[ancestor, np.arange(count)[:, None]]
    return NodePaths(distance, half_path, np.stack(nodes, axis=1).astype(np.int32))


def _common_ancestors(steps: FloatArray) -> tuple[Int32Array, Int32Array]:
    """Distance and lowest common ancestor of any two nodes (L, L), given steps down (L + 1, L + 1) with the root last.

    Nodes are added after their parents, which have fewer ancestors. A new node is above none of those before it, so its
    path to one of them is one step longer than that of its nearest parent, with the same ancestor.
    """
    order = np.argsort(np.isfinite(steps).sum(axis=0), kind="stable")
    distance, ancestor = np.zeros(steps.shape, dtype=np.int32), np.diag(np.arange(len(steps), dtype=np.int32))
    for place, node in enumerate(order[1:], start=1):
        before, parents = order[:place], np.flatnonzero(steps[:, node] == 1)
        nearest = parents[distance[np.ix_(parents, before)].argmin(axis=0)]
        distance[node, before] = distance[before, node] = distance[nearest, before] + 1
        ancestor[node, before] = ancestor[before, node] = ancestor[nearest, before]
    return distance[:-1, :-1].copy(), ancestor[:-1, :-1]


class Graphormer(nn.Module):
    """Label vectors (L, D) to (L, D): layers of self-attention with a bias from the taxonomy, and feed-forward nets.

    As in the released code: each label has a learned vector, all heads and layers share the bias, and the last layer
    ends after its attention. Different: no limit of 20 steps and 15 nodes per path, any order of labels, several
    parents; and no weights without effect: the last feed-forward net, the biases of keys and of the last norm (equal
    for all labels, they cancel in a softmax over labels), rows for padding and for distances that do not occur.
    """

    distance: Tensor
    half_path: Tensor
    nodes: Tensor

    def __init__(self, paths: NodePaths, width: int, heads: int, layers: int = 1, dropout: float = 0.1) -> None:
        super().__init__()
        for name in ("distance", "half_path", "nodes"):
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
        """The attention bias of each pair (L, L): a weight for its distance and the mean weight of its path."""
        far = F.embedding(self.distance, F.pad(self.far, (0, 0, 1, 0)))  # 0 for the distance 0
        halves = F.embedding(self.nodes, F.pad(self.between, (0, 0, 0, 1))).sum(dim=1)  # (halves, 1)
        half = F.embedding(self.half_path, halves).squeeze(2)  # (L, L)
        return far.squeeze(2) + (half + half.T) / self.distance.clamp(min=1)


class BiasedAttention(nn.Module):
    """Self-attention with a bias, residual and layer norm: (L, D) to (L, D)."""

    def __init__(self, width: int, heads: int, dropout: float, last: bool) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.value, self.out = (nn.Linear(width, width) for _ in range(3))
        self.key = nn.Linear(width, width, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width, eps=EPSILON, bias=not last)

    def forward(self, vectors: Tensor, bias: Tensor) -> Tensor:
        """Vectors (L, D) and the bias (L, L) to vectors (L, D)."""
        query, key, value = (
            part(vectors).unflatten(1, (self.heads, -1)).transpose(0, 1).unsqueeze(0)  # (1, heads, L, D / heads)
            for part in (self.query, self.key, self.value)
        )
        dropout = self.dropout.p if self.training else 0.0
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout)
        attended = self.out(attended.squeeze(0).transpose(0, 1).flatten(1))  # (L, D)
        normed: Tensor = self.norm(vectors + self.dropout(attended))
        return normed


class FeedForward(nn.Module):
    """Two linear layers with a GELU, residual and layer norm: (L, D) to (L, D)."""

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


class TokenKeeper(nn.Module):
    """Selects the tokens of the second view, from the attention of tokens (B, T, D) to labels (L, D).

    As in the released code: 8 heads, averaged, and no token is exempt. Different: no projections of values and output,
    which have no effect, and no bias of keys, which cancels.
    """

    def __init__(self, width: int, threshold: float) -> None:
        super().__init__()
        self.heads = max(heads for heads in range(1, MAX_TOKEN_HEADS + 1) if width % heads == 0)
        self.threshold = threshold
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        initialise(self)

    def forward(self, words: Tensor, vectors: Tensor, labels: Tensor) -> Tensor:
        """Words (…, D), label vectors (L, D) and the labels of the documents of words (…, L) to 1 or 0 per word (…)."""
        return keep_tokens(self.attend(words, vectors), labels, self.threshold)

    def attend(self, words: Tensor, vectors: Tensor) -> Tensor:
        """The attention of each word (…, D) to each label (…, L), which sums to 1 over the labels."""
        query = self.query(words).unflatten(-1, (self.heads, -1))  # (…, heads, D / heads)
        key = self.key(vectors).unflatten(1, (self.heads, -1))  # (L, heads, D / heads)
        scores = torch.einsum("...hd,lhd->...hl", query, key) / key.shape[2] ** 0.5
        attention: Tensor = scores.softmax(dim=-1).mean(dim=-2)
        return attention


def keep_tokens(attention: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """1 for words whose score is above the threshold, with the gradient of the score, else 0: (…, L) to (…).

    The score of a word is the sum of a Gumbel softmax over the labels of its document (…, L). As in the released code,
    its logits are the attention weights and not their logarithms, so the noise decides more than they do. There, what
    should be 1 is so only up to rounding.
    """
    sampled = F.gumbel_softmax(attention, tau=1.0, dim=-1)
    scores = torch.einsum("...l,...l->...", sampled, labels.to(sampled.dtype))
    return (scores > threshold).to(scores.dtype) * (1 + (scores - scores.detach()))


@dataclass(frozen=True)
class HGCLRConfig(ModelConfig):
    """Settings of HGCLR."""

    REMOVED: ClassVar[dict[str, Any]] = {"heads": 0, "keep_temperature": None}

    layers: int = 1
    """Layers of the Graphormer over labels; HILL's comparison has 2."""
    keep: float = 0.02
    """Threshold γ: a token is kept in the second view if its score for the document's labels is above."""
    contrast: float = 0.1
    """Weight λ of the contrastive loss."""
    temperature: float = 1.0
    """Temperature τ of the contrastive loss."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self.layers, 1, MAX_LAYERS, "model.layers")
        check_at_least(self.keep, 0, "model.keep")
        check_at_least(self.contrast, 0, "model.contrast")
        check_at_least(self.temperature, 1e-3, "model.temperature")


class HGCLR(HTCModel):
    """A linear head on text vectors (B, D); the loss is the BCE of both views + λ NT-Xent between them.

    Different from the released code: documents are padded to the longest of their batch, not cut to 510 tokens and
    padded to 512; the temperature is that of the contrastive loss, and the Gumbel softmax has 1 (the released option
    reaches only the latter, in HILL's copy both); two classifiers without effect are left out. The Graphormer has as
    many heads as the encoder. Memory grows with L².
    """

    Config: ClassVar[type[ModelConfig]] = HGCLRConfig
    config: HGCLRConfig
    text: Transformer
    name_ids: Tensor
    name_mask: Tensor

    def __init__(self, text: TextEncoder, taxonomy: Taxonomy, config: HGCLRConfig, assets: Mapping[str, Any]) -> None:
        super().__init__(text, taxonomy, config, assets)
        width, encoder = text.width, self._encoder
        if not hasattr(encoder, "embeddings") or encoder.get_input_embeddings().embedding_dim != width:
            raise ConfigError(
                f"hgclr cannot read the embeddings of an encoder of type '{encoder.config.model_type}'; choose one "
                "whose embeddings are as wide as its states, such as BERT, RoBERTa or DistilBERT"
            )
        heads = math.gcd(width, int(getattr(encoder.config, "num_attention_heads", 0)) or max(1, width // 64))
        paths = find_paths(taxonomy.edge_array, len(taxonomy))
        self.structure = Graphormer(paths, width, heads, config.layers, config.dropout)
        self.keeper = TokenKeeper(width, config.keep)
        self.head = nn.Linear(width, len(taxonomy))
        self.view = nn.Sequential(
            *(nn.Dropout(config.dropout), nn.Linear(width, width), nn.ReLU()),
            *(nn.Dropout(config.dropout), nn.Linear(width, width)),
        )
        initialise(self.head)
        initialise(self.view)
        names = [torch.tensor(ids, dtype=torch.long) for ids in assets[TOKENS_FILE]]
        for name, rows in (("name_ids", names), ("name_mask", [torch.ones_like(ids) for ids in names])):
            self.register_buffer(name, pad_sequence(rows, batch_first=True), persistent=False)

    @property
    def _encoder(self) -> Any:
        return self.text.encoder

    @classmethod
    def prepare(
        cls, documents: Documents, taxonomy: Taxonomy, config: HGCLRConfig, tokenizer: Tokenizer
    ) -> dict[str, Any]:
        """The assets of every model, and the tokens of the labels' names."""
        names = tokenize([label.name for label in taxonomy], tokenizer, MAX_NAME_TOKENS)
        tokens = {TOKENS_FILE: [names[row].tolist() for row in range(len(taxonomy))]}
        return super().prepare(documents, taxonomy, config, tokenizer) | tokens

    @property
    def axes(self) -> dict[str, str]:
        """The weights that depend on the taxonomy."""
        return super().axes | {"structure.own": "L-", "structure.between": "L-", "structure.far": "D-"}

    def forward(self, batch: AnyBatch) -> Output:
        """Logits (B, L) of the documents; the second view exists only if there are labels."""
        assert not isinstance(batch, Encoded)
        text = self.text.read(batch)  # h (B, D)
        logits = self.head(text)
        if batch.labels is None:
            return Output(logits)
        second = self.second_view(batch, batch.labels)  # ĥ (B, D)
        parts = {
            "labels": self.label_loss(logits, batch.labels),
            "second_view": self.label_loss(self.head(second), batch.labels),
        }
        if self.config.contrast:
            loss = nt_xent(self.view(text), self.view(second), self.config.temperature)
            parts["contrast"] = self.config.contrast * loss
        return total(logits, parts)

    def second_view(self, batch: Batch | Packed, labels: Tensor) -> Tensor:
        """ĥ (B, D): the vectors of the documents with the word embeddings of all other tokens set to 0.

        Their positions stay and are attended to.
        """
        words = self.text.embed(batch)  # (B, T, D) or (P, D)
        if isinstance(batch, Packed):
            own = F.pad(labels, (0, 0, 0, 1))[batch.document]  # (P, L); padding documents have no labels
        else:
            own = labels[:, None].expand(-1, words.shape[1], -1)  # (B, T, L)
        with torch.autocast(words.device.type, enabled=False):
            keep = self.keeper(words.float(), self.structure(self.label_vectors()), own)  # (B, T) or (P)
        return self.text.read_embedded(batch, words * keep.unsqueeze(-1).to(words.dtype))

    def label_vectors(self) -> Tensor:
        """The mean of the encoder's embeddings, positions included, over the tokens of each label's name: (L, D)."""
        tokens = self._encoder.embeddings(input_ids=self.name_ids)  # (L, T, D)
        mask = self.name_mask.unsqueeze(2)
        mean: Tensor = (tokens * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        return mean
