"""HiTIN: the text's vector runs up the coding tree from its leaves, and the readouts of all levels are classified.

Zhu et al., HiTIN: Hierarchy-aware Tree Isomorphism Network for Hierarchical Text Classification, ACL 2023.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from hill.data import Documents
from hill.models.base import ModelConfig, VectorModel, total
from hill.models.family import FamilyConfig, FamilyHead
from hill.nn import TextEncoder
from hill.nn.tin import TreeNetwork
from hill.settings import at_least, one_of
from hill.taxonomy import Taxonomy
from hill.tree import METHODS, CodingTree, build_tree
from hill.types import Output

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
        one_of(self.method, METHODS, "model.method")
        one_of(self.readout, ("sum", "mean", "max"), "model.readout")
        at_least(self.height, 1, "model.height")
        at_least(self.hidden, 0, "model.hidden")
        at_least(self.readout_dropout, 0, "model.readout_dropout")


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
