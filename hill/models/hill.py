"""HILL: a text encoder and a structure encoder on the coding tree, tied by a contrastive loss.

Zhu et al., HILL: Hierarchy-aware Information Lossless Contrastive Learning for Hierarchical Text Classification,
NAACL 2024. Where the paper and its released code differ, the docstrings say which side is taken.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from hill.data import Documents
from hill.data.tokens import tokenize
from hill.errors import ConfigError
from hill.models.base import HTCModel, ModelConfig, total
from hill.models.family import TextConfig
from hill.models.wide import WideConfig, WideModel
from hill.nn import TextEncoder, TreeEncoder, nt_xent
from hill.nn.descriptions import Descriptions
from hill.nn.graph import LAYERS, GraphEncoder
from hill.nn.leaves import LeafNames
from hill.nn.partners import NEGATIVES, Partners
from hill.nn.structure import StructureEncoder
from hill.nn.text import initialise
from hill.settings import at_least, one_of
from hill.taxonomy import Taxonomy
from hill.tree import CONTROLS, METHODS, CodingTree, build_tree
from hill.types import Batch, Output, Packed

STRUCTURES = ("tree", *LAYERS)
CLASSIFIERS = ("concat", "text", "tree", "residual")
FULL_RANK = 5_000
LOW_RANK = 64
TREE_FILE = "coding_tree.json"
TOKENS_FILE = "label_tokens.json"
LONGEST_NAME = 64
"""Tokens that are read of a label's name and description."""
NODE_CELLS = 1 << 25
"""Numbers in the nodes of level 1, of all documents, that are held at a time where only the best labels are wanted."""


@dataclass(frozen=True)
class HILLConfig(WideConfig, TextConfig):
    """Settings of HILL."""

    structure: str = "tree"
    """Structure encoder: on the coding tree, or the paper's ablations gcn, gat, gin on the graph of the labels."""
    layers: int = 0
    """gcn, gat, gin: how many convolutions; 0 for the paper's 2, 2 and 3."""
    height: int = 3
    """Height K of the coding tree; 1 is the paper's ablation without Algorithm 1."""
    method: str = "authors"
    """Builder of the coding tree: paper, authors or refined; as controls random, with the level sizes of refined, or
    taxonomy, the taxonomy itself."""
    name_weight: float = 0.0
    """How much a unit of cosine with the vector of a label's name and description adds to its logit at the start; both
    vector and weight are learned. 0 as in the paper, where names are not read."""
    leaf_units: int = 0
    """Units of its own that each label computes of a document and that the classifier reads too; 0 as in the paper."""
    contrast: float = 0.1
    """Weight λ of the contrastive loss; 0 is the paper's ablation without it."""
    contrast_labels: int = 166
    """Labels up to which λ counts in full, as many as the paper's largest data set has; with more, where the loss is a
    mean over labels, it is multiplied by this and divided by their number. 0 for in full with any number."""
    temperature: float = 1.0
    """Temperature τ of the contrastive loss."""
    negatives: str = "all"
    """What a document is contrasted with: all others of the batch, as in the paper; others: those that share none of
    its most specific labels; weighted: all, each by 1 - the Jaccard similarity of the labels."""
    positives: str = "own"
    """What a document is drawn to: its own other view, as in the paper; alike: other documents too, by the Jaccard
    similarity of their most specific labels."""
    views: str = "own"
    """Projectors of the contrastive loss: each view its own, as in the paper, or one shared by both."""
    classifier: str = "concat"
    """What the classifier reads: concat [h_D; h_T], text h_D, tree h_T, residual h_D + h_T."""
    hidden: int = 0
    """Width d_V of the nodes; 0 for that of the text encoder."""
    readout: str = "sum"
    """How the nodes of a level of the tree, or of a convolution, become one vector: sum, mean or max."""
    norm: str = "batch"
    """Normalisation of nodes: batch as in the released code, or layer."""
    readout_dropout: float = 0.5
    """Dropout before the alignment of h_T."""
    label_rank: int = 0
    """Rank of the projector's label map; 0 for full up to 5,000 labels and 64 above."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.structure, STRUCTURES, "model.structure")
        one_of(self.method, (*METHODS, *CONTROLS), "model.method")
        one_of(self.negatives, NEGATIVES, "model.negatives")
        one_of(self.positives, ("own", "alike"), "model.positives")
        if self.positives != "own" and self.negatives != "all":
            raise ConfigError(
                f"model.negatives is '{self.negatives}', which leaves out what model.positives={self.positives} draws "
                "together; set one of them to its default"
            )
        one_of(self.views, ("own", "shared"), "model.views")
        one_of(self.classifier, CLASSIFIERS, "model.classifier")
        one_of(self.readout, ("sum", "mean", "max"), "model.readout")
        one_of(self.norm, ("batch", "layer"), "model.norm")
        at_least(self.layers, 0, "model.layers")
        at_least(self.leaf_units, 0, "model.leaf_units")
        at_least(self.name_weight, 0, "model.name_weight")
        if self.name_weight and self.text != "transformer":
            raise ConfigError(
                f"model.name_weight is {self.name_weight:g}, but model.text is '{self.text}', which knows no words at "
                "the start; set model.name_weight=0, or model.text=transformer"
            )
        at_least(self.height, 1, "model.height")
        at_least(self.contrast, 0, "model.contrast")
        at_least(self.contrast_labels, 0, "model.contrast_labels")
        at_least(self.temperature, 1e-3, "model.temperature")
        at_least(self.label_rank, 0, "model.label_rank")


class HILL(WideModel):
    """Logits from [h_D; h_T] (the paper; the released code defaults to h_D alone) and BCE + λ NT-Xent."""

    Config: ClassVar[type[ModelConfig]] = HILLConfig
    config: HILLConfig
    tree: CodingTree
    """The coding tree, where the structure is one."""
    tree_view: nn.Sequential | None
    head_leaves: nn.Linear | None
    """The classifier's part that reads the units of the labels."""
    names: LeafNames | None
    """What the names of the labels add."""

    def __init__(self, text: TextEncoder, taxonomy: Taxonomy, config: HILLConfig, assets: Mapping[str, Any]) -> None:
        super().__init__(text, taxonomy, config, assets)
        width, labels = text.width, len(taxonomy)
        self.partners = Partners(torch.from_numpy(taxonomy.edge_array.copy()), labels)
        if config.structure == "tree":
            self.tree = CodingTree(assets[TREE_FILE]["parents"])
        self.structure = self._structure(labels)
        self.head = nn.Linear(2 * width if config.classifier == "concat" else width, labels)
        self.text_view = _projector(width)
        self.tree_view = _projector(width) if config.views == "own" else None
        for part in (self.head, self.text_view, self.tree_view):
            if part is not None:
                initialise(part)
        self.head_leaves = None
        self.names = LeafNames(labels, width, config.name_weight) if config.name_weight else None
        self._check_size(labels)
        if config.leaf_units:
            self.structure.add_units(config.leaf_units, config.dropout)
            self.head_leaves = nn.Linear(labels * config.leaf_units, labels, bias=False)

    @classmethod
    def prepare(
        cls, documents: Documents, taxonomy: Taxonomy, config: HILLConfig, tokenizer: Tokenizer
    ) -> dict[str, Any]:
        """The coding tree and the tokens of the labels, where they are used, beside what every model knows."""
        known = super().prepare(documents, taxonomy, config, tokenizer)
        if config.structure == "tree":
            tree = build_tree(taxonomy, config.height, config.method).tree
            known[TREE_FILE] = {"parents": [parents.tolist() for parents in tree.parents]}
        if config.name_weight:
            texts = [f"{label.name} {label.description}" for label in taxonomy]
            tokens = tokenize(texts, tokenizer, LONGEST_NAME)
            known[TOKENS_FILE] = [tokens[row].tolist() for row in range(len(tokens))]
        return known

    def start(self) -> None:
        """Set the vectors of the labels to what the text encoder makes of their names and descriptions."""
        if self.names is not None:
            described = Descriptions(self.assets[TOKENS_FILE], self.text.pad, self.text.width, every=1)
            self.names.vectors.data.copy_(described.encode(self.text))

    @property
    def stages(self) -> tuple[str, ...]:
        """Contrast first, then labels; not where the contrast is left out."""
        return ("contrast", "labels") if self.config.contrast else ()

    @property
    def axes(self) -> dict[str, str]:
        """The weights that follow the taxonomy."""
        own = dict.fromkeys(("slope", "offset"), "L") | {"bias": "Z"}
        own |= {"weight": "ZZ"} if self.structure.labels.outer is None else {"outer": "Z-", "weight": "-Z"}
        known = super().axes | {f"structure.labels.{name}": axes for name, axes in own.items()}
        if self.config.leaf_units:
            known |= {"structure.units.read.weight": "L-", "structure.units.read.bias": "L", "head_leaves.weight": "LZ"}
        return known | ({"names.vectors": "K-", "names.weight": "K"} if self.names is not None else {})

    def classify(self, text: Tensor, labels: Tensor | None = None) -> Output:
        """h_D (B, D) to logits (B, L); with labels the loss L_C + λ L_clr, or in a stage one of the two unweighted."""
        tree, units = self.encode(text)
        features = self._read(text, tree)
        logits = self.judge(features, labels)
        if self.head_leaves is not None and units is not None:
            logits = logits + self.head_leaves(units.flatten(1))
        if self.names is not None:
            logits = logits + self.names(text)
        if labels is None:
            return Output(logits)
        parts = {}
        if self.stage != "contrast":
            parts["labels"] = self.judge_loss(features, logits, labels)
        if self.config.contrast and self.stage != "labels":
            weight = 1.0 if self.stage else self.contrast_weight
            parts["contrast"] = weight * self.contrast(text, tree, labels)
        return total(logits, parts)

    def encode(self, text: Tensor) -> tuple[Tensor, Tensor | None]:
        """h_T (B, D), and what the units of the labels say (B, L, U) where there are any."""
        units = None if self.structure.units is None else self.structure.units(text)
        return self.structure(text, units), units

    def best(self, batch: Batch | Packed, count: int) -> tuple[Tensor, Tensor]:
        """The highest scores of each document and the labels they are of: (B, count) each, the best first."""
        whole = self.head_leaves is not None or self.names is not None
        return HTCModel.best(self, batch, count) if whole else super().best(batch, count)

    @property
    def contrast_weight(self) -> float:
        """λ, less where labels are many: L_C is a mean over them, and its gradients shrink as their number grows."""
        config, labels = self.config, self.head.out_features
        many = config.loss == "bce" and 0 < config.contrast_labels < labels
        return config.contrast * (config.contrast_labels / labels if many else 1.0)

    def contrast(self, text: Tensor, tree: Tensor, labels: Tensor) -> Tensor:
        """L_clr: a document's text and tree vectors are partners, those of other documents negatives."""
        tree_view = self.text_view if self.tree_view is None else self.tree_view
        views = self.text_view(text), tree_view(tree)
        config, partners = self.config, self.partners
        positives = partners.alike(labels) if config.positives == "alike" else None
        return nt_xent(*views, config.temperature, partners.negatives(labels, config.negatives), positives)

    def _structure(self, labels: int) -> StructureEncoder:
        config, width = self.config, self.text.width
        rank = config.label_rank or (0 if labels <= FULL_RANK else LOW_RANK)
        shared = (config.readout, config.norm, config.dropout, config.readout_dropout, rank)
        if config.structure == "tree":
            parents = [torch.from_numpy(above.copy()) for above in self.tree.parents]
            return TreeEncoder(parents, width, config.hidden or width, *shared)
        hidden, layers = config.hidden or width, config.layers
        child, parent = self.partners.edges.T
        return GraphEncoder(config.structure, child, parent, labels, width, hidden, layers, *shared)

    def _check_size(self, labels: int) -> None:
        """Raise where what labels bring along needs all of them at once, and they are too many or learn by samples."""
        for name in ("leaf_units", "name_weight"):
            if (value := getattr(self.config, name)) and (labels > FULL_RANK or self.sampled is not None):
                limit = f"at most {FULL_RANK:,} labels" if labels > FULL_RANK else "model.sample=0"
                raise ConfigError(f"model.{name} is {value:g}, which needs {limit}, not {labels:,}; set model.{name}=0")

    @property
    def together(self) -> int:
        """Documents whose nodes are computed at a time where only the best labels are wanted."""
        nodes = self.structure.labels.nodes * self.structure.hidden
        return max(1, min(super().together, NODE_CELLS // nodes))

    def features(self, text: Tensor) -> Tensor:
        """What the classifier reads of documents."""
        return self._read(text, self.encode(text)[0])

    def _read(self, text: Tensor, tree: Tensor) -> Tensor:
        match self.config.classifier:
            case "concat":
                return torch.cat([text, tree.to(text.dtype)], dim=1)
            case "residual":
                return text + tree
            case "tree":
                return tree
        return text

    @torch.no_grad()
    def start_head(self, weight: Tensor, bias: Tensor) -> None:
        """Set the columns of the classifier that read h_D; where it reads h_T alone, there are none."""
        if self.config.classifier != "tree":
            self.head.weight[:, : weight.shape[1]] = weight
        self.head.bias.copy_(bias)


def _projector(width: int) -> nn.Sequential:
    """W2 ReLU(W1 h + b1) + b2; the paper has no b2, the released code does."""
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
