"""HiTIN: the text's vector runs up the coding tree from its leaves, and the readouts of all levels are classified.

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
"""Leaves compared at a time when the highest is looked for."""


class TreeNetwork(nn.Module):
    """h (B, D) to the readouts of all levels from leaves to root, one after the other: (B, (K + 1) · H).

    `parents[k][i]` is the parent on level k + 1 of node i on level k. As in the released code: a linear map to the
    width of the nodes, and on every level, the root included, linear, BatchNorm, ReLU, twice, over the sum of the
    children. Different: the leaves are never materialised (see `Leaves`), so that the dropouts of the leaves fall on
    the document's features and on what level 1 receives, not on each copy and each leaf.
    """

    def __init__(
        self, parents: Sequence[Tensor], width: int, hidden: int, readout: str = "sum", dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.readout = readout
        self.sizes = [*(len(level) for level in parents), 1]
        for level, above in enumerate(parents):
            self.register_buffer(f"parents{level}", above, persistent=False)
        self.features = nn.Linear(width, hidden)
        self.leaves = Leaves(self.sizes[0])
        self.dropout = nn.Dropout(dropout)
        self.levels = nn.ModuleList(LevelNet(hidden) for _ in parents)

    @property
    def width(self) -> int:
        """Width of all readouts together."""
        return len(self.sizes) * self.features.out_features

    def forward(self, text: Tensor) -> Tensor:
        """Vectors of documents (B, D) to readouts (B, (K + 1) · H)."""
        features = self.dropout(self.features(text)).float()  # (B, H)
        read = [self.leaves.read(features, self.readout)]
        slope, offset = self._sum_children(torch.stack([self.leaves.slope, self.leaves.offset]), 0)  # (N1) each
        received = self.dropout(slope[:, None] * features.unsqueeze(1) + offset[:, None])  # (B, N1, H)
        for level, net in enumerate(self.levels, start=1):
            nodes = net(received).float()  # (B, N, H)
            read.append(_read(nodes, self.readout))
            if level < len(self.levels):
                received = self._sum_children(nodes, level)
        return torch.cat(read, dim=1)

    def _sum_children(self, nodes: Tensor, level: int) -> Tensor:
        """The sum over the children of each node, along axis 1: (B, N below, ...) to (B, N, ...)."""
        sums = nodes.new_zeros(nodes.shape[0], self.sizes[level + 1], *nodes.shape[2:])
        return sums.index_add(1, self.get_buffer(f"parents{level}"), nodes)


class Leaves(nn.Module):
    """x_l = a_l z + b_l: the leaf of each label, for the features z of a document.

    The released code repeats z for each of L labels and maps the label axis by W (L, L), without an activation. On
    equal copies that is exactly this line, a being the row sums of W: L numbers instead of L², and no (B, L, H).
    """

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.empty(labels))
        self.offset = nn.Parameter(torch.empty(labels))
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """As PyTorch starts a linear layer: row sums of weights from U(±1/√L), offsets from U(±1/√L)."""
        bound = max(len(self.offset), 1) ** -0.5
        self.slope.normal_(0.0, 3**-0.5)
        self.offset.uniform_(-bound, bound)

    def read(self, features: Tensor, readout: str) -> Tensor:
        """The readout of all leaves, without making them: (B, H) to (B, H)."""
        if readout == "max":
            winner = self._highest(features)
            return self.slope[winner] * features + self.offset[winner]
        slope, offset = self.slope.sum(), self.offset.sum()
        leaves = len(self.slope) if readout == "mean" else 1
        return (slope * features + offset) / leaves

    @torch.no_grad()
    def _highest(self, features: Tensor) -> Tensor:
        """The label whose leaf is highest, for every feature: (B, H) to (B, H)."""
        best = torch.full_like(features, -torch.inf)
        winner = torch.zeros_like(features, dtype=torch.int64)
        for start in range(0, len(self.slope), CHUNK):
            slope, offset = (line[start : start + CHUNK] for line in (self.slope, self.offset))
            height, place = (slope * features.unsqueeze(2) + offset).max(dim=2)
            winner = torch.where(height > best, place + start, winner)
            best = torch.maximum(height, best)
        return winner


def _read(nodes: Tensor, readout: str) -> Tensor:
    """One vector of a level's nodes: (B, N, H) to (B, H)."""
    if readout == "sum":
        return nodes.sum(dim=1)
    return nodes.mean(dim=1) if readout == "mean" else nodes.amax(dim=1)


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
    """Width of the tree's nodes; 0 for that of the transformer, 512 with rcnn."""
    readout: str = "sum"
    """How a level's nodes become one vector: sum, mean or max."""
    readout_dropout: float = 0.5
    """Dropout on the readouts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of(self.method, METHODS, "model.method")
        check_one_of(self.readout, ("sum", "mean", "max"), "model.readout")
        within(self.height, 1, MOST_HEIGHT, "model.height")
        within(self.hidden, 0, MAX_WIDTH, "model.hidden")
        within(self.readout_dropout, 0, 1, "model.readout_dropout")


class HiTIN(VectorModel):
    """Logits Σ_k W_k pool_k over the levels k of the coding tree, leaves and root included.

    The W_k are one head over the readouts side by side: the same sum, with one bias in place of K + 1, and the same
    recursive regularisation. That is on with the paper's weight; the released code leaves it off by default. Its trees
    are those of HILL's released code (`authors`) without the smoothing; here no method gives these exactly, and the
    default is the paper's algorithm. With rcnn it drops out half of the leaves, where `dropout` here is 0.1. It also
    drops the last documents of the test split, which do not fill a batch; here every document counts.
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
        self.head = FamilyHead(self.structure.width, taxonomy, config)

    @classmethod
    def prepare(
        cls, documents: Documents, taxonomy: Taxonomy, config: HiTINConfig, tokenizer: Tokenizer
    ) -> dict[str, Any]:
        """The coding tree, beside what every model knows."""
        tree = build_tree(taxonomy, config.height, config.method).tree
        known = super().prepare(documents, taxonomy, config, tokenizer)
        return known | {TREE_FILE: {"parents": [parents.tolist() for parents in tree.parents]}}

    @classmethod
    def reorder_assets(
        cls, assets: Mapping[str, Any], old_config: HiTINConfig, config: HiTINConfig, source: IntArray
    ) -> dict[str, Any]:
        """The coding tree, if its settings are the same: most builders depend on the order of the labels."""
        if (config.height, config.method) != (old_config.height, old_config.method):
            return {}
        return {TREE_FILE: reorder_leaves(assets[TREE_FILE], source)}

    @property
    def axes(self) -> dict[str, str]:
        """The weights that follow the taxonomy."""
        return super().axes | {"structure.leaves.slope": "Z", "structure.leaves.offset": "Z"}

    def classify(self, text: Tensor, labels: Tensor | None = None) -> Output:
        """Vectors (B, D) to logits (B, L); with labels the classification loss and the regularisation."""
        logits = self.head(self.dropout(self.structure(text)))
        if labels is None:
            return Output(logits)
        return total(logits, {"labels": self.label_loss(logits, labels)} | self.head.regularisation())
