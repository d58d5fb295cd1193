"""HiMatch: texts and labels in one space, in which a text is close to its labels and far from others.

Chen et al., Hierarchy-aware Label Semantics Matching Network for Hierarchical Text Classification, ACL 2021. The logits
are those of HiAGM's text propagation; in training, labels described by words are matched with the texts.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

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
from hill.types import AnyBatch, Output

DESCRIPTIONS_FILE = "label_descriptions.json"
WORD = re.compile(r"\w\w+")
MAX_DOCUMENT_SHARE = 0.8
"""Words in more than this share of the documents describe no label."""
CHUNK = 256
"""Labels that are described at once."""
PARENT_MARGIN = 0.01
"""Squared distance to the parent of its label that costs a document nothing."""


def best_words(documents: Documents, count: int) -> list[list[str]]:
    """The words with the highest mean TF-IDF over the documents of each label, best first.

    The released code takes the vocabulary of a vectoriser in its own order, since its sort has no effect, and removes
    stop words. Here common words get little weight or none, see `_tfidf`.
    """
    words, weights = _tfidf(documents.texts)
    by_label: Any = documents.labels.T.tocsr().astype(np.float64)
    best: list[list[str]] = []
    for start in range(0, by_label.shape[0], CHUNK):
        sums = (by_label[start : start + CHUNK] @ weights).tocsr()
        for low, high in zip(sums.indptr, sums.indptr[1:], strict=False):
            columns, values = sums.indices[low:high], sums.data[low:high]
            best.append([words[column] for column in columns[np.lexsort((columns, -values))[:count]]])
    return best


def _tfidf(texts: Sequence[str]) -> tuple[list[str], Any]:
    """The words of these texts, sorted, and weights (1 + ln tf) · ln(n / df) of length 1 per text: (texts, words)."""
    vocabulary: dict[str, int] = {}
    ids = [[vocabulary.setdefault(word, len(vocabulary)) for word in WORD.findall(text.lower())] for text in texts]
    words = sorted(vocabulary)
    column = np.argsort([vocabulary[word] for word in words])
    starts = np.cumsum([0, *map(len, ids)])
    flat = np.fromiter((word for row in ids for word in row), dtype=np.int64, count=int(starts[-1]))
    table: Any = csr_array((np.ones(len(flat)), column[flat], starts), shape=(len(texts), len(words)))
    table.sum_duplicates()
    df = np.bincount(table.indices, minlength=len(words))
    idf = np.where(df > MAX_DOCUMENT_SHARE * len(texts), 0.0, np.log(len(texts) / np.maximum(df, 1)))
    table.data = (1 + np.log(table.data)) * idf[table.indices]
    table.eliminate_zeros()
    table.data /= np.repeat(np.sqrt(table.power(2).sum(axis=1)), np.diff(table.indptr))
    return words, table


class Draw(nn.Module):
    """Draws per document one of its labels, a parent and a sibling of that label, and a label that it does not have.

    Roots have a virtual parent, so they are siblings of each other; the drawn parent of a root is the root itself.
    """

    child: Tensor
    parent: Tensor

    def __init__(self, child: Tensor, parent: Tensor, roots: Tensor, labels: int) -> None:
        super().__init__()
        self.virtual_root = labels
        self.register_buffer("child", torch.cat([child, roots]), persistent=False)
        self.register_buffer("parent", torch.cat([parent, torch.full_like(roots, labels)]), persistent=False)

    def forward(self, gold: Tensor) -> tuple[Tensor, Tensor]:
        """Labels of documents (B, L) to label, parent, sibling and other (4, B), and whether each exists (4, B)."""
        label, has_label = _pick(gold)
        parents = _ends(self.parent, self.child == label[:, None], self.virtual_root + 1)  # (B, L + 1)
        siblings = _ends(self.child, parents[:, self.parent], self.virtual_root)  # (B, L)
        parent, has_parent = _pick(parents)
        sibling, has_sibling = _pick(siblings & ~gold)
        other, has_other = _pick(~gold)
        parent = torch.where(parent == self.virtual_root, label, parent)
        exists = torch.stack([has_label, has_parent, has_sibling, has_other]) & has_label
        return torch.stack([label, parent, sibling, other]), exists


def _pick(allowed: Tensor) -> tuple[Tensor, Tensor]:
    """A random allowed column per row, all equally likely, and whether there is any: (B, L) to (B), (B)."""
    chance, column = torch.rand(allowed.shape, device=allowed.device).masked_fill(~allowed, -1.0).max(dim=1)
    return column, chance >= 0


def _ends(ends: Tensor, edges: Tensor, nodes: int) -> Tensor:
    """The nodes at the ends of selected edges: (B, edges) to (B, nodes)."""
    counts = torch.zeros(len(edges), nodes, device=edges.device)
    return counts.index_add(1, ends, edges.to(counts.dtype)) > 0


def matching(text: Tensor, labels: Tensor, drawn: Tensor, exists: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """L_joint and L_match of texts (B, J) and labels (L, J), each term averaged over the documents that have it."""
    own, parent, sibling, other = (text - labels[drawn]).square().mean(dim=2)  # (B) each
    near = F.relu(parent - PARENT_MARGIN / text.shape[1])
    terms = torch.stack([own, near, F.relu(own - sibling + margin / 2), F.relu(own - other + margin)])
    means = (terms * exists).sum(dim=1) / exists.sum(dim=1).clamp(min=1)
    return means[:2].sum(), means[2:].sum()


@dataclass(frozen=True)
class HiMatchConfig(FamilyConfig):
    """Settings of HiMatch."""

    gru_width: int = 100
    """rcnn: width of the GRU, each direction."""
    recursive: float = 0.0
    """Weight of the recursive regularisation, which is off in the released code of HiMatch."""
    node_width: int = 300
    """Width W of a label's node."""
    readout_dropout: float = 0.1
    """Dropout on the nodes before the GCN and in the projections to the joint space; released with rcnn: 0.5."""
    joint_width: int = 200
    """Width J of the joint space of texts and labels."""
    joint: float = 1.0
    """Weight of the joint embedding loss, which pulls a document to its label and that label's parent."""
    match: float = 1.0
    """Weight of the matching loss, which keeps a document closer to its label than to a sibling or another label."""
    margin: float = 0.2
    """Margin of the matching loss for other labels; half of it for siblings."""
    description_words: int = 32
    """Words of the training documents that describe a label."""
    refresh: int = 50
    """Training steps between encodings of the descriptions."""

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
    """Text vectors (B, D) to nodes (B, L, W) and logits (B, L); in training also losses in the joint space (B, J).

    As in the released code: one label per document is drawn in each step, with its parent (itself for a root), a
    sibling and any other label; with a transformer both sides are normalised to length 1, so at J = 200 no margin is
    ever reached. Different: a drawn sibling is never a label of the document, and without one the term is left out;
    descriptions are the best words of the training documents, encoded without dropout; the test split is not used to
    choose the epoch. Like HiAGM's, the head has L² · W weights, so the model is for hundreds of labels.
    """

    Config: ClassVar[type[ModelConfig]] = HiMatchConfig
    steps_are_equal: ClassVar[bool] = False
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
        """The assets of every model, and the token ids of each label's description."""
        texts = [
            " ".join(words or f"{label.name} {label.description}".split()[: config.description_words])
            for label, words in zip(taxonomy, best_words(documents, config.description_words), strict=True)
        ]
        ids = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        return super().prepare(documents, taxonomy, config, tokenizer) | {DESCRIPTIONS_FILE: {"ids": ids}}

    @property
    def axes(self) -> dict[str, str]:
        """The weights that depend on the taxonomy."""
        gcns = {f"{gcn}.{name}": axes for gcn in ("structure", "label_structure") for name, axes in GCN_AXES.items()}
        views = {"text_view.0.weight": "-Z", "descriptions.vectors": "K-"}
        return super().axes | {"head.weight": "LZ", "spread.weight": "L-", "spread.bias": "L"} | views | gcns

    def forward(self, batch: AnyBatch) -> Output:
        """Logits (B, L) of a batch; with labels the classification loss, in training also the matching losses."""
        spread = self.dropout(self.spread(self.text.read(batch)))
        nodes = self.structure(spread.unflatten(1, (-1, self.config.node_width))).flatten(1)  # (B, L · W)
        logits = self.head(nodes)
        if batch.labels is None:
            return Output(logits)
        parts = {"labels": self.label_loss(logits, batch.labels)} | self.head.regularisation()
        return total(logits, parts | self.match(nodes, batch.labels) if self.training else parts)

    def match(self, nodes: Tensor, gold: Tensor) -> dict[str, Tensor]:
        """L_joint and L_match of documents, given their nodes (B, L · W) and labels (B, L)."""
        described = self.align(self.descriptions(self.text))  # (L, W)
        labels = self.label_view(self.label_structure(described.unsqueeze(0))[0]).float()  # (L, J)
        text = self.text_view(nodes).float()  # (B, J)
        if self.text.pretrained:
            labels, text = F.normalize(labels, dim=1), F.normalize(text, dim=1)
        drawn, exists = self.draw(gold.bool())
        joint, match = matching(text, labels, drawn, exists, self.config.margin)
        return {"joint": self.config.joint * joint, "match": self.config.match * match}


def _projector(width: int, joint: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, joint), nn.ReLU(), nn.Dropout(dropout), nn.Linear(joint, joint))
