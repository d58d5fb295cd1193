"""The coding tree of the HILL paper (NAACL 2024): Algorithms 1 and 2 as written."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from hill.tree._loops import (
    COMPILED,
    Floats,
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
    children, roots = len(siblings.volumes), len(siblings.group_volumes)
    parents = np.concatenate([children + siblings.groups, np.zeros(roots + children, dtype=np.int64)])
    volumes = np.concatenate([siblings.volumes, siblings.group_volumes, np.zeros(children)])
    cuts = np.zeros(len(volumes))
    groups = np.zeros(len(volumes), dtype=np.int64)
    state = new_state(siblings.volumes, siblings.groups, siblings.group_volumes, len(siblings.weights))
    sizes = np.bincount(siblings.groups, minlength=roots)
    compress(state, siblings.sources, siblings.targets, siblings.weights, sizes, parents, volumes, cuts, groups)
    nodes = int(state.counts[NODES])
    forest = (parents[:nodes], groups[:nodes], volumes[:nodes], cuts[:nodes])
    middle = align(delete_to_height_2(*forest, children, roots, 0.0, False), children + roots)
    return Split(middle, entropy_saved(siblings, middle, siblings.group_volumes, 0.0))


# Compression: the first loop of Algorithm 2
#
# Every edge is stored with its end of larger volume, its owner. Edges of one owner and one weight form a bucket, a
# pairing heap ordered by the volume of the other end, so that its first edge saves most. A binary heap orders the
# buckets by the saving of their first edges. Thus a merge updates only the buckets of the smaller end, and a hub with
# very many neighbours does not make the algorithm quadratic.

BUCKETS, HEAP, TABLE, EDGES, PAIRS, NODES = range(6)
"""Indices of `State.counts`: buckets in use, buckets in the heap, entries in each table, edges, and tree nodes."""


class State(NamedTuple):
    """The state of the compression, as arrays of records."""

    counts: Ints
    slots: Any
    """The current children of the groups; a slot that was merged into another is not used again."""
    group_volume: Floats
    edges: Any
    halves: Any
    """Half-edges, a linked list per slot; those of edge e are 2e and 2e + 1."""
    buckets: Any
    heap: Ints
    free: Ints
    bucket_table: Ints
    pairs: Any
    """Hash table from two slots to the edge between them."""


# Fields of the records
SLOT = "node:i8 volume:f8 group:i8 first_half:i8 degree:i8"
EDGE = "weight:f8 alive:i8 bucket:i8 child:i8 sibling:i8 key_volume:f8 key_node:i8"
HALF = "slot:i8 next:i8"
BUCKET = "owner:i8 weight:f8 top:i8 index:i8 gain:f8 low:i8 high:i8"
PAIR = "key:i8 edge:i8"


def records(size: int, fields: str) -> Any:
    """Return records of zeros; without compilation as objects, which Python accesses much faster than arrays."""
    names = [tuple(field.split(":")) for field in fields.split()]
    if COMPILED:
        return np.zeros(size, dtype=names)
    return [SimpleNamespace(**{name: 0 for name, _ in names}) for _ in range(size)]


def new_state(volumes: Floats, groups: Ints, group_volumes: Floats, edges: int) -> State:
    """Return a state with a slot per child and memory for the edges, which are added later."""
    capacity = max(2 * edges, 1)
    # Half of a table has space for all current edges and some deleted ones, so that it is seldom rebuilt.
    table = 1 << (3 * edges).bit_length()
    state = State(
        counts=np.array([0, 0, 0, 0, 0, len(volumes) + len(group_volumes)]),
        slots=records(len(volumes), SLOT),
        group_volume=group_volumes,
        edges=records(capacity, EDGE),
        halves=records(2 * capacity, HALF),
        buckets=records(capacity, BUCKET),
        heap=np.zeros(capacity, dtype=np.int64),
        free=np.arange(capacity),
        bucket_table=np.full(table, -1, dtype=np.int64),
        pairs=records(table, PAIR),
    )
    fill(state, volumes, groups)
    return state


@njit
def fill(state: State, volumes: Floats, groups: Ints) -> None:
    """Initialise every slot with its child, without edges."""
    for slot in range(len(volumes)):
        state.slots[slot].node = slot
        state.slots[slot].volume = volumes[slot]
        state.slots[slot].group = groups[slot]
        state.slots[slot].first_half = -1
    for position in range(len(state.pairs)):
        state.pairs[position].key = -1


@njit
def before(state: State, bucket: int, other: int) -> bool:
    """Return whether a bucket precedes another: larger gain, then smaller nodes."""
    if state.buckets[bucket].gain != state.buckets[other].gain:
        return bool(state.buckets[bucket].gain > state.buckets[other].gain)
    if state.buckets[bucket].low != state.buckets[other].low:
        return bool(state.buckets[bucket].low < state.buckets[other].low)
    return bool(state.buckets[bucket].high < state.buckets[other].high)


@njit
def sift_up(state: State, index: int) -> None:
    """Restore the heap after the bucket at an index has gained priority."""
    bucket = state.heap[index]
    while index > 0 and before(state, bucket, state.heap[(index - 1) // 2]):
        state.heap[index] = state.heap[(index - 1) // 2]
        state.buckets[state.heap[index]].index = index
        index = (index - 1) // 2
    state.heap[index] = bucket
    state.buckets[bucket].index = index


@njit
def sift_down(state: State, index: int) -> None:
    """Restore the heap after the bucket at an index has lost priority."""
    bucket, size = state.heap[index], state.counts[HEAP]
    while 2 * index + 1 < size:
        best = 2 * index + 1
        if best + 1 < size and before(state, state.heap[best + 1], state.heap[best]):
            best += 1
        if before(state, bucket, state.heap[best]):
            break
        state.heap[index] = state.heap[best]
        state.buckets[state.heap[index]].index = index
        index = best
    state.heap[index] = bucket
    state.buckets[bucket].index = index


@njit
def other_end(state: State, edge: int, slot: int) -> int:
    """Return the slot at the other end of an edge."""
    end: int = state.halves[2 * edge].slot
    return end if end != slot else int(state.halves[2 * edge + 1].slot)


@njit
def meld(state: State, edge: int, other: int) -> int:
    """Meld two pairing heaps of edges and return the root."""
    if edge < 0 or other < 0:
        return max(edge, other)
    late = state.edges[edge].key_volume > state.edges[other].key_volume or (
        state.edges[edge].key_volume == state.edges[other].key_volume
        and state.edges[edge].key_node > state.edges[other].key_node
    )
    if late:
        edge, other = other, edge
    state.edges[other].sibling = state.edges[edge].child
    state.edges[edge].child = other
    return edge


@njit
def pop_edge(state: State, bucket: int) -> int:
    """Remove and return the first edge of a bucket."""
    edge: int = state.buckets[bucket].top
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
    state.buckets[bucket].top = root
    state.edges[edge].bucket = -1
    return edge


@njit
def close_bucket(state: State, bucket: int) -> None:
    """Remove a bucket from the heap and free it."""
    index = state.buckets[bucket].index
    state.counts[HEAP] -= 1
    last = state.heap[state.counts[HEAP]]
    state.buckets[bucket].index = -1
    if last != bucket:
        state.heap[index] = last
        state.buckets[last].index = index
        sift_up(state, index)
        sift_down(state, state.buckets[last].index)
    state.buckets[bucket].owner = -1
    state.counts[BUCKETS] -= 1
    state.free[state.counts[BUCKETS]] = bucket


@njit
def hash_bucket(state: State, owner: int, weight: float) -> int:
    """Return the first position to probe in the table of buckets."""
    fraction, _ = math.frexp(weight)
    bits = int(fraction * 9007199254740992.0)
    mixed = (((bits ^ (bits >> 29)) & 0x7FFFFFFF) * 19349663) ^ (owner * 73856093)
    return (mixed ^ (mixed >> 17)) & (len(state.bucket_table) - 1)


@njit
def rebuild_buckets(state: State) -> None:
    """Rebuild the table of buckets without those that were freed."""
    state.bucket_table[:] = -1
    state.counts[TABLE] = state.counts[HEAP]
    for index in range(state.counts[HEAP]):
        bucket = state.heap[index]
        position = hash_bucket(state, state.buckets[bucket].owner, state.buckets[bucket].weight)
        while state.bucket_table[position] >= 0:
            position = (position + 1) & (len(state.bucket_table) - 1)
        state.bucket_table[position] = bucket


@njit
def get_bucket(state: State, owner: int, weight: float) -> int:
    """Return the bucket of an owner's edges of one weight; create it if there is none."""
    position = hash_bucket(state, owner, weight)
    while state.bucket_table[position] >= 0:
        bucket = state.bucket_table[position]
        if state.buckets[bucket].owner == owner and state.buckets[bucket].weight == weight:
            return int(bucket)
        position = (position + 1) & (len(state.bucket_table) - 1)
    bucket = state.free[state.counts[BUCKETS]]
    state.counts[BUCKETS] += 1
    state.buckets[bucket].owner, state.buckets[bucket].weight, state.buckets[bucket].top = owner, weight, -1
    state.buckets[bucket].gain = -np.inf
    state.heap[state.counts[HEAP]] = bucket
    state.buckets[bucket].index = state.counts[HEAP]
    state.counts[HEAP] += 1
    state.bucket_table[position] = bucket
    state.counts[TABLE] += 1
    if 2 * state.counts[TABLE] > len(state.bucket_table):
        rebuild_buckets(state)
    return int(bucket)


@njit
def current_key(state: State, bucket: int) -> tuple[float, int, int]:
    """Return the current key of a bucket's first edge: the gain times VOL / 2, and the nodes of the pair."""
    owner, edge = state.buckets[bucket].owner, state.buckets[bucket].top
    total = state.slots[owner].volume + state.edges[edge].key_volume
    gain = state.edges[edge].weight * math.log2(state.group_volume[state.slots[owner].group] / total)
    node, other = state.slots[owner].node, state.edges[edge].key_node
    return gain, min(node, other), max(node, other)


@njit
def insert(state: State, edge: int) -> None:
    """Insert an edge into its bucket."""
    owner, slot = state.halves[2 * edge].slot, state.halves[2 * edge + 1].slot
    if state.slots[slot].volume > state.slots[owner].volume:
        owner, slot = slot, owner
    bucket = get_bucket(state, owner, state.edges[edge].weight)
    state.edges[edge].bucket = bucket
    state.edges[edge].child = state.edges[edge].sibling = -1
    state.edges[edge].key_volume, state.edges[edge].key_node = state.slots[slot].volume, state.slots[slot].node
    state.buckets[bucket].top = meld(state, state.buckets[bucket].top, edge)
    gain, low, high = current_key(state, bucket)
    if gain > state.buckets[bucket].gain or (
        gain == state.buckets[bucket].gain and (low, high) < (state.buckets[bucket].low, state.buckets[bucket].high)
    ):
        state.buckets[bucket].gain, state.buckets[bucket].low, state.buckets[bucket].high = gain, low, high
        sift_up(state, state.buckets[bucket].index)


@njit
def refresh(state: State, bucket: int) -> bool:
    """Update the first edge of a bucket; return False and close the bucket if no edge is left."""
    owner = state.buckets[bucket].owner
    while state.buckets[bucket].top >= 0:
        edge = state.buckets[bucket].top
        slot = other_end(state, edge, owner)
        if state.edges[edge].alive and state.edges[edge].key_node == state.slots[slot].node:
            return True
        pop_edge(state, bucket)
        if state.edges[edge].alive:
            insert(state, edge)
    close_bucket(state, bucket)
    return False


@njit
def pair_position(state: State, slot: int, other: int) -> int:
    """Return the position of the edge between two slots in the table of pairs, or where it would be."""
    low, high = min(slot, other), max(slot, other)
    key = low * len(state.slots) + high
    mixed = (low * 73856093) ^ (high * 19349663)
    position = (mixed ^ (mixed >> 17)) & (len(state.pairs) - 1)
    while state.pairs[position].key >= 0 and state.pairs[position].key != key:
        position = (position + 1) & (len(state.pairs) - 1)
    return position


@njit
def set_pair(state: State, slot: int, other: int, edge: int) -> None:
    """Store the edge between two slots in the table of pairs."""
    if 2 * state.counts[PAIRS] > len(state.pairs):
        # Pairs of merged slots are not needed any more: rebuild the table from the current edges.
        for position in range(len(state.pairs)):
            state.pairs[position].key = -1
        state.counts[PAIRS] = 0
        for old in range(state.counts[EDGES]):
            if state.edges[old].alive:
                set_pair_at(
                    state, pair_position(state, state.halves[2 * old].slot, state.halves[2 * old + 1].slot), old
                )
    set_pair_at(state, pair_position(state, slot, other), edge)


@njit
def set_pair_at(state: State, position: int, edge: int) -> None:
    """Store an edge at a position of the table of pairs."""
    slot, other = state.halves[2 * edge].slot, state.halves[2 * edge + 1].slot
    state.counts[PAIRS] += state.pairs[position].key < 0
    state.pairs[position].key = min(slot, other) * len(state.slots) + max(slot, other)
    state.pairs[position].edge = edge


@njit
def attach(state: State, half: int, slot: int) -> None:
    """Add a half-edge to the list of a slot."""
    state.halves[half].slot = slot
    state.halves[half].next = state.slots[slot].first_half
    state.slots[slot].first_half = half
    state.slots[slot].degree += 1


@njit
def add_edge(state: State, slot: int, other: int, weight: float) -> None:
    """Create an edge between two slots."""
    edge = state.counts[EDGES]
    state.counts[EDGES] += 1
    state.edges[edge].weight, state.edges[edge].alive, state.edges[edge].bucket = weight, True, -1
    attach(state, 2 * edge, slot)
    attach(state, 2 * edge + 1, other)
    set_pair(state, slot, other, edge)
    insert(state, edge)


@njit
def move_edge(state: State, half: int, slot: int) -> None:
    """Move an edge of a merged slot to the remaining slot; parallel edges become one with their summed weight."""
    edge, other = half // 2, state.halves[half ^ 1].slot
    position = pair_position(state, slot, other)
    if state.pairs[position].key < 0:
        attach(state, half, slot)
        set_pair(state, slot, other, edge)
        if state.edges[edge].bucket < 0:
            insert(state, edge)
        return
    twin = state.pairs[position].edge
    state.edges[edge].alive = state.edges[twin].alive = False
    add_edge(state, slot, other, state.edges[twin].weight + state.edges[edge].weight)


@njit
def close_buckets_of(state: State, slot: int) -> None:
    """Close every bucket of a slot."""
    half = state.slots[slot].first_half
    while half >= 0:
        bucket = state.edges[half // 2].bucket
        if bucket >= 0 and (state.buckets[bucket].owner == slot or state.buckets[bucket].owner < 0):
            state.edges[half // 2].bucket = -1
            # For the other edges of a bucket that was just closed, it has no owner.
            if state.buckets[bucket].owner == slot:
                close_bucket(state, bucket)
        half = state.halves[half].next


@njit
def join(state: State, slot: int, small: int) -> None:
    """Merge a slot with fewer edges into another, which then represents the new parent of the two."""
    close_buckets_of(state, small)
    state.slots[slot].volume += state.slots[small].volume
    state.slots[slot].node = state.counts[NODES]
    state.counts[NODES] += 1
    half = state.slots[small].first_half
    while half >= 0:
        next = state.halves[half].next
        if state.edges[half // 2].alive:
            move_edge(state, half, slot)
        half = next


@njit
def next_pair(state: State) -> int:
    """Remove and return the edge whose compression saves most, or -1 if none is left."""
    while state.counts[HEAP] > 0:
        bucket = state.heap[0]
        if not refresh(state, bucket):
            continue
        gain, low, high = current_key(state, bucket)
        if (
            gain == state.buckets[bucket].gain
            and low == state.buckets[bucket].low
            and high == state.buckets[bucket].high
        ):
            return pop_edge(state, bucket)
        state.buckets[bucket].gain, state.buckets[bucket].low, state.buckets[bucket].high = gain, low, high
        sift_down(state, state.buckets[bucket].index)
    return -1


@njit
def compress(
    state: State,
    sources: Ints,
    targets: Ints,
    weights: Floats,
    children: Ints,
    parents: Ints,
    volumes: Floats,
    cuts: Floats,
    groups: Ints,
) -> None:
    """Compress the best pair while a group has more than two children and an edge; store the new tree nodes."""
    for edge in range(len(weights)):
        add_edge(state, sources[edge], targets[edge], weights[edge])
    edge = next_pair(state)
    while edge >= 0:
        slot, small = state.halves[2 * edge].slot, state.halves[2 * edge + 1].slot
        group = state.slots[slot].group
        state.edges[edge].alive = False
        if children[group] > 2:
            children[group] -= 1
            if state.slots[slot].degree < state.slots[small].degree:
                slot, small = small, slot
            new = state.counts[NODES]
            parents[state.slots[slot].node] = parents[state.slots[small].node] = new
            parents[new] = len(state.slots) + group
            join(state, slot, small)
            volumes[new], cuts[new], groups[new] = state.slots[slot].volume, state.edges[edge].weight, group
        edge = next_pair(state)
