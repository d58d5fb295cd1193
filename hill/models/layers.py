"""The structure encoder of HILL: a document's vector runs up the coding tree and comes back as another vector.

Zhu et al., HILL, NAACL 2024, section 3.3; details the paper leaves out follow the released code (see `TreeEncoder`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from hill.encoders import TextEncoder


@dataclass(frozen=True)
class BatchShares:
    """How the documents of a batch are spread: how many each process has, and which process this is."""

    sizes: Sequence[int]
    rank: int


class _Now:
    """How the batch under way is spread. One place for all threads: torch.compile can read no context variable."""

    shares: BatchShares | None = None


@contextmanager
def shared_batch(shares: BatchShares | None) -> Iterator[None]:
    """While this lasts, a batch is one process's part of a larger one; or the whole, where there are no shares."""
    before, _Now.shares = _Now.shares, shares
    try:
        yield
    finally:
        _Now.shares = before


def is_distributed() -> bool:
    """Whether other processes hold parts of the batch."""
    return _Now.shares is not None


def all_gather(part: Tensor) -> Tensor:
    """The rows of all processes in their order: (B of this one, ...) to (B of all, ...)."""
    shares = _Now.shares
    if shares is None:
        return part
    rows: Tensor = _Whole.apply(part, shares)  # type: ignore[no-untyped-call]
    return rows


def all_reduce_sum(part: Tensor) -> Tensor:
    """The sum over all processes of a tensor that has the same shape in each."""
    if not is_distributed():
        return part
    found: Tensor = _Total.apply(part)  # type: ignore[no-untyped-call]
    return found


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, shares: BatchShares) -> Tensor:
        ctx.shares = shares
        sent = part.to(torch.uint8) if part.dtype == torch.bool else part
        sent = torch.cat([sent, sent.new_zeros(max(shares.sizes) - len(sent), *sent.shape[1:])])  # all send as much
        received = [torch.empty_like(sent) for _ in shares.sizes]
        dist.all_gather(received, sent)
        rows = torch.cat([each[:size] for each, size in zip(received, shares.sizes, strict=True)])
        return rows.to(part.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        shares = ctx.shares
        start = sum(shares.sizes[: shares.rank])
        return grad[start : start + shares.sizes[shares.rank]] * len(shares.sizes), None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        return _all_reduced(part)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _all_reduced(grad)


def _all_reduced(part: Tensor) -> Tensor:
    found = part.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(found)
    return found


def is_label_list(labels: Tensor) -> bool:
    """Whether these are lists of labels (B, M) and not targets (B, L): numbers, not truths."""
    return labels.dtype == torch.int64


def to_label_lists(labels: Tensor) -> Tensor:
    """Targets (B, L) as lists as wide as the most labels of a document; it waits for the device."""
    known = labels > 0
    order = torch.where(known, torch.arange(labels.shape[1], device=labels.device), labels.shape[1]).sort(dim=1).values
    return order[:, : max(int(known.sum(dim=1).amax()), 1)]


def to_indicator(lists: Tensor, count: int) -> Tensor:
    """Lists of so many labels (B, M) as targets (B, L)."""
    return torch.zeros(len(lists), count + 1, device=lists.device).scatter_(1, lists, 1.0)[:, :count]


def own_columns(lists: Tensor, count: int) -> Tensor:
    """Targets over the labels that the batch has, in place of all: (B, M) to (B, B * M).

    Each label has one column; those of its repetitions, and of what fills up the lists, are 0.
    """
    columns = lists.flatten()
    ordered, place = columns.sort(stable=True)
    fresh = torch.ones_like(ordered, dtype=torch.bool)
    fresh[1:] = ordered[1:] != ordered[:-1]
    first = torch.zeros_like(fresh).scatter(0, place, fresh & (ordered < count))
    has = (lists[:, :, None] == columns).any(dim=1)  # (B, B * M)
    return (has & first).float()


def drop_parents(lists: Tensor, edges: Tensor, count: int) -> Tensor:
    """Lists without the labels that have a child in the same list: (B, M) to (B, M).

    `edges` are the numbers parent * (L + 1) + child of the taxonomy's edges, sorted.
    """
    pairs = lists[:, :, None] * (count + 1) + lists[:, None, :]  # (B, M, M)
    place = torch.searchsorted(edges, pairs).clamp(max=len(edges) - 1)
    covered = (edges[place] == pairs).any(dim=2) if len(edges) else torch.zeros_like(lists, dtype=torch.bool)
    return lists.masked_fill(covered, count)


@torch.no_grad()
def initialise(module: nn.Module, deviation: float = 0.02) -> None:
    """Linear layers as BERT starts them: weights from N(0, 0.02²), biases 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.normal_(0.0, deviation)
            if layer.bias is not None:
                layer.bias.zero_()


def nt_xent(
    one: Tensor,
    other: Tensor,
    temperature: float = 1.0,
    negatives: Tensor | None = None,
    positives: Tensor | None = None,
) -> Tensor:
    """NT-Xent over both views of every document, as the released code computes it.

    Row i of `one` and row i of `other` (B, D) are partners; every other row of either view is a negative. Similarity is
    the cosine divided by the temperature; the loss is the mean of 2B cross entropies, each with the partner as target.
    With `negatives` (B, B), row j of either view counts that many times in the denominators of document i, 0 leaving
    it out; the diagonal is not read. With `positives` (B, B), row j of either view is a partner of document i too, with
    that weight beside the 1 of its own partner: the target of each cross entropy is then a distribution, as in
    supervised contrastive learning (Khosla et al., NeurIPS 2020). Of a batch that several processes share, B are all
    documents, those of `negatives` and `positives` too.
    """
    one, other = all_gather(one), all_gather(other)
    views = F.normalize(torch.cat([one, other]).float(), dim=1)  # (2B, D)
    with torch.autocast(views.device.type, enabled=False):  # a low temperature would magnify what bf16 rounds away
        similarity = views @ views.T / temperature  # (2B, 2B)
    if negatives is not None:
        weights = negatives.float().log().fill_diagonal_(0.0)  # partners count once
        similarity = similarity + weights.repeat(2, 2)
    similarity.fill_diagonal_(float("-inf"))
    if positives is not None:
        target = positives.float().clone().fill_diagonal_(1.0).repeat(2, 2).fill_diagonal_(0.0)
        logs = similarity.log_softmax(dim=1).masked_fill(target == 0, 0.0)  # of a document itself it is -inf
        return -(target * logs).sum(dim=1).div(target.sum(dim=1)).mean()
    partner = torch.arange(len(views), device=views.device).roll(len(one))
    return F.cross_entropy(similarity, partner)


def most_specific(labels: Tensor, child: Tensor, parent: Tensor) -> Tensor:
    """The labels of each document without those that have a child in it: (B, L) to (B, L), along these edges."""
    known = labels.float()
    below = torch.zeros_like(known).index_add(1, parent, known[:, child])  # (B, L)
    return known * (below == 0)


def share_none(labels: Tensor) -> Tensor:
    """1 for two documents without a common label, else 0: (B, L) to (B, B)."""
    return (_common(labels) == 0).float()


def dissimilarity(labels: Tensor) -> Tensor:
    """1 - Jaccard similarity of the labels of two documents, 1 where neither has any: (B, L) to (B, B)."""
    common = _common(labels)
    counts = labels.float().sum(dim=1)
    either = counts[:, None] + counts - common
    return 1 - common / either.clamp(min=1)


def _common(labels: Tensor) -> Tensor:
    """How many labels two documents share: (B, L) to (B, B)."""
    with torch.autocast(labels.device.type, enabled=False):  # bf16 counts to 256 only
        return labels.float() @ labels.float().T


def level_softmax(logits: Tensor, levels: Sequence[Tensor]) -> Tensor:
    """Probabilities that sum to 1 over the labels of each level: (B, L) to (B, L)."""
    scores = torch.zeros_like(logits, dtype=torch.float32)
    for rows in levels:
        scores[:, rows] = logits[:, rows].float().softmax(dim=1)
    return scores


def level_softmax_loss(logits: Tensor, labels: Tensor, levels: Sequence[Tensor]) -> Tensor:
    """Cross entropy at each level that a document reaches, averaged over documents and levels reached.

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


SHARE = 0.25
"""Score above which a label is chosen beside the likeliest path."""


class ConditionalSoftmax(nn.Module):
    """The children of each parent, and the roots, as groups in each of which the labels compete.

    `levels[0]` are the roots, and every edge leads from a later level (`child`) to an earlier one (`parent`). A label
    with several parents competes in several groups, with the same logit.

    The paper sums over a document's labels and has this loss for one path a document only (for several it has a sigmoid
    a label). Here the loss is a mean over groups, so that it does not grow with the depth; several labels in a group
    share the target equally; and a document may end above the leaves: then it reaches no group below.
    """

    child: Tensor
    parent: Tensor
    group: Tensor
    prior: Tensor

    def __init__(
        self, levels: Sequence[Tensor], child: Tensor, parent: Tensor, counts: Tensor, adjust: float = 0.0
    ) -> None:
        super().__init__()
        root = len(counts)
        depth = torch.empty(root, dtype=torch.long)
        for level, rows in enumerate(levels):
            depth[rows] = level
        child = torch.cat([levels[0], child])
        parent = torch.cat([torch.full_like(levels[0], root), parent])
        order = depth[child].argsort(stable=True)
        self._sizes = torch.bincount(depth[child]).tolist()
        groups, group = torch.unique(parent[order], return_inverse=True)
        self._groups = len(groups)
        # The sum over siblings that makes a prior of these counts is the same for all of a group, and cancels there.
        prior = adjust * (counts.double() + 1).log().float()
        buffers = {"child": child[order], "parent": parent[order], "group": group, "prior": prior}
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer, persistent=False)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy in each group that a document has labels of, averaged over documents and groups reached.

        With adjustment the logits are those plus τ log P(child | parent), one document added to the count of each.
        """
        gold = labels.float().index_select(1, self.child)  # (B, E)
        shared = self._sum(gold)  # (B, groups)
        target = gold / shared.clamp(min=1).index_select(1, self.group)
        total = -(target * self._conditional(logits.float() + self.prior)).sum()
        return total / (shared > 0).sum().clamp(min=1)

    def scores(self, logits: Tensor) -> Tensor:
        """The product of conditional probabilities from a root down, by the likeliest way: (B, L) to (B, L)."""
        steps = self._conditional(logits.float())  # (B, E)
        found = torch.full_like(logits, -torch.inf, dtype=torch.float32)
        found = torch.cat([found, torch.zeros_like(found[:, :1])], dim=1)  # (B, L + 1), above the roots log 1
        for edges in self._by_level():
            arriving = found.index_select(1, self.parent[edges]) + steps[:, edges]
            found = found.scatter_reduce(1, self.child[edges].expand_as(arriving), arriving, "amax")
        return found[:, :-1].exp()

    def choose(self, scores: Tensor) -> Tensor:
        """From the roots down the likeliest child of what is chosen, and all that scores above 0.25: (B, L) to (B, L).

        Where labels share a target none comes near 1, so that 0.5 finds too few. On documents with one path (ICD-10-CM)
        and with several (arXiv), micro F1 was at most 3 points below that of the best threshold; with 0.5, 7 to 36.
        """
        values = scores.float().index_select(1, self.child)
        best = (values == self._best(values).index_select(1, self.group)).float()  # (B, E)
        chosen = torch.zeros_like(scores, dtype=torch.float32)
        chosen = torch.cat([chosen, torch.ones_like(chosen[:, :1])], dim=1)  # (B, L + 1)
        for edges in self._by_level():
            arriving = chosen.index_select(1, self.parent[edges]) * best[:, edges]
            chosen = chosen.scatter_reduce(1, self.child[edges].expand_as(arriving), arriving, "amax")
        return (chosen[:, :-1] > 0) | (scores > SHARE)

    def _conditional(self, logits: Tensor) -> Tensor:
        """The log of P(child | parent), for every edge: (B, L) to (B, E)."""
        values = logits.index_select(1, self.child)
        best = self._best(values.detach())
        sums = self._sum((values - best.index_select(1, self.group)).exp())
        return values - (best + sums.log()).index_select(1, self.group)

    def _sum(self, values: Tensor) -> Tensor:
        """(B, E) to (B, groups)."""
        return values.new_zeros(values.shape[0], self._groups).index_add(1, self.group, values)

    def _best(self, values: Tensor) -> Tensor:
        """(B, E) to (B, groups)."""
        lowest = values.new_full((values.shape[0], self._groups), -torch.inf)
        return lowest.scatter_reduce(1, self.group.expand_as(values), values, "amax")

    def _by_level(self) -> Iterator[slice]:
        """The edges of each level, so that all above a label is known when its turn comes."""
        start = 0
        for size in self._sizes:
            yield slice(start, start + size)
            start += size


CHUNK = 256
"""Descriptions encoded at a time."""


class Descriptions(nn.Module):
    """The vectors of the labels' descriptions (L, D), without gradient, encoded anew every so many steps."""

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
        """The vectors that the encoder gives now, without dropout."""
        training = text.training
        text.eval()
        ids, mask = self.ids[:, : text.longest], self.mask[:, : text.longest]
        starts = range(0, len(ids), CHUNK)
        vectors = torch.cat([text(ids[i : i + CHUNK], mask[i : i + CHUNK]) for i in starts])
        text.train(training)
        return vectors.float()

    def get_extra_state(self) -> Tensor:
        """The steps taken, saved with the weights, so that a resumed training encodes when it would have."""
        return torch.tensor(self.steps)

    def set_extra_state(self, state: Tensor) -> None:
        """Go on from these steps."""
        self.steps = int(state)


class LabelGCN(nn.Module):
    """One layer over the edges from `child[e]` to `parent[e]`, where `prior[e]` is P(child | parent).

    With trainable weights a of the edges up (from 1) and z of those down (from the prior), and σ a scalar gate a node,

        up_k   = σ(h_k g1 + b1_k) (Σ over children j of k a_jk h_j + B1_k)
        down_k = σ(h_k g2 + b2_k) (Σ over parents j of k z_kj h_j + B2_k)
        self_k = σ(h_k g3) h_k

    and the result is ReLU of their sum, with dropout on each. The released code holds a and z as masked matrices of all
    pairs of labels; here only the edges have weights. It also leaves b2 uninitialised; here it starts at 0 as b1 does.
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
        up = self._gate(nodes, 0) * (self._hear(nodes, self.child, self.parent, self.up) + self.bias[0])
        down = self._gate(nodes, 1) * (self._hear(nodes, self.parent, self.child, self.down) + self.bias[1])
        own = (nodes @ self.gates[2]).sigmoid() * nodes
        heard: Tensor = self.dropout(up) + self.dropout(down) + self.dropout(own)
        return heard.relu()

    def _gate(self, nodes: Tensor, direction: int) -> Tensor:
        """One number between 0 and 1 a node: (B, N, 1)."""
        gate: Tensor = (nodes @ self.gates[direction] + self.gate_bias[direction]).sigmoid()
        return gate

    @staticmethod
    def _hear(nodes: Tensor, source: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        """The weighted sum of what comes along the edges into each node: (B, N, D)."""
        said = nodes[:, source] * weight[:, None]  # (B, edges, D)
        return torch.zeros_like(nodes, dtype=said.dtype).index_add(1, target, said)


class TreeLSTM(nn.Module):
    """Half of each node's result comes from below and half from above; it is built as `LabelGCN` is.

    The released code runs node by node, and reads the weights of the edges down where no edge is, so that they start at
    0; here they start at P(child | parent). A node with several parents hears the sum of them.
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
    """An LSTM along edges without cycles: a node waits for all sources of its edges, and hears their states weighted.

    Nodes equally far from a start run together, so that time grows with the longest way and not with the nodes.
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
        wave = _waves(source, target, nodes)
        self.waves = int(wave.max()) + 1 if nodes else 0
        for number in range(self.waves):
            rows = (wave == number).nonzero()[:, 0]
            edges = (wave[target] == number).nonzero()[:, 0]
            self.register_buffer(f"rows{number}", rows, persistent=False)
            self.register_buffer(f"edges{number}", edges, persistent=False)
            self.register_buffer(f"place{number}", torch.searchsorted(rows, target[edges]), persistent=False)

    def forward(self, nodes: Tensor) -> Tensor:
        """(B, N, D) to states (B, N, memory)."""
        gates: Tensor = self.read(nodes).to(self.weight.dtype)  # (B, N, 4 · memory)
        states = gates.new_zeros(*gates.shape[:2], self.memory)
        cells = states
        for number in range(self.waves):
            rows = self.get_buffer(f"rows{number}")
            state, cell = self._step(number, gates[:, rows], states, cells)
            states, cells = states.index_copy(1, rows, state), cells.index_copy(1, rows, cell)
        return states

    def _step(self, number: int, gates: Tensor, states: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
        """States and cells of the nodes of one wave: (B, nodes of the wave, memory) each."""
        edges, place = self.get_buffer(f"edges{number}"), self.get_buffer(f"place{number}")
        source, weight = self.source[edges], self.weight[edges, None]
        heard = states[:, source] * weight  # (B, edges of the wave, memory)
        nothing = gates.new_zeros(*gates.shape[:2], self.memory)
        keys = gates[..., : 3 * self.memory] + self.hear(nothing.index_add(1, place, heard))
        enter, leave, content = keys.chunk(3, dim=2)
        keep = (gates[:, place, 3 * self.memory :] + self.forget(heard)).sigmoid()
        kept = nothing.index_add(1, place, keep * cells[:, source] * weight)
        cell = enter.sigmoid() * content.tanh() + kept
        return leave.sigmoid() * cell.tanh(), cell


def _waves(source: Tensor, target: Tensor, nodes: int) -> Tensor:
    """How many edges the longest way that ends in each node has: (nodes)."""
    wave = torch.zeros(nodes, dtype=torch.long)
    while not torch.equal(wave, later := wave.scatter_reduce(0, target, wave[source] + 1, "amax")):
        wave = later
    return wave


def attend(labels: Tensor, states: Tensor, mask: Tensor) -> Tensor:
    """What each label reads of a text: labels (L, S) and token states (B, T, S) to (B, L, S).

    A softmax over the tokens of a document, padding left out, of the products of label and state.
    """
    fit = (labels @ states.transpose(1, 2)).float()  # (B, L, T)
    # the least number and not infinity, so that a document without tokens gets no NaN
    share = fit.masked_fill(mask[:, None] == 0, torch.finfo(fit.dtype).min).softmax(dim=2)
    return share.to(states.dtype) @ states


def mean_state(states: Tensor, mask: Tensor) -> Tensor:
    """The mean over a document's tokens, padding left out: (B, T, S) to (B, S)."""
    weights = mask[:, :, None].float()
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)


class LevelNet(nn.Module):
    """φ_FFN of one level: linear, norm, ReLU, twice; the same for all its nodes."""

    def __init__(self, width: int, norm: str) -> None:
        super().__init__()
        self.linear = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.norm = nn.ModuleList(row_norm(norm, width) for _ in range(2))

    def forward(self, nodes: Tensor) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        shape = nodes.shape
        nodes = nodes.reshape(-1, shape[-1])  # BatchNorm sees all nodes of all documents as rows
        for linear, norm in zip(self.linear, self.norm, strict=True):
            nodes = F.relu(norm(linear(nodes)))
        return nodes.reshape(shape)


class RowNorm(nn.BatchNorm1d):
    """BatchNorm over all rows of a batch, also of one that several processes share.

    For a batch of a single row, which has no variance, it uses its running statistics.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, D) to (rows, D)."""
        if self.training and is_distributed():
            return self._normalise_shared(rows)
        if self.training and len(rows) == 1:
            return F.batch_norm(rows, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        return super().forward(rows)

    def _normalise_shared(self, rows: Tensor) -> Tensor:
        """The same with mean and variance over the rows of all processes, of which there are at least 2."""
        count = all_reduce_sum(rows.new_tensor(float(len(rows))))
        mean = all_reduce_sum(rows.sum(dim=0)) / count
        centred = rows - mean
        variance = all_reduce_sum(centred.square().sum(dim=0)) / count
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * count / (count - 1), self.momentum)
        return centred * (variance + self.eps).rsqrt() * self.weight + self.bias


def row_norm(name: str, width: int) -> nn.Module:
    """The normalisation of rows with this name: batch, layer or none."""
    return {"batch": RowNorm, "layer": nn.LayerNorm}[name](width) if name != "none" else nn.Identity()
