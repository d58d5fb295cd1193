"""The coding tree of the HILL paper (NAACL 2024): Algorithms 1 and 2 as written."""

from __future__ import annotations

import math
from heapq import heappop, heappush, heapreplace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from hill.tree._loops import (
    COMPILED,
    Floats,
    Forest,
    Ints,
    Siblings,
    align,
    check_height,
    delete_to_height_2,
    entropy_saved,
    insert_level,
    leaf_siblings,
    njit,
    root_siblings,
)
from hill.tree.coding_tree import CodingTree, Graph

ROUNDING = 1e-12
"""Bits that are rounding errors: equal savings summed in another order must tie."""


def build_paper(graph: Graph, height: int) -> CodingTree:
    """Build the paper's coding tree: compress to a binary tree, delete to height 2, grow at the leaves or the root.

    Children without a common edge are never compressed, since that saves nothing: the components of a disconnected
    graph are children of the root. Any node except the root and the leaves may be deleted. A level is inserted below
    the root only if the entropy is strictly lower than with a level above the leaves. Ties go to smaller nodes, which
    were created earlier. Levels with nothing left to split have nodes with one child.

    >>> edges = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (3, 5), (4, 5)]
    >>> matrix = np.zeros((6, 6))
    >>> for i, j in edges:
    ...     matrix[i, j] = matrix[j, i] = 1
    >>> build_paper(Graph.from_adjacency(matrix), 2).nested()
    [[0, 1, 2], [3, 4, 5]]
    """
    check_height(height)
    tree = CodingTree([np.zeros(len(graph), dtype=np.int64)])
    if height > 1:
        tree = insert_level(tree, 0, algorithm_2(leaf_siblings(graph, tree)).middle)
    root: Split | None = None
    leaves: Split | None = None
    while tree.height < height:
        # A level near the root does not change the split near the leaves, and vice versa.
        root = root or algorithm_2(root_siblings(graph, tree))
        leaves = leaves or algorithm_2(leaf_siblings(graph, tree))
        if root.saved - leaves.saved > ROUNDING * graph.volume:
            tree, root = insert_level(tree, tree.height - 1, root.middle), None
        else:
            tree, leaves = insert_level(tree, 0, leaves.middle), None
    return tree.canonical()


class Split(NamedTuple):
    """The result of Algorithm 2: the new parent of each child, and the entropy saved, times VOL."""

    middle: Ints
    saved: float


def algorithm_2(siblings: Siblings) -> Split:
    """Split nodes: compress their children to binary trees, delete to height 2, align."""
    children, roots, max_edges = len(siblings.volumes), len(siblings.group_volumes), 2 * len(siblings.weights)
    unused = np.zeros(children)
    forest = Forest(
        parents=np.concatenate([children + siblings.groups, np.zeros(roots + children, dtype=np.int64)]),
        groups=np.zeros(children + roots + children, dtype=np.int64),
        volumes=np.concatenate([siblings.volumes, siblings.group_volumes, unused]),
        cuts=np.zeros(children + roots + children),
    )
    sizes = np.bincount(siblings.groups, minlength=roots)
    tables = [(children, SLOT), (max_edges, EDGE), (2 * max_edges, HALF), (max_edges, BUCKET)]
    nodes = compress(siblings, forest, sizes, *(records(max(size, 1), fields) for size, fields in tables))
    forest = Forest(forest.parents[:nodes], forest.groups[:nodes], forest.volumes[:nodes], forest.cuts[:nodes])
    middle = align(delete_to_height_2(forest, children, roots, 0.0, False), children + roots)
    return Split(middle, entropy_saved(siblings, middle, siblings.group_volumes, 0.0))


# Compression: the first loop of Algorithm 2
#
# Every edge is stored with its end of larger volume, its owner. Edges of one owner and one weight form a bucket, a
# pairing heap ordered by the volume of the other end, so that its first edge saves most. A binary heap orders the
# buckets by the saving of their first edges. Thus a merge updates only the buckets of the smaller end, and a hub with
# very many neighbours does not make the algorithm quadratic.

# Fields of the records
SLOT = "node:i8 volume:f8 group:i8 first_half:i8 degree:i8"
EDGE = "weight:f8 alive:i8 bucket:i8 child:i8 sibling:i8 key_volume:f8 key_node:i8"
HALF = "slot:i8 next:i8"
BUCKET = "owner:i8 weight:f8 top:i8 gain:f8 low:i8 high:i8"

N_EDGES, N_BUCKETS, N_NODES = range(3)
"""Indices of `State.counts`: edges, buckets in use, and tree nodes."""


class State(NamedTuple):
    """The state of the compression, as arrays of records."""

    slots: Any
    """The current children of the groups; a slot that was merged into another is not used again."""
    edges: Any
    halves: Any
    """Half-edges, a linked list per slot; those of edge e are 2e and 2e + 1."""
    buckets: Any
    free: Ints
    """Numbers of unused buckets, from index counts[N_BUCKETS] on."""
    group_volumes: Floats
    counts: Ints
    edge_between: dict[int, int]
    """The edge between two slots, by `pair_key`."""
    bucket_of: dict[tuple[int, float], int]
    """The bucket of an owner and a weight."""
    heap: list[tuple[float, int, int, int]]
    """Negative gain and nodes of the first edge of each bucket, and the bucket. An outdated entry differs from the
    gain and nodes that the bucket stores."""


def records(size: int, fields: str) -> Any:
    """Return records of zeros; without compilation as objects, which Python accesses much faster than arrays."""
    names = [tuple(field.split(":")) for field in fields.split()]
    if COMPILED:
        return np.zeros(size, dtype=names)
    return [SimpleNamespace(**{name: 0 for name, _ in names}) for _ in range(size)]


@njit
def compress(siblings: Siblings, forest: Forest, sizes: Ints, slots: Any, edges: Any, halves: Any, buckets: Any) -> int:
    """Compress the best pair while a group has more than two children and an edge; return the number of tree nodes.

    The new nodes are added to the forest, which has space for them. `sizes` are the numbers of children per group.
    """
    children = len(siblings.volumes)
    counts = np.array([0, 0, children + len(sizes)])
    # The first entries define the types for the compiler.
    edge_between, bucket_of, heap = {-1: -1}, {(-1, 0.0): -1}, [(0.0, -1, -1, -1)]
    heap.clear()
    free = np.arange(len(buckets))
    state = State(slots, edges, halves, buckets, free, siblings.group_volumes, counts, edge_between, bucket_of, heap)
    for slot in range(children):
        slots[slot].node, slots[slot].volume = slot, siblings.volumes[slot]
        slots[slot].group, slots[slot].first_half = siblings.groups[slot], -1
    for edge in range(len(siblings.weights)):
        add_edge(state, siblings.sources[edge], siblings.targets[edge], siblings.weights[edge])
    edge = next_pair(state)
    while edge >= 0:
        slot, small = halves[2 * edge].slot, halves[2 * edge + 1].slot
        group = slots[slot].group
        edges[edge].alive = False
        if sizes[group] > 2:
            sizes[group] -= 1
            if slots[slot].degree < slots[small].degree:
                slot, small = small, slot
            new = counts[N_NODES]
            counts[N_NODES] += 1
            forest.parents[slots[slot].node] = forest.parents[slots[small].node] = new
            merge_slots(state, slot, small, new)
            forest.parents[new], forest.groups[new] = children + group, group
            forest.volumes[new], forest.cuts[new] = slots[slot].volume, edges[edge].weight
        edge = next_pair(state)
    return int(counts[N_NODES])


@njit
def next_pair(state: State) -> int:
    """Remove and return the edge whose compression saves most, or -1 if none is left."""
    while len(state.heap) > 0:
        negative_gain, low, high, number = state.heap[0]
        bucket = state.buckets[number]
        if bucket.gain != -negative_gain or bucket.low != low or bucket.high != high:
            heappop(state.heap)
        elif refresh(state, number):
            bucket.gain, bucket.low, bucket.high = first_key(state, number)
            if bucket.gain == -negative_gain and bucket.low == low and bucket.high == high:
                return pop_edge(state, number)
            heapreplace(state.heap, (-bucket.gain, bucket.low, bucket.high, number))
    return -1


@njit
def merge_slots(state: State, slot: int, small: int, node: int) -> None:
    """Merge a slot with fewer edges into another, which then represents the new tree node."""
    half = state.slots[small].first_half
    while half >= 0:  # close the buckets of the smaller slot
        edge = state.edges[half // 2]
        if edge.bucket >= 0 and state.buckets[edge.bucket].owner in (small, -1):
            # For the other edges of a bucket that was just closed, it has no owner.
            if state.buckets[edge.bucket].owner == small:
                close_bucket(state, edge.bucket)
            edge.bucket = -1
        half = state.halves[half].next
    state.slots[slot].volume += state.slots[small].volume
    state.slots[slot].node = node
    half = state.slots[small].first_half
    while half >= 0:
        next = state.halves[half].next
        if state.edges[half // 2].alive:
            move_edge(state, half, slot)
        half = next


# Edges


@njit
def pair_key(state: State, slot: int, other: int) -> int:
    """Return the key of two slots in `State.edge_between`."""
    return min(slot, other) * len(state.slots) + max(slot, other)


@njit
def add_edge(state: State, slot: int, other: int, weight: float) -> None:
    """Create an edge between two slots."""
    number = state.counts[N_EDGES]
    state.counts[N_EDGES] += 1
    edge = state.edges[number]
    edge.weight, edge.alive, edge.bucket = weight, True, -1
    attach(state, 2 * number, slot)
    attach(state, 2 * number + 1, other)
    state.edge_between[pair_key(state, slot, other)] = number
    insert(state, number)


@njit
def attach(state: State, half: int, slot: int) -> None:
    """Add a half-edge to the list of a slot."""
    state.halves[half].slot = slot
    state.halves[half].next = state.slots[slot].first_half
    state.slots[slot].first_half = half
    state.slots[slot].degree += 1


@njit
def move_edge(state: State, half: int, slot: int) -> None:
    """Move an edge of a merged slot to the remaining slot; parallel edges become one with their summed weight."""
    number, other = half // 2, state.halves[half ^ 1].slot
    edge = state.edges[number]
    del state.edge_between[pair_key(state, state.halves[half].slot, other)]
    key = pair_key(state, slot, other)
    if key in state.edge_between:
        twin = state.edge_between[key]
        edge.alive = state.edges[twin].alive = False
        add_edge(state, slot, other, state.edges[twin].weight + edge.weight)
        return
    attach(state, half, slot)
    state.edge_between[key] = number
    if edge.bucket < 0:
        insert(state, number)


# Buckets


@njit
def insert(state: State, number: int) -> None:
    """Insert an edge into the bucket of its owner and weight; create the bucket if there is none."""
    edge = state.edges[number]
    owner, slot = state.halves[2 * number].slot, state.halves[2 * number + 1].slot
    if state.slots[slot].volume > state.slots[owner].volume:
        owner, slot = slot, owner
    if (owner, edge.weight) in state.bucket_of:
        edge.bucket = state.bucket_of[owner, edge.weight]
    else:
        edge.bucket = state.free[state.counts[N_BUCKETS]]
        state.counts[N_BUCKETS] += 1
        state.bucket_of[owner, edge.weight] = edge.bucket
        new = state.buckets[edge.bucket]
        new.owner, new.weight, new.top, new.gain = owner, edge.weight, -1, -np.inf
    edge.child = edge.sibling = -1
    edge.key_volume, edge.key_node = state.slots[slot].volume, state.slots[slot].node
    bucket = state.buckets[edge.bucket]
    bucket.top = meld(state, bucket.top, number)
    gain, low, high = first_key(state, edge.bucket)
    if gain > bucket.gain or (gain == bucket.gain and (low, high) < (bucket.low, bucket.high)):
        bucket.gain, bucket.low, bucket.high = gain, low, high
        heappush(state.heap, (-gain, low, high, edge.bucket))


@njit
def first_key(state: State, number: int) -> tuple[float, int, int]:
    """Return the current key of a bucket's first edge: the gain times VOL / 2, and the nodes of the pair."""
    owner, edge = state.slots[state.buckets[number].owner], state.edges[state.buckets[number].top]
    gain = edge.weight * math.log2(state.group_volumes[owner.group] / (owner.volume + edge.key_volume))
    return gain, min(owner.node, edge.key_node), max(owner.node, edge.key_node)


@njit
def refresh(state: State, number: int) -> bool:
    """Update the first edge of a bucket; return False and close the bucket if no edge is left."""
    bucket = state.buckets[number]
    while bucket.top >= 0:
        top = bucket.top
        slot = state.halves[2 * top].slot
        if slot == bucket.owner:
            slot = state.halves[2 * top + 1].slot
        if state.edges[top].alive and state.edges[top].key_node == state.slots[slot].node:
            return True
        pop_edge(state, number)
        if state.edges[top].alive:
            insert(state, top)
    close_bucket(state, number)
    return False


@njit
def close_bucket(state: State, number: int) -> None:
    """Free a bucket; its entry in the heap is outdated then."""
    bucket = state.buckets[number]
    del state.bucket_of[bucket.owner, bucket.weight]
    bucket.owner, bucket.gain = -1, -np.inf
    state.counts[N_BUCKETS] -= 1
    state.free[state.counts[N_BUCKETS]] = number


@njit
def pop_edge(state: State, number: int) -> int:
    """Remove and return the first edge of a bucket."""
    edge: int = state.buckets[number].top
    pairs, rest = -1, state.edges[edge].child
    while rest >= 0:
        left = rest
        right = state.edges[left].sibling
        rest = state.edges[right].sibling if right >= 0 else -1
        pair = meld(state, left, right)
        state.edges[pair].sibling = pairs
        pairs = pair
    root = -1
    while pairs >= 0:
        next = state.edges[pairs].sibling
        root = meld(state, root, pairs)
        pairs = next
    state.buckets[number].top = root
    state.edges[edge].bucket = -1
    return edge


@njit
def meld(state: State, number: int, other: int) -> int:
    """Meld two pairing heaps of edges and return the root."""
    if number < 0 or other < 0:
        return max(number, other)
    a, b = state.edges[number], state.edges[other]
    if a.key_volume > b.key_volume or (a.key_volume == b.key_volume and a.key_node > b.key_node):
        a, b, number, other = b, a, other, number
    b.sibling, a.child = a.child, other
    return number
