"""HILL: a text encoder and a structure encoder on the coding tree, trained with a contrastive loss between them.

Zhu et al., HILL: Hierarchy-aware Information Lossless Contrastive Learning for Hierarchical Text Classification,
NAACL 2024. If the paper and its released code differ, the docstrings say which one is followed.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from hill.data import Documents
from hill.data.tokens import tokenize
from hill.encoders import TextEncoder
from hill.errors import ConfigError, need
from hill.models.base import MAX_WIDTH, HTCModel, ModelConfig, TextConfig, reorder_leaves, total
from hill.models.large_label import LargeLabelConfig, LargeLabelModel
from hill.models.layers import (
    Descriptions,
    DistributedBatchNorm,
    LevelNet,
    all_gather,
    initialise,
    is_label_list,
    nt_xent,
    structure_kernels,
    to_indicator,
    use_kernels,
)
from hill.settings import check_at_least, check_one_of, within
from hill.taxonomy import Taxonomy
from hill.tree import CONTROLS, METHODS, CodingTree, build_tree
from hill.tree._loops import MOST_HEIGHT
from hill.types import AnyBatch, Batch, IntArray, Output

CONVOLUTIONS = {"gcn": 2, "gat": 2, "gin": 3}
"""The graph convolutions of the paper's ablations, and how many layers of each it has."""
FULL_RANK = 5_000
"""Up to this many labels the label map has full rank, and labels can have units and names."""
LOW_RANK = 64
"""The rank of the label map with more labels."""
MATMUL_LABELS = 512
"""Up to this many labels, sums over labels are matrix products on a GPU; otherwise it would sort or add row by row."""
NEUTRAL_COSINE = 0.25
"""The cosine between document and label name that adds nothing to the logit."""
NAME_TOKENS = 64
"""How many tokens of a label's name and description are read."""
MAX_NODE_VALUES = 1 << 25
"""The most values of level-1 nodes, of all documents, that are in memory at a time in `top_k`."""
TREE_FILE = "coding_tree.json"
TOKENS_FILE = "label_tokens.json"
UNSEEN_FILE = "unseen_labels.json"
UNSEEN_SHARPNESS, UNSEEN_BIAS = 20.0, 1.5
"""What cosines are multiplied with, and what is added to the log odds of labels that no document had. On dev of attack
with a tenth of the leaves hidden in training, two seeds: best micro F1 of hidden labels 45 and 59, 51 and 63, 50 and 63
with 10, 20 and 40; the bias is where it is best."""


@dataclass(frozen=True)
class HILLConfig(LargeLabelConfig, TextConfig):
    """Settings of HILL."""

    REMOVED: ClassVar[dict[str, Any]] = {
        **TextConfig.REMOVED,
        "leaves": "none",
        "layers": 0,
        "positives": "own",
        "views": "own",
        "norm": "batch",
        "label_rank": 0,
    }

    structure: str = "tree"
    """Structure encoder: on the coding tree, or the paper's ablations gcn, gat, gin on the graph of the labels."""
    height: int = 3
    """Height K of the coding tree; 1 is the paper's ablation without Algorithm 1."""
    method: str = "authors"
    """Builder of the coding tree: paper, authors or refined; as controls random, with the level sizes of refined, or
    taxonomy, the taxonomy itself."""
    name_weight: float = 0.0
    """How much a unit of cosine with the vector of a label's name and description adds to its logit at the start; both
    vector and weight are learned. 0 as in the paper, which does not read names."""
    leaf_units: int = 0
    """Hidden units per label that read the text vector and that tree and classifier read; 0 as in the paper."""
    contrast: float = 0.1
    """Weight λ of the contrastive loss; 0 is the paper's ablation without it."""
    contrast_labels: int = 166
    """Number of labels up to which λ is used as it is; the largest data set of the paper has 166. With more labels, and
    a loss that is a mean over labels, λ is multiplied by this number and divided by theirs. 0: λ is never changed."""
    temperature: float = 1.0
    """Temperature τ of the contrastive loss."""
    negatives: str = "all"
    """Negatives of a document in the contrastive loss: all other documents of the batch, as in the paper; or others:
    those that share none of its most specific labels."""
    classifier: str = "concat"
    """Input of the classifier: concat [h_D; h_T], text h_D, or tree h_T."""
    hidden: int = 0
    """Width d_V of the nodes; 0 for that of the text encoder."""
    whole_label_map: bool = False
    """Whether the first matrix of the projector's label axis (L, L) is learned as a whole, as in the released code.
    Only its row sums count, so by default only these are learned."""
    readout: str = "sum"
    """How the nodes of a level of the tree, or of a convolution, become one vector: sum, mean or max."""
    readout_dropout: float = 0.5
    """Dropout before the alignment of h_T."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of(self.structure, ("tree", *CONVOLUTIONS), "model.structure")
        check_one_of(self.method, (*METHODS, *CONTROLS), "model.method")
        check_one_of(self.negatives, ("all", "others"), "model.negatives")
        check_one_of(self.classifier, ("concat", "text", "tree"), "model.classifier")
        check_one_of(self.readout, ("sum", "mean", "max"), "model.readout")
        within(self.leaf_units, 0, MAX_WIDTH, "model.leaf_units")
        check_at_least(self.name_weight, 0, "model.name_weight")
        if self.name_weight and self.text != "transformer":
            raise ConfigError(
                f"model.name_weight is {self.name_weight:g}, but model.text is '{self.text}', which knows no words at "
                "the start; set model.name_weight=0, or model.text=transformer"
            )
        within(self.height, 1, MOST_HEIGHT, "model.height")
        within(self.hidden, 0, MAX_WIDTH, "model.hidden")
        within(self.readout_dropout, 0, 1, "model.readout_dropout")
        check_at_least(self.contrast, 0, "model.contrast")
        check_at_least(self.contrast_labels, 0, "model.contrast_labels")
        check_at_least(self.temperature, 1e-3, "model.temperature")


# The projector


class LabelMap(nn.Module):
    """The label axis of the projector, folded with the sum over the children of each level-1 node.

    The paper repeats the features z (D) of a document for each of L labels and maps the label axis by an MLP
    W2 ReLU(W1 · + b1) + b2. All copies are equal, so W1 counts only through its row sums s, and leaf y is

        X0[y, j] = Σ_k W2[y, k] ReLU(s_k z_j + b1_k) + b2_y        for each feature j.

    Level 1 of the tree only needs sums over leaves. With P (N, L), P[v, y] = 1 if leaf y is a child of node v,

        (P X0)[v, j] = f_v(z_j)    with    f_v(x) = Σ_k (P W2)[v, k] ReLU(s_k x + b1_k) + (P b2)_v.

    The leaves (B, L, D) are therefore never materialised. Each f_v is a piecewise linear function of one number, and
    all have the same L breakpoints -b1_k / s_k: `_piecewise_linear` tabulates slope and intercept between breakpoints
    and looks up each z_j, which costs O((L + B D) N) instead of O(B D L N).

    Here s is `slope`, b1 `offset`, W2 `weight` and b2 `bias`. Above `FULL_RANK` labels, W2 is the product of `outer`
    (L, r) and `weight` (r, L).

    With `whole`, W1 is the parameter `first` (L, L), as in the released code, and s its row sums. The function is the
    same, but not the learning: all entries of a row have the same gradient, so a step of Adam moves s L times as far.
    """

    parents: Tensor
    outer: nn.Parameter | None
    slope: Tensor

    def __init__(self, parents: Tensor, nodes: int, whole: bool = False) -> None:
        super().__init__()
        labels = len(parents)
        rank = LOW_RANK if labels > FULL_RANK else labels
        self.nodes = nodes
        self.register_buffer("parents", parents, persistent=False)
        self.first = nn.Parameter(torch.empty(labels, labels).normal_(0.0, 0.02)) if whole else None
        if not whole:
            self.slope = nn.Parameter(torch.empty(labels))
        self.offset = nn.Parameter(torch.zeros(labels))
        self.bias = nn.Parameter(torch.zeros(labels))
        self.outer = nn.Parameter(torch.empty(labels, rank)) if rank < labels else None
        self.weight = nn.Parameter(torch.empty(rank, labels))
        # As in the released code: row sums of N(0, 0.02²) weights; entries of W2, or of its product, N(0, 0.02²).
        if not whole:
            nn.init.normal_(self.slope, 0.0, 0.02 * labels**0.5)
        if self.outer is not None:
            nn.init.normal_(self.outer, 0.0, (0.02 / rank**0.5) ** 0.5)
        nn.init.normal_(self.weight, 0.0, 0.02 if self.outer is None else (0.02 / rank**0.5) ** 0.5)

    def slopes(self) -> Tensor:
        """The row sums s of W1 (L)."""
        return self.slope if self.first is None else self.first.sum(dim=1)

    def node_input(self, features: Tensor, dropout: float) -> Tensor:
        """Features z (B, D) to the input of the level-1 nodes, with dropout: (B, N, D)."""
        if self.outer is not None or not (use_matmul(features, len(self.parents)) and use_kernels(features)):
            return F.dropout(self(features).transpose(1, 2), dropout)
        seed = self.parents
        if dropout:
            seed = torch.empty(1, dtype=torch.int64, device=features.device).random_(2**31 - 1)
        fold = partial(_sum_children, parents=self.parents, count=self.nodes)
        weight, bias = fold(self.weight), fold(self.bias[:, None])[:, 0]
        nodes: Tensor = structure_kernels().FoldedMap.apply(
            features, self.slopes(), self.offset, weight, bias, seed, dropout
        )
        return nodes

    def forward(self, features: Tensor) -> Tensor:
        """Features z (B, D) to P X0, the input of the level-1 nodes: (B, D, N)."""
        fold = partial(_sum_children, parents=self.parents, count=self.nodes)  # P times a matrix
        bias = fold(self.bias[:, None])[:, 0]
        if self.outer is None:
            return self._piecewise_linear(features, fold(self.weight)) + bias
        return self._piecewise_linear(features, self.weight) @ fold(self.outer).T + bias

    def _piecewise_linear(self, features: Tensor, weight: Tensor) -> Tensor:
        """Σ_k weight[:, k] ReLU(slope_k x + offset_k) for every feature x: (B, D) to (B, D, rows of weight)."""
        slope = self.slopes()
        flat = slope == 0
        breakpoints = torch.where(flat, torch.inf, -self.offset / torch.where(flat, 1.0, slope))
        breakpoints, order = breakpoints.detach().sort()
        # Left of all breakpoints, units with a negative slope are active; each breakpoint changes one unit.
        falling = (slope < 0).to(weight.dtype)
        first_slope = weight @ (falling * slope)
        first_value = weight @ (falling * self.offset + flat * self.offset.relu())
        changes = torch.stack([slope.abs(), slope.sign() * self.offset])[:, order, None]  # (2, L, 1)
        changes = weight.T[order] * changes  # (2, L, rows)
        count = changes.shape[1]
        if use_matmul(changes, count):
            sums = changes.new_ones(count + 1, count).tril(-1) @ changes
        else:
            sums = F.pad(changes.cumsum(dim=1), (0, 0, 1, 0))
        table = torch.stack([first_slope, first_value])[:, None] + sums  # (2, L + 1, rows)
        pieces = torch.searchsorted(breakpoints, features.detach())
        found: Tensor = _Lookup.apply(table.transpose(0, 1).flatten(1), pieces)  # type: ignore[no-untyped-call]
        slopes, values = found.chunk(2, dim=2)
        return slopes * features.unsqueeze(2) + values


def use_matmul(tensor: Tensor, labels: int) -> bool:
    """Whether sums over labels are matrix products."""
    return tensor.is_cuda and labels <= MATMUL_LABELS


class _Lookup(torch.autograd.Function):
    """As `F.embedding`, rows of a table (R, W) by index (...) to (..., W), with a faster gradient."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, indices: Tensor) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.count = len(table)
        return F.embedding(indices, table)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        indices, grad = ctx.saved_tensors[0].flatten(), grad.flatten(0, -2)
        if use_matmul(grad, ctx.count):
            one_hot = torch.arange(ctx.count, device=grad.device)[:, None] == indices
            return one_hot.to(grad.dtype) @ grad, None
        return grad.new_zeros(ctx.count, grad.shape[1]).index_add(0, indices, grad), None


def _sum_children(nodes: Tensor, parents: Tensor, count: int, dim: int = 0) -> Tensor:
    """The sum over the children of each of `count` nodes, along this axis; `parents` has the parent of each child."""
    shape = [*nodes.shape[:dim], count, *nodes.shape[dim + 1 :]]
    return nodes.new_zeros(shape).index_add(dim, parents, nodes)


class LabelUnits(nn.Module):
    """Ours: ReLU units per label that read the text vector; the tree receives their sums over children.

    Together they are one wide hidden layer, like the nodes of HiAGM.
    """

    parents: Tensor

    def __init__(self, width: int, count: int, labels: LabelMap, hidden: int, dropout: float) -> None:
        super().__init__()
        self.count, self.nodes = count, labels.nodes
        self.register_buffer("parents", labels.parents, persistent=False)
        self.read = nn.Linear(width, len(labels.parents) * count)
        self.lift = nn.Linear(count, hidden, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, text: Tensor) -> Tensor:
        """Text vectors (B, D) to units (B, L, U)."""
        units: Tensor = self.dropout(F.relu(self.read(text)))
        return units.reshape(text.shape[0], len(self.parents), self.count)

    def node_input(self, units: Tensor) -> Tensor:
        """What the level-1 nodes receive from the units of their labels: (B, L, U) to (B, N, D)."""
        received: Tensor = self.lift(_sum_children(units, self.parents, self.nodes, dim=1))
        return received


class LabelNames(nn.Module):
    """Ours: adds weight × cosine between the text vector and a vector per label to the logits; both are learned.

    In a new model, `HILL.start` sets the vectors to the encoded names and descriptions.
    """

    def __init__(self, labels: int, width: int, weight: float) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(labels, width) * 0.02)
        self.weight = nn.Parameter(torch.full((labels,), weight))

    def forward(self, text: Tensor) -> Tensor:
        """Text vectors (B, D) to what names add to the logits (B, L)."""
        cosines = F.normalize(text, dim=1) @ F.normalize(self.vectors, dim=1).T
        return self.weight * (cosines - NEUTRAL_COSINE)


class UnseenLabels(nn.Module):
    """Ours: logits of labels that no training document had, from names alone, as in zero-shot classification.

    The text is compared with the names of all labels, encoded by the trained encoder. The logit of an unseen label is
    the log odds of its share in a softmax of the cosines, without its ancestors and descendants, plus a constant. It is
    added to what the label learns later, if it gets documents.
    """

    place: Tensor
    unrelated: Tensor

    def __init__(self, taxonomy: Taxonomy, rows: Sequence[int], width: int) -> None:
        super().__init__()
        size = len(taxonomy)
        unrelated = torch.ones(size, len(rows))
        for place, row in enumerate(rows):
            unrelated[np.concatenate([[row], taxonomy.ancestors(row), taxonomy.descendants(row)]), place] = 0
        self.register_buffer("unrelated", unrelated, persistent=False)
        self.register_buffer("place", F.one_hot(torch.tensor(rows), size).float(), persistent=False)
        self.register_buffer("prototypes", torch.zeros(size, width))

    def forward(self, text: Tensor) -> Tensor:
        """Text vectors (B, D) to what is added to the logits (B, L): 0 for labels that are not unseen."""
        names = F.normalize(self.get_buffer("prototypes"), dim=1)
        cosines = UNSEEN_SHARPNESS * (F.normalize(text, dim=1) @ names.T)
        cosines = cosines - cosines.amax(dim=1, keepdim=True)
        others = (cosines.exp() @ self.unrelated).clamp(min=torch.finfo(cosines.dtype).tiny)  # (B, unseen)
        added: Tensor = (cosines @ self.place.T - others.log() + UNSEEN_BIAS) @ self.place
        return added


# Structure encoders


class StructureEncoder(nn.Module):
    """h_D (B, D) to h_T (B, D): projector, layers of nodes, readout of each layer, alignment.

    `parents[i]` is the node that receives label i. Subclasses add `align` and the layers.
    """

    align: nn.Sequential
    units: LabelUnits | None

    def __init__(self, parents: Tensor, nodes: int, width: int, config: HILLConfig) -> None:
        super().__init__()
        self.hidden = config.hidden or width
        self.readout = config.readout
        linear = (nn.Linear(width, self.hidden), nn.ReLU(), nn.Linear(self.hidden, self.hidden))
        self.features = nn.Sequential(*linear, nn.Dropout(config.dropout))
        self.labels = LabelMap(parents, nodes, config.whole_label_map)
        self.dropout = nn.Dropout(config.dropout)
        self.units = None

    @abstractmethod
    def layers(self, received: Tensor) -> Iterator[Tensor]:
        """The nodes of each layer (B, N, D), given the input of the first one (B, N, D)."""

    def readouts(self, received: Tensor) -> Iterator[Tensor]:
        """The readout η of each layer (B, D), given the input of the first one (B, N, D)."""
        pool: Any = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax}[self.readout]
        return (pool(nodes, dim=1) for nodes in self.layers(received))

    def forward(self, text: Tensor, units: Tensor | None = None) -> Tensor:
        """h_D (B, D), and the label units (B, L, U) if the model has them, to h_T (B, D)."""
        with torch.autocast(text.device.type, enabled=False):
            features, rate = self.features(text.float()), self.dropout.p if self.training else 0.0
            if self.units is not None and units is not None:
                received = self.dropout(self.labels.node_input(features, 0.0) + self.units.node_input(units))
            else:
                received = self.labels.node_input(features, rate)  # (B, N, D)
        aligned: Tensor = self.align(torch.cat(list(self.readouts(received)), dim=1))
        return aligned


class TreeEncoder(StructureEncoder):
    """On the coding tree: one feed-forward net per level over child sums.

    `parents[k][i]` is the parent on level k + 1 of node i on level k. As in the released code: two linear layers per
    net, batch norm after each except at the root, dropout 0.5 and a linear layer after the concatenated readouts.
    Different: the leaves are never materialised (see `LabelMap`), so the dropouts of the projector apply to the
    features of the document and to the input of level 1, not to each copy and each leaf.
    """

    def __init__(self, parents: Sequence[Tensor], width: int, config: HILLConfig) -> None:
        sizes = [*(len(level) for level in parents), 1]
        super().__init__(parents[0], sizes[1], width, config)
        self.sizes = sizes
        for level, above in enumerate(parents[1:], start=1):
            self.register_buffer(f"parents{level}", above, persistent=False)
            if len(parents[0]) <= MATMUL_LABELS:  # rows that sum all nodes, and the children of each parent
                members = F.one_hot(above, sizes[level + 1]).T.float()
                both = torch.cat([torch.ones(1, len(above)), members])
                self.register_buffer(f"sums{level}", both, persistent=False)
        height = len(parents)
        self.levels = nn.ModuleList(LevelNet(self.hidden, batch_norm=level < height) for level in range(1, height + 1))
        self.align = nn.Sequential(nn.Dropout(config.readout_dropout), nn.Linear(height * self.hidden, width))
        initialise(self)

    def layers(self, received: Tensor) -> Iterator[Tensor]:
        """The nodes of levels 1, ..., K: x_v = FFN(Σ over children of v)."""
        for level, net in enumerate(self.levels, start=1):
            nodes = net(received)
            yield nodes
            if level < len(self.levels):
                received = _sum_children(nodes, self.get_buffer(f"parents{level}"), self.sizes[level + 1], dim=1)

    def readouts(self, received: Tensor) -> Iterator[Tensor]:
        """As above; on a GPU, one matrix product per level computes the readout and the sums over children."""
        if self.readout != "sum" or not use_matmul(received, self.sizes[0]):
            yield from super().readouts(received)
            return
        *nets, last = self.levels
        for level, net in enumerate(nets, start=1):
            sums = self.get_buffer(f"sums{level}").expand(len(received), -1, -1)
            pooled, received = torch.split(torch.bmm(sums, net(received)), [1, self.sizes[level + 1]], dim=1)
            yield pooled[:, 0]
        yield last(received)[:, 0]


class GraphEncoder(StructureEncoder):
    """On the graph of the labels (the paper's ablations): x ← norm(ReLU(conv(x))) per layer.

    Edges run in both directions between `child[e]` and `parent[e]`; there is no node above the roots. The convolutions
    are those of PyTorch Geometric with its defaults: GCN with symmetric normalisation; GAT with one head and slope 0.2;
    GIN with ε = 0 and two linear layers. As in the released code, weights of GCN and GAT are initialised by Glorot, and
    those of GIN like all other linear layers. Different: a batch is one graph by offsets, not copies that are collated
    each step; the self-loops of GCN and GAT are added once; the dropouts of the projector apply as in `TreeEncoder`.
    """

    edges: Tensor

    def __init__(self, child: Tensor, parent: Tensor, labels: int, width: int, config: HILLConfig) -> None:
        super().__init__(torch.arange(labels), labels, width, config)
        kind, hidden = config.structure, self.hidden
        loops = torch.arange(0 if kind == "gin" else labels)
        edges = torch.stack([torch.cat([child, parent, loops]), torch.cat([parent, child, loops])])
        self.register_buffer("edges", edges, persistent=False)
        count = CONVOLUTIONS[kind]
        library = need("torch_geometric.nn", "gnn", f"structure={kind}")
        self.convolutions = nn.ModuleList()
        for _ in range(count):
            if kind == "gin":
                net = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
                self.convolutions.append(library.GINConv(net))
            else:
                convolution = {"gcn": library.GCNConv, "gat": library.GATConv}[kind]
                self.convolutions.append(convolution(hidden, hidden, add_self_loops=False))
        self.norms = nn.ModuleList(DistributedBatchNorm(hidden) for _ in range(count))
        self.align = nn.Sequential(nn.Dropout(config.readout_dropout), nn.Linear(count * hidden, width))
        initialise(self)

    def layers(self, received: Tensor) -> Iterator[Tensor]:
        """The labels after each convolution: (B, L, D) to (B, L, D) per layer."""
        documents, labels, _ = received.shape
        starts = labels * torch.arange(documents, device=self.edges.device)
        edges = (self.edges[:, None] + starts[:, None]).flatten(1)  # (2, B · E); document b has the rows b · L, ...
        rows = received.flatten(0, 1)  # (B · L, D)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            # float32 under autocast too: the next layer may sum very many children of a label
            rows = norm(F.relu(convolution(rows, edges)).float())
            yield rows.view(received.shape)


# The model


class HILL(LargeLabelModel):
    """Logits from [h_D; h_T], as in the paper (the released code defaults to h_D alone); loss BCE + λ NT-Xent."""

    Config: ClassVar[type[ModelConfig]] = HILLConfig
    config: HILLConfig
    tree: CodingTree
    """The coding tree, if the structure is one."""
    structure: StructureEncoder
    child: Tensor
    parent: Tensor
    head_leaves: nn.Linear | None
    """The part of the classifier that reads the label units."""
    names: LabelNames | None
    unseen: UnseenLabels | None

    def __init__(self, text: TextEncoder, taxonomy: Taxonomy, config: HILLConfig, assets: Mapping[str, Any]) -> None:
        super().__init__(text, taxonomy, config, assets)
        width, labels = text.width, len(taxonomy)
        for name, ends in zip(("child", "parent"), taxonomy.edge_array.T, strict=True):
            self.register_buffer(name, torch.from_numpy(ends.copy()), persistent=False)
        if config.structure == "tree":
            self.tree = CodingTree(assets[TREE_FILE]["parents"])
            self.structure = TreeEncoder([torch.from_numpy(level.copy()) for level in self.tree.parents], width, config)
        else:
            self.structure = GraphEncoder(self.child, self.parent, labels, width, config)
        document_values = self.structure.labels.nodes * self.structure.hidden
        self.top_k_batch_size = max(1, min(self.top_k_batch_size, MAX_NODE_VALUES // document_values))
        self.head = nn.Linear(2 * width if config.classifier == "concat" else width, labels)
        # W2 ReLU(W1 h + b1) + b2 for each view; the paper has no b2, the released code has it
        self.text_view, self.tree_view = (
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)) for _ in range(2)
        )
        for part in (self.head, self.text_view, self.tree_view):
            initialise(part)
        # λ is smaller with many labels: L_C is a mean over labels, and its gradients shrink with their number
        many = config.loss == "bce" and 0 < config.contrast_labels < labels
        self.contrast_weight = config.contrast * (config.contrast_labels / labels if many else 1.0)
        for name in ("leaf_units", "name_weight", "whole_label_map"):
            if (value := getattr(config, name)) and (labels > FULL_RANK or self.sampled_loss is not None):
                limit = f"at most {FULL_RANK:,} labels" if labels > FULL_RANK else "model.sample=0"
                raise ConfigError(f"model.{name} is {value:g}, which needs {limit}, not {labels:,}; set model.{name}=0")
        self.names = LabelNames(labels, width, config.name_weight) if config.name_weight else None
        unseen = assets.get(UNSEEN_FILE, {}).get("rows")
        self.unseen = UnseenLabels(taxonomy, unseen, width) if unseen else None
        self.head_leaves = None
        if count := config.leaf_units:
            structure = self.structure
            structure.units = LabelUnits(width, count, structure.labels, structure.hidden, config.dropout)
            self.head_leaves = nn.Linear(labels * count, labels, bias=False)

    @classmethod
    def prepare(
        cls, documents: Documents, taxonomy: Taxonomy, config: HILLConfig, tokenizer: Tokenizer
    ) -> dict[str, Any]:
        """The assets of every model, the coding tree, and the tokens of the label names, if they are used."""
        assets = super().prepare(documents, taxonomy, config, tokenizer)
        if config.structure == "tree":
            tree = build_tree(taxonomy, config.height, config.method).tree
            assets[TREE_FILE] = {"parents": [parents.tolist() for parents in tree.parents]}
        if config.name_weight:
            tokens = tokenize([f"{label.name} {label.description}" for label in taxonomy], tokenizer, NAME_TOKENS)
            assets[TOKENS_FILE] = [tokens[row].tolist() for row in range(len(tokens))]
        return assets

    @classmethod
    def adapt_assets(
        cls, assets: Mapping[str, Any], old_config: HILLConfig, config: HILLConfig, source: IntArray, reordered: bool
    ) -> dict[str, Any]:
        """The coding tree, if its settings are the same: most builders depend on the order of the labels.

        Also which labels are unseen: those that are new, and those that were unseen before; if names are read.
        """
        adapted: dict[str, Any] = {}
        settings = ("structure", "height", "method")
        if reordered and TREE_FILE in assets and all(getattr(config, s) == getattr(old_config, s) for s in settings):
            adapted[TREE_FILE] = reorder_leaves(assets[TREE_FILE], source)
        before = assets.get(UNSEEN_FILE, {}).get("rows", [])
        unseen = np.flatnonzero((source < 0) | np.isin(source, before))
        if config.name_weight and len(unseen) < len(source):
            adapted[UNSEEN_FILE] = {"rows": unseen.tolist()}
        return adapted

    def start(self) -> None:
        """Set the vectors of the labels to the encoded names and descriptions."""
        if self.names is not None:
            described = Descriptions(self.assets[TOKENS_FILE], self.text.pad, self.text.width, every=1)
            self.names.vectors.data.copy_(described.encode(self.text))
            if self.unseen is not None:
                self.unseen.get_buffer("prototypes").copy_(self.names.vectors.data)

    def start_added(self, rows: IntArray) -> None:
        """Let `unseen` alone give the logits of these labels."""
        if self.unseen is not None and self.names is not None:
            heads = (self.head, self.head_leaves) if self.head_leaves is not None else (self.head,)
            for weight in [self.names.weight, *(weight for head in heads for weight in head.parameters())]:
                weight.data[rows] = 0

    @property
    def axes(self) -> dict[str, str]:
        """The weights whose shape depends on the taxonomy."""
        second = {"weight": "ZZ"} if self.structure.labels.outer is None else {"outer": "Z-", "weight": "-Z"}
        first = {"slope": "L"} if self.structure.labels.first is None else {"first": "LZ"}
        label_map = first | {"offset": "L", "bias": "Z"} | second
        axes = super().axes | {f"structure.labels.{name}": letters for name, letters in label_map.items()}
        if self.head_leaves is not None:
            axes |= {"structure.units.read.weight": "L-", "structure.units.read.bias": "L", "head_leaves.weight": "LZ"}
        if self.unseen is not None:
            axes["unseen.prototypes"] = "K-"
        return axes | ({"names.vectors": "K-", "names.weight": "L"} if self.names is not None else {})

    def classify(self, text: Tensor, labels: Tensor | None = None) -> Output:
        """h_D (B, D) to logits (B, L); with labels, also the loss L_C + λ L_clr."""
        features, tree, units = self.encode(text)
        logits = self.head_logits(features, labels)
        if self.head_leaves is not None and units is not None:
            logits = logits + self.head_leaves(units.flatten(1))
        if self.names is not None:
            logits = logits + self.names(text)
        if self.unseen is not None:
            logits = logits + self.unseen(text)
        if labels is None:
            return Output(logits)
        parts = {"labels": self.head_loss(features, logits, labels)}
        if self.config.contrast:
            parts["contrast"] = self.contrast_weight * self.contrast(text, tree, labels)
        return total(logits, parts)

    def encode(self, text: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """h_D (B, D) to the input of the classifier, h_T (B, D), and the label units (B, L, U) if there are any.

        If neither classifier nor contrast read h_T, it is not computed: it is 0.
        """
        units = None if self.structure.units is None else self.structure.units(text)
        is_read = self.config.classifier != "text" or self.config.contrast
        tree = self.structure(text, units) if is_read else torch.zeros_like(text)
        if self.config.classifier == "concat":
            return torch.cat([text, tree.to(text.dtype)], dim=1), tree, units
        return text if self.config.classifier == "text" else tree, tree, units

    def features(self, text: Tensor) -> Tensor:
        """h_D (B, D) to the input of the classifier."""
        return self.encode(text)[0]

    def contrast(self, text: Tensor, tree: Tensor, labels: Tensor) -> Tensor:
        """L_clr: the text and tree vectors of a document are partners, those of other documents are negatives."""
        negatives = None if self.config.negatives == "all" else self.negative_pairs(labels)
        return nt_xent(self.text_view(text), self.tree_view(tree), self.config.temperature, negatives)

    def negative_pairs(self, labels: Tensor) -> Tensor:
        """Whether two documents share no most specific label: (B, B), over the documents of all processes.

        Labels are targets (B, L) or label lists (B, M).
        """
        labels = all_gather(labels)
        present = to_indicator(labels, self.head.out_features) if is_label_list(labels) else labels.float()
        children = torch.zeros_like(present).index_add(1, self.parent, present[:, self.child])  # (B, L)
        specific = present * (children == 0)
        return specific @ specific.T == 0

    def top_k(self, batch: AnyBatch, k: int) -> tuple[Tensor, Tensor]:
        """The k highest scores of each document and their labels: (B, k) each, the highest first."""
        head_only = self.head_leaves is None and self.names is None
        return super().top_k(batch, k) if head_only else HTCModel.top_k(self, batch, k)

    def branch_logits(self, batch: Batch, labels: Tensor) -> dict[str, Tensor]:
        """Split the logits of a batch of one document into what text, structure, names and bias add: (K) each."""
        text = self.text.read(batch)  # (1, D)
        _, tree, units = self.encode(text)
        weight, zero = self.head.weight[labels], torch.zeros_like(self.head.bias[labels])
        text_weight, tree_weight = weight[:, : text.shape[1]], weight[:, -text.shape[1] :]  # equal unless concat
        parts = {
            "text": zero if self.config.classifier == "tree" else text_weight @ text[0],
            "structure": zero if self.config.classifier == "text" else tree_weight @ tree[0],
        }
        if self.head_leaves is not None and units is not None:
            parts["structure"] = parts["structure"] + self.head_leaves.weight[labels] @ units.flatten()
        if self.names is not None:
            parts["names"] = self.names(text)[0, labels]
            if self.unseen is not None:
                parts["names"] = parts["names"] + self.unseen(text)[0, labels]
        return parts | {"bias": self.head.bias[labels]}

    @torch.no_grad()
    def start_head(self, weight: Tensor, bias: Tensor) -> None:
        """Set the bias, and the columns of the classifier that read h_D, if there are any."""
        if self.config.classifier != "tree":
            self.head.weight[:, : weight.shape[1]] = weight
        self.head.bias.copy_(bias)
