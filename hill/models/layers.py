"""Layers, losses and batch tools that several models use.

Batches that several processes share; label lists; contrastive and softmax losses; label descriptions; the graph
encoders of HiAGM (`LabelGCN`, `TreeLSTM`); attention over tokens; and the feed-forward net of coding trees.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from hill.encoders import TextEncoder
from hill.encoders.packed import kernels_work

# Batches that several processes share


@dataclass(frozen=True)
class BatchShards:
    """How the documents of a batch are split: the number of documents per process, and the rank of this process."""

    sizes: Sequence[int]
    rank: int


_shards: BatchShards | None = None
"""The split of the current batch; None if this process has the whole batch."""


@contextmanager
def sharded_batch(shards: BatchShards | None) -> Iterator[None]:
    """Within this context, a batch is one shard of a larger one, or the whole batch if `shards` is None."""
    global _shards
    before, _shards = _shards, shards
    try:
        yield
    finally:
        _shards = before


def is_distributed() -> bool:
    """Whether other processes have shards of the current batch."""
    return _shards is not None


def all_gather(rows: Tensor) -> Tensor:
    """The rows of all processes in the order of their ranks: (B of this process, ...) to (B of all, ...)."""
    if _shards is None:
        return rows
    gathered: Tensor = _AllGather.apply(rows, _shards)  # type: ignore[no-untyped-call]
    return gathered


def all_reduce_sum(values: Tensor) -> Tensor:
    """The sum over all processes of a tensor of the same shape."""
    if _shards is None:
        return values
    summed: Tensor = _AllReduceSum.apply(values)  # type: ignore[no-untyped-call]
    return summed


class _AllGather(torch.autograd.Function):
    """As `dist.all_gather`, with gradients, and for shards of different sizes."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, shards: BatchShards) -> Tensor:
        ctx.shards = shards
        sent = rows.to(torch.uint8) if rows.dtype == torch.bool else rows
        sent = torch.cat(
            [sent, sent.new_zeros(max(shards.sizes) - len(sent), *sent.shape[1:])]
        )  # all send equally many
        received = [torch.empty_like(sent) for _ in shards.sizes]
        dist.all_gather(received, sent)
        return torch.cat([each[:size] for each, size in zip(received, shards.sizes, strict=True)]).to(rows.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """The rows of this process, times the number of processes, as gradients are averaged over processes."""
        sizes, rank = ctx.shards.sizes, ctx.shards.rank
        start = sum(sizes[:rank])
        return grad[start : start + sizes[rank]] * len(sizes), None


class _AllReduceSum(torch.autograd.Function):
    """As `dist.all_reduce`, with gradients; the version of torch.distributed.nn is deprecated."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        summed = values.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _AllReduceSum.forward(ctx, grad)


# Label lists


def is_label_list(labels: Tensor) -> bool:
    """Whether these are label lists (B, M), which are integers, and not boolean targets (B, L)."""
    return labels.dtype == torch.int64


def to_label_lists(labels: Tensor) -> Tensor:
    """Convert targets (B, L) to label lists (B, M), padded with L, M the most labels of a document; waits for a GPU."""
    present = labels > 0
    rows = torch.where(present, torch.arange(labels.shape[1], device=labels.device), labels.shape[1]).sort(dim=1).values
    return rows[:, : max(int(present.sum(dim=1).amax()), 1)]


def to_indicator(lists: Tensor, n_labels: int) -> Tensor:
    """Convert label lists (B, M) to targets (B, L)."""
    return torch.zeros(len(lists), n_labels + 1, device=lists.device).scatter_(1, lists, 1.0)[:, :n_labels]


# Initialisation and losses


@torch.no_grad()
def initialise(module: nn.Module, deviation: float = 0.02) -> None:
    """Initialise linear layers as BERT does: weights from N(0, 0.02²), biases 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.normal_(0.0, deviation)
            if layer.bias is not None:
                layer.bias.zero_()


MAX_KERNEL_BATCH = 1024
"""Documents up to which the kernel of NT-Xent reads a row of similarities at once."""


def use_kernels(tensor: Tensor) -> bool:
    """Whether the kernels of `hill.models.kernels` are used: on a GPU, if fp32 matrices may be multiplied in TF32."""
    return tensor.is_cuda and torch.get_float32_matmul_precision() != "highest" and kernels_work()


@cache
def structure_kernels() -> Any:
    """The kernels of the structure encoder; they need Triton."""
    return import_module("hill.models.kernels")


def nt_xent(one: Tensor, other: Tensor, temperature: float = 1.0, negatives: Tensor | None = None) -> Tensor:
    """NT-Xent over two views of every document, as the released code of HILL computes it.

    Row i of `one` and row i of `other` (B, D) are partners; all other rows of both views are negatives. Similarity is
    the cosine divided by the temperature; the loss is the mean of 2B cross entropies with the partner as target.
    With `negatives` (B, B), rows of document j are negatives of document i only if entry (i, j) is true. If several
    processes share the batch, B counts the documents of all, in `negatives` too.
    """
    if negatives is None and not is_distributed() and len(one) <= MAX_KERNEL_BATCH and use_kernels(one):
        with torch.autocast(one.device.type, enabled=False):  # the kernels read fp32
            fused: Tensor = structure_kernels().NTXent.apply(one.float(), other.float(), temperature)
        return fused
    one, other = all_gather(one), all_gather(other)
    views = F.normalize(torch.cat([one, other]).float(), dim=1)  # (2B, D)
    with torch.autocast(views.device.type, enabled=False):  # a low temperature would amplify rounding errors of bf16
        similarity = views @ views.T / temperature  # (2B, 2B)
    if negatives is not None:
        excluded = (~negatives).fill_diagonal_(False)  # partners stay
        similarity = similarity.masked_fill(excluded.repeat(2, 2), float("-inf"))
    similarity.fill_diagonal_(float("-inf"))
    partner = torch.arange(len(views), device=views.device).roll(len(one))
    return F.cross_entropy(similarity, partner)


def level_softmax(logits: Tensor, levels: Sequence[Tensor]) -> Tensor:
    """Probabilities that sum to 1 over the labels of each level: (B, L) to (B, L)."""
    scores = torch.zeros_like(logits, dtype=torch.float32)
    for rows in levels:
        scores[:, rows] = logits[:, rows].float().softmax(dim=1)
    return scores


def level_softmax_loss(logits: Tensor, labels: Tensor, levels: Sequence[Tensor]) -> Tensor:
    """Cross entropy per level, averaged over all pairs of a document and a level on which it has labels.

    Several labels on one level share the target equally.
    """
    total, reached = logits.new_zeros((), dtype=torch.float32), logits.new_zeros((), dtype=torch.float32)
    for rows in levels:
        gold = labels[:, rows].float()
        counts = gold.sum(dim=1)
        target = gold / counts.clamp(min=1)[:, None]
        total = total - (target * logits[:, rows].float().log_softmax(dim=1)).sum()
        reached = reached + (counts > 0).sum()
    return total / reached.clamp(min=1)


def zlpr_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Zero-bounded log-sum-exp pairwise ranking loss (Su et al., 2022), the mean over documents.

    Per document log(1 + Σ exp(s) over labels that it lacks) + log(1 + Σ exp(-s) over its labels): small if every label
    of the document has a logit above 0, and every other label one below. It does not shrink as labels get more.
    """
    logits, labels = logits.float(), labels.bool()
    zero = torch.zeros_like(logits[:, :1])
    lacking = torch.cat([logits.masked_fill(labels, float("-inf")), zero], dim=1).logsumexp(dim=1)
    having = torch.cat([(-logits).masked_fill(~labels, float("-inf")), zero], dim=1).logsumexp(dim=1)
    return (lacking + having).mean()


MIN_SCORE = 0.25
"""`ConditionalSoftmax.choose` also predicts labels above this score that are not on the best path."""


class ConditionalSoftmax(nn.Module):
    """One softmax over each group of siblings: over the children of each label, and over the roots.

    `levels[0]` are the roots, and every edge leads from a later level (`child`) to an earlier one (`parent`). A label
    with several parents is in several groups, with the same logit.

    The paper sums over the labels of a document, and uses this loss only for documents with one path. Here the loss is
    a mean over groups, and does not grow with the depth; several labels of a group share the target equally; a document
    may end above the leaves: groups below its labels do not count.
    """

    child: Tensor
    parent: Tensor
    group: Tensor
    prior: Tensor

    def __init__(
        self, levels: Sequence[Tensor], child: Tensor, parent: Tensor, counts: Tensor, adjust: float = 0.0
    ) -> None:
        super().__init__()
        root = len(counts)  # above the roots of the taxonomy
        depth = torch.empty(root, dtype=torch.long)
        for level, rows in enumerate(levels):
            depth[rows] = level
        child = torch.cat([levels[0], child])
        parent = torch.cat([torch.full_like(levels[0], root), parent])
        order = depth[child].argsort(stable=True)
        # Edges of one level; when a level is computed, all labels above it are done.
        ends = [0, *torch.bincount(depth[child]).cumsum(0).tolist()]
        self._levels = [slice(start, end) for start, end in pairwise(ends)]
        groups, group = torch.unique(parent[order], return_inverse=True)
        self._n_groups = len(groups)
        # Counts need no division by the sum over siblings: it is the same for a whole group and cancels.
        prior = adjust * (counts.double() + 1).log().float()
        buffers = {"child": child[order], "parent": parent[order], "group": group, "prior": prior}
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer, persistent=False)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy per group, averaged over all pairs of a document and a group in which it has labels.

        With adjustment, τ log P(child | parent) is added to the logits, with one more document in each count.
        """
        gold = labels.float().index_select(1, self.child)  # (B, E)
        counts = self._group_sum(gold)  # (B, groups)
        target = gold / counts.clamp(min=1).index_select(1, self.group)
        total = -(target * self._conditional(logits.float() + self.prior)).sum()
        return total / (counts > 0).sum().clamp(min=1)

    def scores(self, logits: Tensor) -> Tensor:
        """The product of conditional probabilities along the most probable path from a root: (B, L) to (B, L)."""
        return self._best_path(self._conditional(logits.float())).exp()

    def choose(self, scores: Tensor) -> Tensor:
        """Predict from the roots down the best child of each predicted label, and labels above 0.25: (B, L) to (B, L).

        If several labels share a target, none has a score near 1, and a threshold of 0.5 would predict too few. On
        documents with one path (ICD-10-CM) and with several (arXiv), micro F1 was at most 3 points below that of the
        best threshold; with 0.5, 7 to 36 points.
        """
        values = scores.float().index_select(1, self.child)
        is_best = values == self._group_max(values).index_select(1, self.group)  # (B, E)
        return (self._best_path(is_best.float().log()) == 0) | (scores > MIN_SCORE)

    def _best_path(self, steps: Tensor) -> Tensor:
        """The highest sum of the steps along a path from a root to each label: (B, E) to (B, L)."""
        values = steps.new_full((steps.shape[0], len(self.prior) + 1), -torch.inf)
        values[:, -1] = 0.0  # above the roots
        for edges in self._levels:
            incoming = values.index_select(1, self.parent[edges]) + steps[:, edges]
            values = values.scatter_reduce(1, self.child[edges].expand_as(incoming), incoming, "amax")
        return values[:, :-1]

    def _conditional(self, logits: Tensor) -> Tensor:
        """The log of P(child | parent) of every edge: (B, L) to (B, E)."""
        values = logits.index_select(1, self.child)
        highest = self._group_max(values.detach())
        sums = self._group_sum((values - highest.index_select(1, self.group)).exp())
        return values - (highest + sums.log()).index_select(1, self.group)

    def _group_sum(self, values: Tensor) -> Tensor:
        """(B, E) to (B, groups)."""
        return values.new_zeros(values.shape[0], self._n_groups).index_add(1, self.group, values)

    def _group_max(self, values: Tensor) -> Tensor:
        """(B, E) to (B, groups)."""
        lowest = values.new_full((values.shape[0], self._n_groups), -torch.inf)
        return lowest.scatter_reduce(1, self.group.expand_as(values), values, "amax")


# Labels as texts, nodes and queries

CHUNK = 256
"""Descriptions that are encoded at a time."""


class Descriptions(nn.Module):
    """The vectors of the label descriptions (L, D), without gradient, encoded again every `every` steps."""

    ids: Tensor
    mask: Tensor
    vectors: Tensor

    def __init__(self, ids: Sequence[Sequence[int]], pad: int, width: int, every: int) -> None:
        super().__init__()
        self.every = every
        self.steps = 0
        lengths = torch.tensor([max(len(each), 1) for each in ids])
        longest = int(lengths.max())
        padded = [[*each, *[pad] * (longest - len(each))] for each in ids]
        self.register_buffer("ids", torch.tensor(padded), persistent=False)
        self.register_buffer("mask", (torch.arange(longest) < lengths[:, None]).long(), persistent=False)
        self.register_buffer("vectors", torch.zeros(len(ids), width))

    def forward(self, text: TextEncoder) -> Tensor:
        """The vectors at this step."""
        if self.steps % self.every == 0:
            self.vectors = self.encode(text)
        self.steps += 1
        return self.vectors

    @torch.no_grad()
    def encode(self, text: TextEncoder) -> Tensor:
        """Encode all descriptions, without dropout."""
        training = text.training
        text.eval()
        ids, mask = self.ids[:, : text.longest], self.mask[:, : text.longest]
        starts = range(0, len(ids), CHUNK)
        vectors = torch.cat([text(ids[i : i + CHUNK], mask[i : i + CHUNK]) for i in starts])
        text.train(training)
        return vectors.float()

    def get_extra_state(self) -> Tensor:
        """The number of steps, saved with the weights: a resumed training encodes at the same steps."""
        return torch.tensor(self.steps)

    def set_extra_state(self, state: Tensor) -> None:
        """Continue from this number of steps."""
        self.steps = int(state)


class LabelGCN(nn.Module):
    """One graph convolution of HiAGM over the edges from `child[e]` to `parent[e]`; `prior[e]` is P(child | parent).

    With trainable edge weights a (up, from 1) and z (down, from the prior), and one scalar gate σ per node,

        up_k   = σ(h_k g1 + b1_k) (Σ over children j of k a_jk h_j + B1_k)
        down_k = σ(h_k g2 + b2_k) (Σ over parents j of k z_kj h_j + B2_k)
        self_k = σ(h_k g3) h_k

    and the result is the ReLU of their sum, with dropout on each. The released code stores a and z as masked
    matrices of all pairs of labels; here only edges have weights. It leaves b2 uninitialised; here it starts at 0.
    """

    child: Tensor
    parent: Tensor

    def __init__(
        self, child: Tensor, parent: Tensor, prior: Tensor, nodes: int, width: int, dropout: float = 0.05
    ) -> None:
        super().__init__()
        self.register_buffer("child", child, persistent=False)
        self.register_buffer("parent", parent, persistent=False)
        self.up = nn.Parameter(torch.ones(len(child)))
        self.down = nn.Parameter(prior.float().clone())
        self.gates = nn.ParameterList(nn.init.xavier_normal_(torch.empty(width, 1)) for _ in range(3))
        self.gate_bias = nn.ParameterList(torch.zeros(nodes, 1) for _ in range(2))
        self.bias = nn.ParameterList(torch.zeros(nodes, width) for _ in range(2))
        self.dropout = nn.Dropout(dropout)

    def forward(self, nodes: Tensor) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        directions = ((self.child, self.parent, self.up), (self.parent, self.child, self.down))
        messages = []
        for direction, (source, target, weight) in enumerate(directions):
            sent = nodes[:, source] * weight[:, None]  # (B, E, D)
            received = torch.zeros_like(nodes, dtype=sent.dtype).index_add(1, target, sent)
            gate = (nodes @ self.gates[direction] + self.gate_bias[direction]).sigmoid()  # (B, N, 1)
            messages.append(gate * (received + self.bias[direction]))
        own = (nodes @ self.gates[2]).sigmoid() * nodes
        summed: Tensor = self.dropout(messages[0]) + self.dropout(messages[1]) + self.dropout(own)
        return summed.relu()


class TreeLSTM(nn.Module):
    """HiAGM's Tree-LSTM: half of each node's state comes from its children, half from its parents.

    The released code runs node by node, and reads the weights of the edges down at the wrong place, where they are 0;
    here they start at P(child | parent). A node with several parents receives their sum.
    """

    def __init__(
        self, child: Tensor, parent: Tensor, prior: Tensor, nodes: int, width: int, dropout: float = 0.05
    ) -> None:
        super().__init__()
        self.up = EdgeLSTM(child, parent, torch.ones(len(child)), nodes, width, width - width // 2)
        self.down = EdgeLSTM(parent, child, prior, nodes, width, width // 2)
        self.dropout = nn.Dropout(dropout)

    def forward(self, nodes: Tensor) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        states: Tensor = self.dropout(torch.cat([self.up(nodes), self.down(nodes)], dim=2))
        return states


class EdgeLSTM(nn.Module):
    """An LSTM along the edges of a graph without cycles; a node receives the weighted states of its sources.

    Nodes of one topological generation are computed at once: time grows with the longest path, not with the nodes.
    """

    source: Tensor
    target: Tensor

    def __init__(self, source: Tensor, target: Tensor, weight: Tensor, nodes: int, width: int, memory: int) -> None:
        super().__init__()
        self.memory = memory
        self.weight = nn.Parameter(weight.float().clone())
        self.read = nn.Linear(width, 4 * memory)
        self.hear = nn.Linear(memory, 3 * memory)
        self.forget = nn.Linear(memory, memory)
        self.register_buffer("source", source, persistent=False)
        self.register_buffer("target", target, persistent=False)
        generation = torch.zeros(nodes, dtype=torch.long)  # the length of the longest path to each node
        while not torch.equal(
            generation, later := generation.scatter_reduce(0, target, generation[source] + 1, "amax")
        ):
            generation = later
        self.generations = int(generation.max()) + 1 if nodes else 0
        for number in range(self.generations):
            rows = (generation == number).nonzero()[:, 0]
            edges = (generation[target] == number).nonzero()[:, 0]
            self.register_buffer(f"rows{number}", rows, persistent=False)
            self.register_buffer(f"edges{number}", edges, persistent=False)
            self.register_buffer(f"place{number}", torch.searchsorted(rows, target[edges]), persistent=False)

    def forward(self, nodes: Tensor) -> Tensor:
        """(B, N, D) to states (B, N, memory)."""
        gates: Tensor = self.read(nodes).to(self.weight.dtype)  # (B, N, 4 · memory)
        states = gates.new_zeros(*gates.shape[:2], self.memory)
        cells = states
        for number in range(self.generations):
            rows = self.get_buffer(f"rows{number}")
            edges, place = self.get_buffer(f"edges{number}"), self.get_buffer(f"place{number}")
            source, weight, own = self.source[edges], self.weight[edges, None], gates[:, rows]
            received = states[:, source] * weight  # (B, edges of the generation, memory)
            zeros = own.new_zeros(*own.shape[:2], self.memory)
            keys = own[..., : 3 * self.memory] + self.hear(zeros.index_add(1, place, received))
            input_gate, output_gate, content = keys.chunk(3, dim=2)
            forget_gate = (own[:, place, 3 * self.memory :] + self.forget(received)).sigmoid()
            remembered = zeros.index_add(1, place, forget_gate * cells[:, source] * weight)
            cell = input_gate.sigmoid() * content.tanh() + remembered
            states = states.index_copy(1, rows, output_gate.sigmoid() * cell.tanh())
            cells = cells.index_copy(1, rows, cell)
        return states


def attend(labels: Tensor, states: Tensor, mask: Tensor) -> Tensor:
    """Attention of labels (L, S) over the token states of each document (B, T, S), without padding: (B, L, S)."""
    products = (labels @ states.transpose(1, 2)).float()  # (B, L, T)
    # the smallest number instead of -inf: a document without tokens gets no NaN
    attention = products.masked_fill(mask[:, None] == 0, torch.finfo(products.dtype).min).softmax(dim=2)
    return attention.to(states.dtype) @ states


def mean_state(states: Tensor, mask: Tensor) -> Tensor:
    """The mean over the tokens of each document, without padding: (B, T, S) to (B, S)."""
    weights = mask[:, :, None].float()
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)


# Nodes of a coding tree


class LevelNet(nn.Module):
    """φ_FFN of one level of a coding tree: twice linear, batch norm and ReLU, shared by all nodes of the level."""

    def __init__(self, width: int, batch_norm: bool = True) -> None:
        super().__init__()
        self.linear = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.norm = nn.ModuleList(DistributedBatchNorm(width) if batch_norm else nn.Identity() for _ in range(2))

    def forward(self, nodes: Tensor) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        rows = nodes.flatten(0, 1)  # the statistics are over all nodes of all documents
        for linear, norm in zip(self.linear, self.norm, strict=True):
            if isinstance(norm, DistributedBatchNorm) and use_kernels(rows):
                rows = norm.after_linear(rows, linear)
            else:
                rows = F.relu(norm(linear(rows)))
        return rows.reshape(nodes.shape)


class DistributedBatchNorm(nn.BatchNorm1d):
    """Batch norm over the rows of all processes that share the batch; `nn.SyncBatchNorm` needs GPUs.

    A batch of one row has no variance: it uses the running statistics.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, D) to (rows, D)."""
        if self.training and is_distributed():
            return self._normalise_shards(rows)
        if self.training and len(rows) == 1:
            return F.batch_norm(rows, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        return super().forward(rows)

    def after_linear(self, rows: Tensor, linear: Any) -> Tensor:
        """ReLU of the batch norm of a linear layer, with few kernels on a GPU: (rows, D) to (rows, D)."""
        if self.training and len(rows) > 1 and not is_distributed():
            found: Tensor = structure_kernels().LinearNormRelu.apply(
                rows, linear.weight, linear.bias, self.weight, self.bias,
                self.running_mean, self.running_var, self.num_batches_tracked, self.momentum, self.eps,
            )  # fmt: skip
            return found
        if self.training or torch.is_grad_enabled():
            return F.relu(self(linear(rows)))
        scale = self.weight * (self.running_var + self.eps).rsqrt()  # constant in prediction: folded into the weights
        bias = (linear.bias - self.running_mean) * scale + self.bias
        folded: Tensor = torch._addmm_activation(bias, rows, (linear.weight * scale[:, None]).T)
        return folded

    def _normalise_shards(self, rows: Tensor) -> Tensor:
        """Normalise with mean and variance over the rows of all processes; there are at least 2 rows."""
        count = all_reduce_sum(rows.new_tensor(float(len(rows))))
        mean = all_reduce_sum(rows.sum(dim=0)) / count
        centred = rows - mean
        variance = all_reduce_sum(centred.square().sum(dim=0)) / count
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * count / (count - 1), self.momentum)
        return centred * (variance + self.eps).rsqrt() * self.weight + self.bias
