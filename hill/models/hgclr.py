"""HGCLR: the taxonomy makes a second view of each document, tied to the first by a contrastive loss, in training only.

Wang et al., Incorporating Hierarchy into Text Encoder: a Contrastive Learning Approach for Hierarchical Text
Classification, ACL 2022. Details follow the released code; the docstrings say where not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

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
from hill.types import Batch, FloatArray, IntArray, Output

Int32Array = npt.NDArray[np.int32]


EPSILON = 1e-12
"""In the norms, as BERT has it."""


@dataclass(frozen=True)
class NodePaths:
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


def find_paths(edges: IntArray, count: int) -> NodePaths:
    """The ways between nodes, given as rows (child, parent) of a forest or DAG; a virtual root lies above all roots.

    Of several shortest ways in a DAG one is taken, always the same.
    """
    steps, above = shortest_path(_down(edges, count), method="D", unweighted=True, return_predecessors=True)
    tops, bottoms = np.nonzero(np.isfinite(steps[:, :count]))
    climbs = np.zeros((count + 1, count), dtype=np.int32)
    climbs[tops, bottoms] = np.arange(len(tops))
    distance, top = _meet(steps)
    return NodePaths(distance, climbs[top, np.arange(count)[:, None]], _climb(tops, bottoms, above, count))


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

    def __init__(self, paths: NodePaths, width: int, heads: int, layers: int = 1, dropout: float = 0.1) -> None:
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


MOST_HEADS = 8


class TokenKeeper(nn.Module):
    """Which tokens of documents are kept, from the attention of tokens to labels.

    As in HGCLR's code: 8 heads (or the most below that divide D), averaged; the attention weights themselves, not
    their logarithms, are the logits of the Gumbel softmax, so that its noise decides more than they do; no token is
    exempt. Different: no projections of values and output, which nothing reads, and no bias of keys, which cancels.
    """

    def __init__(self, width: int, threshold: float, temperature: float = 1.0) -> None:
        super().__init__()
        self.heads = max(heads for heads in range(1, MOST_HEADS + 1) if width % heads == 0)
        self.threshold = threshold
        self.temperature = temperature
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        initialise(self)

    def forward(self, words: Tensor, vectors: Tensor, labels: Tensor) -> Tensor:
        """Words (B, T, D), vectors of labels (L, D) and the labels of documents (B, L) to 1 or 0 a token (B, T)."""
        scores = gold_scores(self.attend(words, vectors), labels, self.temperature)
        return straight_through(scores, self.threshold)

    def attend(self, words: Tensor, vectors: Tensor) -> Tensor:
        """How much each token attends to each label: (B, T, L), 1 over the labels."""
        query = self.query(words).unflatten(2, (self.heads, -1))  # (B, T, heads, D / heads)
        key = self.key(vectors).unflatten(1, (self.heads, -1))  # (L, heads, D / heads)
        scores = torch.einsum("bthd,lhd->bthl", query, key) / key.shape[2] ** 0.5
        attention: Tensor = scores.softmax(dim=3).mean(dim=2)
        return attention


def gold_scores(attention: Tensor, labels: Tensor, temperature: float = 1.0) -> Tensor:
    """k_t: what a Gumbel softmax over the labels gives to those of the document: (B, T, L), (B, L) to (B, T)."""
    sampled = F.gumbel_softmax(attention, tau=temperature, dim=2)
    return torch.einsum("btl,bl->bt", sampled, labels.to(sampled.dtype))


def straight_through(scores: Tensor, threshold: float) -> Tensor:
    """Exactly 1 where a score is above the threshold, with the gradient of the score, else 0, without one.

    So it is in HGCLR's code, where what should be 1 is so only up to rounding.
    """
    return (scores > threshold).to(scores.dtype) * (1 + (scores - scores.detach()))


TOKENS_FILE = "label_tokens.json"


LONGEST_NAME = 64
"""Tokens that are read of a label's name."""


@dataclass(frozen=True)
class HGCLRConfig(ModelConfig):
    """Settings of HGCLR."""

    layers: int = 1
    """Layers of the Graphormer over labels; HILL's comparison has 2."""
    heads: int = 0
    """Heads of the Graphormer; 0 for as many as the encoder has."""
    keep: float = 0.02
    """Threshold γ: a token is kept in the second view if it speaks for the document's labels by more than this."""
    keep_temperature: float = 1.0
    """Temperature of the Gumbel softmax that says for which labels a token speaks."""
    contrast: float = 0.1
    """Weight λ of the contrastive loss."""
    temperature: float = 1.0
    """Temperature τ of the contrastive loss."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self.layers, 1, MAX_LAYERS, "model.layers")
        for name in ("heads", "keep", "contrast"):
            check_at_least(getattr(self, name), 0, f"model.{name}")
        for name in ("keep_temperature", "temperature"):
            check_at_least(getattr(self, name), 1e-3, f"model.{name}")


class HGCLR(HTCModel):
    """A linear head on the text's vector; with labels, BCE of both views + λ NT-Xent between them.

    The released code cuts documents to 510 tokens and pads all to 512; here a batch is as long as its documents. Its
    temperature is that of the Gumbel softmax alone, and one for both in the copy that HILL compares with; here there
    are two. Two classifiers that nothing reads are left out. Memory grows with the square of the number of labels.
    """

    Config: ClassVar[type[ModelConfig]] = HGCLRConfig
    config: HGCLRConfig
    text: Transformer
    name_ids: Tensor
    name_mask: Tensor

    def __init__(self, text: TextEncoder, taxonomy: Taxonomy, config: HGCLRConfig, assets: Mapping[str, Any]) -> None:
        super().__init__(text, taxonomy, config, assets)
        width, heads = text.width, config.heads or _own_heads(self.text)
        _check_encoder(self.text, heads)
        paths = find_paths(taxonomy.edge_array, len(taxonomy))
        self.structure = Graphormer(paths, width, heads, config.layers, config.dropout)
        self.keeper = TokenKeeper(width, config.keep, config.keep_temperature)
        self.head = nn.Linear(width, len(taxonomy))
        self.view = nn.Sequential(
            nn.Dropout(config.dropout),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(width, width),
        )
        for part in (self.head, self.view):
            initialise(part)
        names = [torch.tensor(ids, dtype=torch.long) for ids in assets[TOKENS_FILE]]
        for name, rows in (("name_ids", names), ("name_mask", [torch.ones_like(ids) for ids in names])):
            self.register_buffer(name, pad_sequence(rows, batch_first=True), persistent=False)

    @classmethod
    def prepare(
        cls, documents: Documents, taxonomy: Taxonomy, config: HGCLRConfig, tokenizer: Tokenizer
    ) -> dict[str, Any]:
        """The tokens of the labels' names, beside what every model knows."""
        names = tokenize([label.name for label in taxonomy], tokenizer, LONGEST_NAME)
        known = super().prepare(documents, taxonomy, config, tokenizer)
        return known | {TOKENS_FILE: [names[row].tolist() for row in range(len(taxonomy))]}

    @property
    def axes(self) -> dict[str, str]:
        """The weights that follow the taxonomy."""
        return super().axes | {"structure.own": "L-", "structure.between": "L-", "structure.far": "D-"}

    def forward(self, batch: Batch) -> Output:
        """Logits (B, L) of the documents as they are; only with labels is there a second view."""
        text = self.text(batch.ids, batch.mask)  # h (B, D)
        logits = self.head(text)
        if batch.labels is None:
            return Output(logits)
        kept = self.second_view(batch.ids, batch.mask, batch.labels)  # ĥ (B, D)
        parts = {
            "labels": self.label_loss(logits, batch.labels),
            "second_view": self.label_loss(self.head(kept), batch.labels),
        }
        if self.config.contrast:
            parts["contrast"] = self.config.contrast * nt_xent(
                self.view(text), self.view(kept), self.config.temperature
            )
        return total(logits, parts)

    def second_view(self, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        """ĥ (B, D): the documents read again with only those words that speak for their labels.

        A word that is dropped leaves its place behind: positions stay, and attention still sees them.
        """
        words = self._encoder.get_input_embeddings()(ids)  # (B, T, D)
        with torch.autocast(words.device.type, enabled=False):
            keep = self.keeper(words, self.structure(self.label_vectors()), labels)  # (B, T)
        return self.read_words(words * keep.unsqueeze(2), mask)

    def label_vectors(self) -> Tensor:
        """The mean of the encoder's embeddings, positions included, over the tokens of each label's name: (L, D)."""
        tokens = self._encoder.embeddings(input_ids=self.name_ids)  # (L, T, D)
        mask = self.name_mask.unsqueeze(2)
        mean: Tensor = (tokens * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        return mean

    def read_words(self, words: Tensor, mask: Tensor) -> Tensor:
        """The vectors of documents whose word embeddings are given: (B, T, D) to (B, D)."""
        states = self._encoder(inputs_embeds=words, attention_mask=mask).last_hidden_state
        vectors: Tensor = self.text.dropout(self.text.pool(states, mask))
        return vectors

    @property
    def _encoder(self) -> Any:
        return self.text.encoder


def _own_heads(text: Transformer) -> int:
    """As many heads as the encoder has, or 64 wide each, as BERT's are."""
    return int(getattr(text.encoder.config, "num_attention_heads", 0)) or max(1, text.width // 64)


def _check_encoder(text: Transformer, heads: int) -> None:
    encoder: Any = text.encoder
    if text.width % heads:
        raise ConfigError(f"model.heads is {heads}; expected a divisor of the encoder's width {text.width}")
    if not hasattr(encoder, "embeddings") or encoder.get_input_embeddings().embedding_dim != text.width:
        raise ConfigError(
            f"hgclr cannot read the embeddings of an encoder of type '{encoder.config.model_type}'; choose one whose "
            "embeddings are as wide as its states, such as BERT, RoBERTa or DistilBERT"
        )
