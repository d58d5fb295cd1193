"""HiMatch: documents and labels meet in one space, where a document lies near its labels and far from others.

Chen et al., Hierarchy-aware Label Semantics Matching Network for Hierarchical Text Classification, ACL 2021.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from hill.data import Documents
from hill.data.keywords import best_words
from hill.models.base import COUNTS_FILE, HTCModel, ModelConfig, total
from hill.models.family import GCN_AXES, FamilyConfig, FamilyHead, child_priors
from hill.nn import TextEncoder
from hill.nn.descriptions import Descriptions
from hill.nn.labelgcn import LabelGCN
from hill.nn.matching import Draw, matching
from hill.settings import at_least
from hill.taxonomy import Taxonomy
from hill.types import Batch, Output

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
        for name in ("node_width", "joint_width", "description_words", "refresh"):
            at_least(getattr(self, name), 1, f"model.{name}")
        for name in ("joint", "match", "margin", "readout_dropout"):
            at_least(getattr(self, name), 0, f"model.{name}")


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
