"""HiTIN: a tree isomorphism network passes the text's vector up the coding tree and classifies all its levels.

Zhu et al., HiTIN: Hierarchy-aware Tree Isomorphism Network for Hierarchical Text Classification, ACL 2023.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from hill.data import Documents
from hill.encoders import TextEncoder
from hill.models.base import MAX_WIDTH, FamilyConfig, FamilyHead, ModelConfig, VectorModel, reorder_leaves, total
from hill.models.layers import LevelNet
from hill.settings import check_one_of, within
from hill.taxonomy import Taxonomy
from hill.tree import METHODS, CodingTree, build_tree
from hill.tree._loops import MOST_HEIGHT
from hill.types import IntArray, Output

CHUNK = 1_024
"""Leaves that are compared at once to find the maximum."""
RCNN_HIDDEN = 512
TREE_FILE = "coding_tree.json"


@dataclass(frozen=True)
class HiTINConfig(FamilyConfig):
    """Settings of HiTIN."""

    height: int = 2
    """Height K of the coding tree."""
    method: str = "paper"
    """Builder of the coding tree: paper, authors or refined."""
    hidden: int = 0
    """Width H of the tree's nodes; 0 for that of the transformer, 512 with rcnn."""
    readout: str = "sum"
    """How the nodes of a level become one vector: sum, mean or max."""
    readout_dropout: float = 0.5
    """Dropout on the readouts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of(self.method, METHODS, "model.method")
        check_one_of(self.readout, ("sum", "mean", "max"), "model.readout")
        within(self.height, 1, MOST_HEIGHT, "model.height")
        within(self.hidden, 0, MAX_WIDTH, "model.hidden")
        within(self.readout_dropout, 0, 1, "model.readout_dropout")


class TreeNetwork(nn.Module):
    """Text vectors (B, D) to the readouts of all levels from leaves to root (B, (K + 1) · H).

    `parents[k][i]` is the parent on level k + 1 of node i on level k. As in the released code: a linear map to width H,
    then on every level, the root included, twice linear, BatchNorm and ReLU over the sum of the children. Different:
    the leaves are never materialised (see `Leaves`), so the dropout of the leaves falls on the features of the document
    and on the input of level 1, not on each copy and each leaf.
    """

    def __init__(
        self, parents: Sequence[Tensor], width: int, hidden: int, readout: str = "sum", dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.readout = readout
        self.sizes = [*map(len, parents), 1]
        for level, above in enumerate(parents):
            self.register_buffer(f"parents{level}", above, persistent=False)
        self.features = nn.Linear(width, hidden)
        self.leaves = Leaves(self.sizes[0])
        self.dropout = nn.Dropout(dropout)
        self.levels = nn.ModuleList(LevelNet(hidden) for _ in parents)

    def forward(self, text: Tensor) -> Tensor:
        """Text vectors (B, D) to readouts (B, (K + 1) · H)."""
        pool: Any = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax}[self.readout]
        features = self.dropout(self.features(text)).float()  # (B, H)
        readouts = [self.leaves.read(features, self.readout)]
        slope, offset = self._sum_children(torch.stack([self.leaves.slope, self.leaves.offset]), 0)  # (N1) each
        sums = self.dropout(slope[:, None] * features.unsqueeze(1) + offset[:, None])  # (B, N1, H)
        for level, net in enumerate(self.levels, start=1):
            nodes = net(sums).float()  # (B, N, H)
            readouts.append(pool(nodes, dim=1))
            if level < len(self.levels):
                sums = self._sum_children(nodes, level)
        return torch.cat(readouts, dim=1)

    def _sum_children(self, nodes: Tensor, level: int) -> Tensor:
        """The sum over the children of each node of the next level: (B, N below, ...) to (B, N, ...)."""
        sums = nodes.new_zeros(nodes.shape[0], self.sizes[level + 1], *nodes.shape[2:])
        return sums.index_add(1, self.get_buffer(f"parents{level}"), nodes)


class Leaves(nn.Module):
    """The leaf of label l is a_l z + b_l, for the features z of a document.

    The released code repeats z for each of L labels and maps the label axis by W (L, L), without an activation. On
    equal copies that is the same, where a are the row sums of W: L weights instead of L², and no (B, L, H). Initial
    values are as those of nn.Linear: row sums of weights from U(±1/√L), offsets from U(±1/√L).
    """

    def __init__(self, labels: int) -> None:
        super().__init__()
        bound = max(labels, 1) ** -0.5
        self.slope = nn.Parameter(torch.empty(labels).normal_(0.0, 3**-0.5))
        self.offset = nn.Parameter(torch.empty(labels).uniform_(-bound, bound))

    def read(self, features: Tensor, readout: str) -> Tensor:
        """The readout of all leaves, without building them: (B, H) to (B, H)."""
        if readout != "max":
            count = len(self.slope) if readout == "mean" else 1
            return (self.slope.sum() * features + self.offset.sum()) / count
        best = self._argmax(features)
        return self.slope[best] * features + self.offset[best]

    @torch.no_grad()
    def _argmax(self, features: Tensor) -> Tensor:
        """The label with the highest leaf, per feature: (B, H) to (B, H)."""
        best = torch.full_like(features, -torch.inf)
        label = torch.zeros_like(features, dtype=torch.int64)
        for start in range(0, len(self.slope), CHUNK):
            slope, offset = (weights[start : start + CHUNK] for weights in (self.slope, self.offset))
            values, index = (slope * features.unsqueeze(2) + offset).max(dim=2)
            label = torch.where(values > best, index + start, label)
            best = torch.maximum(values, best)
        return label


class HiTIN(VectorModel):
    """Logits (B, L) = Σ_k W_k readout_k over the levels k of the coding tree, leaves and root included.

    The W_k are one head over the concatenated readouts: the same sum, with one bias instead of K + 1, and the same
    recursive regularisation, here with the paper's weight; the released code has it off. Its trees are those of HILL's
    released code (`authors`) without smoothing, which no method builds exactly; the default is the paper's algorithm.
    With rcnn it drops half of the leaves; here `dropout` is 0.1. It also drops test documents that fill no batch.
    """

    Config: ClassVar[type[ModelConfig]] = HiTINConfig
    config: HiTINConfig

    def __init__(self, text: TextEncoder, taxonomy: Taxonomy, config: HiTINConfig, assets: Mapping[str, Any]) -> None:
        super().__init__(text, taxonomy, config, assets)
        self.tree = CodingTree(assets[TREE_FILE]["parents"])
        parents = [torch.from_numpy(above.copy()) for above in self.tree.parents]
        hidden = config.hidden or (RCNN_HIDDEN if config.text == "rcnn" else text.width)
        self.structure = TreeNetwork(parents, text.width, hidden, config.readout, config.dropout)
        self.dropout = nn.Dropout(config.readout_dropout)
        self.head = FamilyHead((len(parents) + 1) * hidden, taxonomy, config)

    @classmethod
    def prepare(
        cls, documents: Documents, taxonomy: Taxonomy, config: HiTINConfig, tokenizer: Tokenizer
    ) -> dict[str, Any]:
        """The assets of every model, and the coding tree."""
        tree = build_tree(taxonomy, config.height, config.method).tree
        parents = {"parents": [parents.tolist() for parents in tree.parents]}
        return super().prepare(documents, taxonomy, config, tokenizer) | {TREE_FILE: parents}

    @classmethod
    def adapt_assets(
        cls, assets: Mapping[str, Any], old_config: HiTINConfig, config: HiTINConfig, source: IntArray, reordered: bool
    ) -> dict[str, Any]:
        """The coding tree, if its settings are the same: most builders depend on the order of the labels."""
        if not reordered or (config.height, config.method) != (old_config.height, old_config.method):
            return {}
        return {TREE_FILE: reorder_leaves(assets[TREE_FILE], source)}

    @property
    def axes(self) -> dict[str, str]:
        """The weights that depend on the taxonomy."""
        return super().axes | {"structure.leaves.slope": "Z", "structure.leaves.offset": "Z"}

    def classify(self, text: Tensor, labels: Tensor | None = None) -> Output:
        """Text vectors (B, D) to logits (B, L), with the loss if labels are given."""
        logits = self.head(self.dropout(self.structure(text)))
        if labels is None:
            return Output(logits)
        return total(logits, {"labels": self.label_loss(logits, labels)} | self.head.regularisation())
