"""HILL: a text encoder and a structure encoder on the coding tree, tied by a contrastive loss.

Zhu et al., HILL: Hierarchy-aware Information Lossless Contrastive Learning for Hierarchical Text Classification,
NAACL 2024. Where the paper and its released code differ, the docstrings say which side is taken.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from hill.data import Documents
from hill.data.tokens import tokenize
from hill.encoders import TextEncoder
from hill.errors import ConfigError, need
from hill.models.base import MOST_LAYERS, WIDEST, HTCModel, ModelConfig, TextConfig, reorder_leaves, total
from hill.models.large_label import WideConfig, WideModel
from hill.models.layers import (
    Descriptions,
    LevelNet,
    all_gather,
    dissimilarity,
    drop_parents,
    initialise,
    is_label_list,
    most_specific,
    nt_xent,
    own_columns,
    row_norm,
    share_none,
)
from hill.settings import check_at_least, check_one_of, within
from hill.taxonomy import Taxonomy
from hill.tree import CONTROLS, METHODS, CodingTree, build_tree
from hill.tree._loops import MOST_HEIGHT
from hill.types import Batch, IntArray, Output, Packed

FEW = 512
"""Up to so many labels, sums over labels are matrix products on a GPU, which else would sort or add row by row."""


class LabelMap(nn.Module):
    """Features (B, D) to what the level-1 nodes receive (B, D, N), for labels with these level-1 parents.

    With a rank r the second map is the product of |Y| x r and r x |Y| weights, so that many labels fit.
    """

    parents: Tensor
    outer: nn.Parameter | None

    def __init__(self, parents: Tensor, nodes: int, rank: int) -> None:
        super().__init__()
        labels = len(parents)
        self.nodes = nodes
        self.register_buffer("parents", parents, persistent=False)
        self.slope = nn.Parameter(torch.empty(labels))
        self.offset = nn.Parameter(torch.empty(labels))
        self.bias = nn.Parameter(torch.empty(labels))
        if rank:
            self.outer = nn.Parameter(torch.empty(labels, rank))
            self.weight = nn.Parameter(torch.empty(rank, labels))
        else:
            self.outer = None
            self.weight = nn.Parameter(torch.empty(labels, labels))
        self.reset()

    @torch.no_grad()
    def reset(self, deviation: float = 0.02) -> None:
        """As the released code starts: row sums of N(0, 0.02²) weights, entries of the second map N(0, 0.02²)."""
        labels = len(self.slope)
        self.slope.normal_(0.0, deviation * labels**0.5)
        self.offset.zero_()
        self.bias.zero_()
        if self.outer is None:
            self.weight.normal_(0.0, deviation)
        else:
            each = (deviation / self.outer.shape[1] ** 0.5) ** 0.5
            self.outer.normal_(0.0, each)
            self.weight.normal_(0.0, each)

    def forward(self, features: Tensor) -> Tensor:
        """What each level-1 node receives of every feature: (B, D) to (B, D, N)."""
        folded_bias = self._sum_children(self.bias[:, None])[:, 0]
        if self.outer is None:
            return self._hinges(features, self._sum_children(self.weight)) + folded_bias
        return self._hinges(features, self.weight) @ self._sum_children(self.outer).T + folded_bias

    def _sum_children(self, rows: Tensor) -> Tensor:
        """P rows: the sum over the labels of each level-1 node."""
        return rows.new_zeros(self.nodes, rows.shape[1]).index_add(0, self.parents, rows)

    def _hinges(self, features: Tensor, weight: Tensor) -> Tensor:
        """Σ_k weight[:, k] ReLU(slope_k x + offset_k) for every feature x: (B, D) to (B, D, rows of weight)."""
        flat = self.slope == 0
        breaks = torch.where(flat, torch.inf, -self.offset / torch.where(flat, 1.0, self.slope))
        breaks, order = breaks.detach().sort()
        falling = (self.slope < 0).to(weight.dtype)
        start_slope = weight @ (falling * self.slope)
        start_value = weight @ (falling * self.offset + flat * self.offset.relu())
        turns = weight.T[order]  # (L, rows)
        steep = torch.stack([self.slope.abs(), self.slope.sign() * self.offset])[:, order, None]  # (2, L, 1)
        lines = torch.stack([start_slope, start_value])[:, None] + _running(turns * steep)  # (2, L + 1, rows)
        place = torch.searchsorted(breaks, features.detach())
        found: Tensor = _Rows.apply(lines.transpose(0, 1).flatten(1), place)  # type: ignore[no-untyped-call]
        slopes, values = found.chunk(2, dim=2)
        return slopes * features.unsqueeze(2) + values


def _running(turns: Tensor) -> Tensor:
    """Sums of the first 0, 1, ..., L rows: (2, L, rows) to (2, L + 1, rows)."""
    count = turns.shape[1]
    if multiplies(turns, count):
        return turns.new_ones(count + 1, count).tril(-1) @ turns
    return F.pad(turns.cumsum(dim=1), (0, 0, 1, 0))


def multiplies(tensor: Tensor, count: int) -> bool:
    """Whether sums over so many labels are matrix products."""
    return tensor.is_cuda and count <= FEW


class _Rows(torch.autograd.Function):
    """Rows of a table by number: (R, W) to (..., W)."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, numbers: Tensor) -> Tensor:
        ctx.save_for_backward(numbers)
        ctx.count = len(table)
        return F.embedding(numbers, table)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (numbers,) = ctx.saved_tensors
        numbers, grad = numbers.flatten(), grad.flatten(0, -2)
        if multiplies(grad, ctx.count):
            belongs = torch.arange(ctx.count, device=grad.device)[:, None] == numbers
            return belongs.to(grad.dtype) @ grad, None
        return grad.new_zeros(ctx.count, grad.shape[1]).index_add(0, numbers, grad), None


MIDDLE = 0.25
"""A cosine at which a name says nothing."""


class LeafUnits(nn.Module):
    """ReLU units of each label, read from the document's vector by weights of their own.

    Side by side they are a wide hidden layer, as HiAGM's nodes are; the tree receives their sums.
    """

    parents: Tensor

    def __init__(self, width: int, count: int, parents: Tensor, nodes: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.count, self.nodes = count, nodes
        self.register_buffer("parents", parents, persistent=False)
        self.read = nn.Linear(width, len(parents) * count)
        self.lift = nn.Linear(count, hidden, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, text: Tensor) -> Tensor:
        """(B, D) to (B, L, U)."""
        units: Tensor = self.dropout(F.relu(self.read(text)))
        return units.reshape(text.shape[0], len(self.parents), self.count)

    def lifted(self, units: Tensor) -> Tensor:
        """What each node receives of the units of its labels: (B, L, U) to (B, N, D)."""
        sums = units.new_zeros(units.shape[0], self.nodes, self.count).index_add(1, self.parents, units)
        lifted: Tensor = self.lift(sums)
        return lifted


class LeafNames(nn.Module):
    """How like a label's name and description a document is: weight times the cosine of their vectors, both learned.

    The vectors start small and anywhere; whoever trains a new model sets them to what the text encoder makes of names.
    """

    def __init__(self, labels: int, width: int, weight: float) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(labels, width) * 0.02)
        self.weight = nn.Parameter(torch.full((labels,), weight))

    def forward(self, text: Tensor) -> Tensor:
        """What the names add to the logits: (B, D) to (B, L)."""
        cosines = F.normalize(text, dim=1) @ F.normalize(self.vectors, dim=1).T
        return self.weight * (cosines - MIDDLE)


class StructureEncoder(nn.Module):
    """h (B, D) to h_T (B, D): projector, layers of nodes, readout of each layer, alignment.

    `parents[i]` is the node that receives label i. What the layers are is left to subclasses, which set `align` too.
    """

    align: nn.Sequential
    units: LeafUnits | None
    """What labels compute of a document by weights of their own; nothing in the paper."""

    def __init__(
        self, parents: Tensor, nodes: int, width: int, hidden: int, readout: str, dropout: float, label_rank: int
    ) -> None:
        super().__init__()
        self.readout = readout
        self.features = nn.Sequential(
            nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.Dropout(dropout)
        )
        self.labels = LabelMap(parents, nodes, label_rank)
        self.dropout = nn.Dropout(dropout)
        self.units = None

    @abstractmethod
    def layers(self, received: Tensor) -> Iterator[Tensor]:
        """The nodes of each layer, from what the projector gives the first: (B, N, D) to (B, N, D) a layer."""

    def forward(self, text: Tensor, units: Tensor | None = None) -> Tensor:
        """Vectors of documents, and units of the labels if there are any, to vectors that passed through: (B, D)."""
        with torch.autocast(text.device.type, enabled=False):
            received = self.labels(self.features(text.float())).transpose(1, 2)  # (B, N, D)
            if self.units is not None and units is not None:
                received = received + self.units.lifted(units)
            received = self.dropout(received)
        read = [self._read(nodes) for nodes in self.layers(received)]
        aligned: Tensor = self.align(torch.cat(read, dim=1))
        return aligned

    def add_units(self, count: int, dropout: float) -> None:
        """Let each label compute so many numbers of a document's vector, and pass them on upwards."""
        width = int(self.features[0].in_features)  # type: ignore[arg-type]
        self.units = LeafUnits(width, count, self.labels.parents, self.labels.nodes, self.hidden, dropout)

    @property
    def hidden(self) -> int:
        """Width of the nodes."""
        return int(self.features[0].out_features)  # type: ignore[arg-type]

    def _read(self, nodes: Tensor) -> Tensor:
        """η: one vector of a layer's nodes, (B, N, D) to (B, D)."""
        if self.readout == "sum":
            return nodes.sum(dim=1)
        return nodes.mean(dim=1) if self.readout == "mean" else nodes.amax(dim=1)


class TreeEncoder(StructureEncoder):
    """h (B, D) to h_T (B, D): projector, one feed-forward net a level over child sums, readout, alignment.

    `parents[k][i]` is the parent on level k + 1 of node i on level k. As in the released code: two linear layers a net,
    BatchNorm after each except at the root, dropout 0.5 and a linear layer after the concatenated readouts. Different:
    the leaves are never materialised (see `LabelMap`), so that the dropouts of the projector fall on the document's
    features and on what level 1 receives, not on each copy and each leaf.
    """

    def __init__(
        self,
        parents: Sequence[Tensor],
        width: int,
        hidden: int,
        readout: str = "sum",
        norm: str = "batch",
        dropout: float = 0.1,
        readout_dropout: float = 0.5,
        label_rank: int = 0,
    ) -> None:
        sizes = [*(len(level) for level in parents), 1]
        super().__init__(parents[0], sizes[1], width, hidden, readout, dropout, label_rank)
        self.sizes = sizes
        for level, above in enumerate(parents[1:], start=1):
            self.register_buffer(f"parents{level}", above, persistent=False)
        self.levels = nn.ModuleList(
            LevelNet(hidden, norm if level < len(parents) else "none") for level in range(1, len(parents) + 1)
        )
        self.align = alignment(len(parents) * hidden, width, readout_dropout)
        initialise(self)

    def layers(self, received: Tensor) -> Iterator[Tensor]:
        """The nodes of levels 1, ..., K: (B, N1, D) to (B, N, D) a level."""
        for level, net in enumerate(self.levels, start=1):
            nodes = net(received)
            yield nodes
            if level < len(self.levels):
                received = self._sum_children(nodes, level)

    def _sum_children(self, nodes: Tensor, level: int) -> Tensor:
        """u_v = Σ over children of v: (B, N below, D) to (B, N, D)."""
        above = self.get_buffer(f"parents{level}")
        sums = nodes.new_zeros(nodes.shape[0], self.sizes[level + 1], nodes.shape[2])
        return sums.index_add(1, above, nodes)


def alignment(read: int, width: int, dropout: float) -> nn.Sequential:
    """From the concatenated readouts to the width of the text's vector."""
    return nn.Sequential(nn.Dropout(dropout), nn.Linear(read, width))


LAYERS = {"gcn": 2, "gat": 2, "gin": 3}
"""The graph convolutions, and how many layers of each the paper has."""


class GraphEncoder(StructureEncoder):
    """h (B, D) to h_T (B, D): projector, x ← norm(ReLU(conv(x))) a layer over the labels, readout, alignment.

    Edges run both ways between `child[e]` and `parent[e]`; nothing stands above the roots. The convolutions are those
    of PyTorch Geometric with its defaults: GCN with symmetric normalisation; GAT with one head and slope 0.2; GIN with
    ε = 0 and a net of two linear layers. As in the released code, weights of GCN and GAT start as Glorot and those of
    GIN's net as all other linear layers do. Different: a batch is one graph by offsets, not copies of a graph that are
    collated each step; the loops that GCN and GAT add to the edges are there from the start, so that no layer has to
    look for loops and wait for the device; the dropouts of the projector fall as in `TreeEncoder`.
    """

    edges: Tensor

    def __init__(
        self,
        kind: str,
        child: Tensor,
        parent: Tensor,
        labels: int,
        width: int,
        hidden: int,
        layers: int = 0,
        readout: str = "sum",
        norm: str = "batch",
        dropout: float = 0.1,
        readout_dropout: float = 0.5,
        label_rank: int = 0,
    ) -> None:
        super().__init__(torch.arange(labels), labels, width, hidden, readout, dropout, label_rank)
        layers = layers or LAYERS[kind]
        loops = torch.arange(0 if kind == "gin" else labels)
        edges = torch.stack([torch.cat([child, parent, loops]), torch.cat([parent, child, loops])])
        self.register_buffer("edges", edges, persistent=False)
        self.convolutions = nn.ModuleList(_convolution(kind, hidden) for _ in range(layers))
        self.norms = nn.ModuleList(row_norm(norm, hidden) for _ in range(layers))
        self.align = alignment(layers * hidden, width, readout_dropout)
        initialise(self)

    def layers(self, received: Tensor) -> Iterator[Tensor]:
        """The labels after each convolution: (B, L, D) to (B, L, D) a layer."""
        edges = self._batch_edges(*received.shape[:2])
        rows = received.flatten(0, 1)  # (B · L, D)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            # float32 under autocast too, since the next layer may sum very many children of a label
            rows = norm(F.relu(convolution(rows, edges)).float())
            yield rows.view(received.shape)

    def _batch_edges(self, documents: int, labels: int) -> Tensor:
        """The edges of a batch, whose document b has the rows b · L, ..., b · L + L - 1: (2, B · E)."""
        starts = labels * torch.arange(documents, device=self.edges.device)
        return (self.edges[:, None] + starts[:, None]).flatten(1)


def _convolution(kind: str, width: int) -> nn.Module:
    library = need("torch_geometric.nn", "gnn", f"structure={kind}")
    if kind == "gin":
        net = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        sums: nn.Module = library.GINConv(net)
        return sums
    convolution: nn.Module = {"gcn": library.GCNConv, "gat": library.GATConv}[kind](width, width, add_self_loops=False)
    return convolution


NEGATIVES = ("all", "others", "weighted")


class Partners(nn.Module):
    """How much documents of the whole batch, also of one that several processes share, belong apart or together.

    Their labels are targets (B, L) or lists (B, M).
    """

    edges: Tensor

    def __init__(self, edges: Tensor, labels: int) -> None:
        super().__init__()
        self.labels = labels
        self.register_buffer("edges", edges, persistent=False)  # child and parent, (E, 2)

    def negatives(self, labels: Tensor, kind: str) -> Tensor | None:
        """How much each document is a negative of each other: (B, B), or none for all alike."""
        match kind:
            case "others":
                return share_none(self._most_specific(all_gather(labels)))
            case "weighted":
                labels = all_gather(labels)
                return dissimilarity(own_columns(labels, self.labels) if is_label_list(labels) else labels)
        return None

    def alike(self, labels: Tensor) -> Tensor:
        """How much each document is a partner of each other: (B, B)."""
        return 1 - dissimilarity(self._most_specific(all_gather(labels)))

    def _most_specific(self, labels: Tensor) -> Tensor:
        """The most specific labels of documents: of targets (B, L) as such, of lists as columns of their own."""
        child, parent = self.edges.T
        if not is_label_list(labels):
            return most_specific(labels, child, parent)
        edges: Tensor = (parent * (self.labels + 1) + child).sort().values
        return own_columns(drop_parents(labels, edges, self.labels), self.labels)


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
        check_one_of(self.structure, STRUCTURES, "model.structure")
        check_one_of(self.method, (*METHODS, *CONTROLS), "model.method")
        check_one_of(self.negatives, NEGATIVES, "model.negatives")
        check_one_of(self.positives, ("own", "alike"), "model.positives")
        if self.positives != "own" and self.negatives != "all":
            raise ConfigError(
                f"model.negatives is '{self.negatives}', which leaves out what model.positives={self.positives} draws "
                "together; set one of them to its default"
            )
        check_one_of(self.views, ("own", "shared"), "model.views")
        check_one_of(self.classifier, CLASSIFIERS, "model.classifier")
        check_one_of(self.readout, ("sum", "mean", "max"), "model.readout")
        check_one_of(self.norm, ("batch", "layer"), "model.norm")
        within(self.layers, 0, MOST_LAYERS, "model.layers")
        within(self.leaf_units, 0, WIDEST, "model.leaf_units")
        check_at_least(self.name_weight, 0, "model.name_weight")
        if self.name_weight and self.text != "transformer":
            raise ConfigError(
                f"model.name_weight is {self.name_weight:g}, but model.text is '{self.text}', which knows no words at "
                "the start; set model.name_weight=0, or model.text=transformer"
            )
        within(self.height, 1, MOST_HEIGHT, "model.height")
        within(self.hidden, 0, WIDEST, "model.hidden")
        within(self.readout_dropout, 0, 1, "model.readout_dropout")
        check_at_least(self.contrast, 0, "model.contrast")
        check_at_least(self.contrast_labels, 0, "model.contrast_labels")
        check_at_least(self.temperature, 1e-3, "model.temperature")
        within(self.label_rank, 0, WIDEST, "model.label_rank")


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

    @classmethod
    def reorder_assets(
        cls, assets: Mapping[str, Any], old_config: HILLConfig, config: HILLConfig, source: IntArray
    ) -> dict[str, Any]:
        """The coding tree, if its settings are the same: most builders depend on the order of the labels."""
        settings = ("structure", "height", "method")
        if TREE_FILE not in assets or any(getattr(config, name) != getattr(old_config, name) for name in settings):
            return {}
        return {TREE_FILE: reorder_leaves(assets[TREE_FILE], source)}

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

    def branch_logits(self, batch: Batch, labels: Tensor) -> dict[str, Tensor]:
        """Split the logits of a batch of one document into what text, structure, names and bias add: (K) each."""
        text = self.text.read(batch)  # (1, D)
        tree, units = self.encode(text)
        weight, zero = self.head.weight[labels], torch.zeros_like(self.head.bias[labels])
        text_weight, tree_weight = weight[:, : text.shape[1]], weight[:, -text.shape[1] :]  # the same but for concat
        parts = {
            "text": zero if self.config.classifier == "tree" else text_weight @ text[0],
            "structure": zero if self.config.classifier == "text" else tree_weight @ tree[0],
        }
        if self.head_leaves is not None and units is not None:
            parts["structure"] = parts["structure"] + self.head_leaves.weight[labels] @ units.flatten()
        if self.names is not None:
            parts["names"] = self.names(text)[0, labels]
        return parts | {"bias": self.head.bias[labels]}

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
