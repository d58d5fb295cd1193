"""HiMatch: documents and labels meet in one space, where a document lies near its labels and far from others.

Chen et al., Hierarchy-aware Label Semantics Matching Network for Hierarchical Text Classification, ACL 2021.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from tokenizers import Tokenizer
from torch import Tensor, nn

from hill.data import Documents
from hill.encoders import TextEncoder
from hill.models.base import (
    COUNTS_FILE,
    GCN_AXES,
    MAX_WIDTH,
    FamilyConfig,
    FamilyHead,
    HTCModel,
    ModelConfig,
    child_priors,
    total,
)
from hill.models.layers import Descriptions, LabelGCN
from hill.settings import check_at_least, within
from hill.taxonomy import Taxonomy
from hill.types import Batch, Output

COMMON = 0.8
"""Words in more than this share of the documents describe nothing."""


CHUNK = 256
"""Labels described at a time."""


WORD = re.compile(r"\w\w+")


def best_words(documents: Documents, count: int) -> list[list[str]]:
    """For each label the words with the highest mean TF-IDF over its documents, best first.

    The released code takes the vocabulary of a vectoriser, whose order its sort does not change, after a list of stop
    words. Here the weights (1 + ln tf) ln(n / df), of length 1 a document, and the limit `COMMON` leave those behind.
    """
    words, weights = _tfidf(documents.texts)
    by_label: Any = documents.labels.T.tocsr().astype(np.float64)
    best: list[list[str]] = []
    for start in range(0, by_label.shape[0], CHUNK):
        sums = (by_label[start : start + CHUNK] @ weights).tocsr()
        for low, high in zip(sums.indptr, sums.indptr[1:], strict=False):
            found, value = sums.indices[low:high], sums.data[low:high]
            best.append([words[word] for word in found[np.lexsort((found, -value))[:count]]])
    return best


def _tfidf(texts: Sequence[str]) -> tuple[list[str], Any]:
    """The words of these texts in alphabetical order, and their weights (texts, words)."""
    known: dict[str, int] = {}
    found = [[known.setdefault(word, len(known)) for word in WORD.findall(text.lower())] for text in texts]
    words = sorted(known)
    place = np.argsort([known[word] for word in words])
    starts = np.cumsum([0, *(len(each) for each in found)])
    flat = np.fromiter((word for each in found for word in each), dtype=np.int64, count=int(starts[-1]))
    table: Any = csr_array((np.ones(len(flat)), place[flat], starts), shape=(len(texts), len(words)))
    table.sum_duplicates()
    spread = np.bincount(table.indices, minlength=len(words))
    rarity = np.where(spread > COMMON * len(texts), 0.0, np.log(len(texts) / np.maximum(spread, 1)))
    table.data = (1 + np.log(table.data)) * rarity[table.indices]
    table.eliminate_zeros()
    length = np.sqrt(table.power(2).sum(axis=1))
    table.data /= np.repeat(length, np.diff(table.indptr))
    return words, table


NEAR = 0.01
"""Squared distance to the parent of its label that a document may keep."""


class Drawn(NamedTuple):
    """Labels to compare each document with (B), and whether there is one (B)."""

    label: Tensor
    parent: Tensor
    sibling: Tensor
    other: Tensor
    has_label: Tensor
    has_sibling: Tensor
    has_other: Tensor


def matching(text: Tensor, labels: Tensor, drawn: Drawn, margin: float) -> tuple[Tensor, Tensor]:
    """L_joint and L_match of documents (B, J) and labels (L, J), each term a mean over documents that have it."""
    own, parent, sibling, other = ((text - labels[drawn[i]]).square().mean(dim=1) for i in range(4))  # (B)
    near = F.relu(parent - NEAR / text.shape[1])
    joint = _mean(own, drawn.has_label) + _mean(near, drawn.has_label)
    fine = _mean(F.relu(own - sibling + margin / 2), drawn.has_sibling)
    return joint, fine + _mean(F.relu(own - other + margin), drawn.has_other)


class Draw(nn.Module):
    """Draws for each document one of its labels, a parent and a sibling of that label, and a label it does not have.

    Roots hang from one more node, so that they are siblings of each other; a root's parent is itself.
    """

    child: Tensor
    parent: Tensor

    def __init__(self, child: Tensor, parent: Tensor, roots: Tensor, labels: int) -> None:
        super().__init__()
        self.top = labels
        self.register_buffer("child", torch.cat([child, roots]), persistent=False)
        self.register_buffer("parent", torch.cat([parent, torch.full_like(roots, labels)]), persistent=False)

    def forward(self, gold: Tensor) -> Drawn:
        """From the labels of each document (B, L), all choices equally likely."""
        label, has_label = _pick(gold)
        above = _reached(self.parent, self.child == label[:, None], self.top + 1)  # (B, L + 1)
        beside = _reached(self.child, above[:, self.parent], self.top)  # (B, L)
        parent, _ = _pick(above)
        sibling, has_sibling = _pick(beside & ~gold)
        other, has_other = _pick(~gold)
        parent = torch.where(parent == self.top, label, parent)
        return Drawn(label, parent, sibling, other, has_label, has_label & has_sibling, has_label & has_other)


def _pick(allowed: Tensor) -> tuple[Tensor, Tensor]:
    """One of the allowed columns of each row, and whether there is any: (B, L) to (B), (B)."""
    chance, column = torch.rand(allowed.shape, device=allowed.device).masked_fill(~allowed, -1.0).max(dim=1)
    return column, chance >= 0


def _reached(ends: Tensor, edges: Tensor, nodes: int) -> Tensor:
    """The nodes at the ends of these edges: (B, edges) to (B, nodes)."""
    times = torch.zeros(len(edges), nodes, device=edges.device)
    return times.index_add(1, ends, edges.to(times.dtype)) > 0


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    return (values * counted).sum() / counted.sum().clamp(min=1)


DESCRIPTIONS_FILE = "label_descriptions.json"


@dataclass(frozen=True)
class HiMatchConfig(FamilyConfig):
    """Settings of HiMatch."""

    gru_width: int = 100
    """rcnn: width of the GRU, each direction."""
    recursive: float = 0.0
    """Weight of the recursive regularisation, which the released code of HiMatch leaves off."""
    node_width: int = 300
    """Width of a label's node."""
    readout_dropout: float = 0.1
    """Dropout on the nodes that the structure receives and on the way to the joint space; released with rcnn: 0.5."""
    joint_width: int = 200
    """Width of the space where documents and labels meet."""
    joint: float = 1.0
    """Weight of the joint embedding loss, which draws a document to its label and that label's parent."""
    match: float = 1.0
    """Weight of the matching loss, which keeps a document nearer to its label than to a sibling or another label."""
    margin: float = 0.2
    """How much nearer than to another label; half as much suffices for a sibling."""
    description_words: int = 32
    """Words of the training documents that describe a label."""
    refresh: int = 50
    """Training steps after which the descriptions are encoded anew."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("node_width", "joint_width"):
            within(getattr(self, name), 1, MAX_WIDTH, f"model.{name}")
        for name in ("description_words", "refresh"):
            check_at_least(getattr(self, name), 1, f"model.{name}")
        for name in ("joint", "match", "margin"):
            check_at_least(getattr(self, name), 0, f"model.{name}")
        within(self.readout_dropout, 0, 1, "model.readout_dropout")


class HiMatch(HTCModel):
    """HiAGM's text propagation for the logits; in training also losses between documents and described labels.

    As in the released code: one label of each document is drawn a step, with its parent (itself at a root), a sibling
    and any other label; with a transformer both sides have length 1, so that at width 200 no margin is ever reached.
    Different: the drawn sibling is never a label of the document, and where there is none the term is left out; the
    descriptions are the best words of the training documents (see `best_words`), encoded without dropout; and no
    epoch is chosen by the test split. Like HiAGM's, the head has L · L · width weights: it is for hundreds of labels.
    """

    Config: ClassVar[type[ModelConfig]] = HiMatchConfig
    config: HiMatchConfig

    def __init__(self, text: TextEncoder, taxonomy: Taxonomy, config: HiMatchConfig, assets: Mapping[str, Any]) -> None:
        super().__init__(text, taxonomy, config, assets)
        labels, width, joint = len(taxonomy), config.node_width, config.joint_width
        self.head = FamilyHead(labels * width, taxonomy, config)
        edges = self.head.child, self.head.parent
        prior = child_priors(taxonomy, assets[COUNTS_FILE])
        self.spread = nn.Linear(text.width, labels * width)
        self.dropout = nn.Dropout(config.readout_dropout)
        self.structure = LabelGCN(*edges, prior, labels, width)
        self.text_view = _projector(labels * width, joint, config.readout_dropout)
        self.descriptions = Descriptions(assets[DESCRIPTIONS_FILE]["ids"], text.pad, text.width, config.refresh)
        self.align = nn.Identity() if text.width == width else nn.Linear(text.width, width)
        self.label_structure = LabelGCN(*edges, prior, labels, width)
        self.label_view = _projector(width, joint, config.readout_dropout)
        self.draw = Draw(*edges, torch.from_numpy(taxonomy.roots.copy()), labels)

    @classmethod
    def prepare(
        cls, documents: Documents, taxonomy: Taxonomy, config: HiMatchConfig, tokenizer: Tokenizer
    ) -> dict[str, Any]:
        """The token ids of each label's description, beside what every model knows."""
        texts = [
            " ".join(words or f"{label.name} {label.description}".split()[: config.description_words])
            for label, words in zip(taxonomy, best_words(documents, config.description_words), strict=True)
        ]
        ids = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        return super().prepare(documents, taxonomy, config, tokenizer) | {DESCRIPTIONS_FILE: {"ids": ids}}

    @property
    def axes(self) -> dict[str, str]:
        """The weights that follow the taxonomy."""
        rooms = ("structure", "label_structure")
        structure = {f"{room}.{name}": axes for room in rooms for name, axes in GCN_AXES.items()}
        views = {"text_view.0.weight": "-Z", "descriptions.vectors": "K-"}
        return super().axes | {"head.weight": "LZ", "spread.weight": "L-", "spread.bias": "L"} | views | structure

    def forward(self, batch: Batch) -> Output:
        """Logits (B, L) of a batch; with labels the classification loss, in training also those of matching."""
        spread = self.dropout(self.spread(self.text(batch.ids, batch.mask)))
        nodes = self.structure(spread.unflatten(1, (-1, self.config.node_width))).flatten(1)  # (B, L · W)
        logits = self.head(nodes)
        if batch.labels is None:
            return Output(logits)
        parts = {"labels": self.label_loss(logits, batch.labels)} | self.head.regularisation()
        return total(logits, parts | self.match(nodes, batch.labels) if self.training else parts)

    def match(self, nodes: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """L_joint and L_match of documents, given their nodes (B, L · W), with labels drawn at random."""
        described = self.align(self.descriptions(self.text))  # (L, W)
        known = self.label_view(self.label_structure(described.unsqueeze(0))[0]).float()  # (L, J)
        found = self.text_view(nodes).float()  # (B, J)
        if self.text.pretrained:
            known, found = F.normalize(known, dim=1), F.normalize(found, dim=1)
        joint, match = matching(found, known, self.draw(labels.bool()), self.config.margin)
        return {"joint": self.config.joint * joint, "match": self.config.match * match}


def _projector(width: int, joint: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, joint), nn.ReLU(), nn.Dropout(dropout), nn.Linear(joint, joint))
