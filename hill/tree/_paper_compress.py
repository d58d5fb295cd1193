"""The first loop of Algorithm 2 on many nodes at once: compress the pair of children that saves most entropy."""

import numpy as np
from numpy.typing import NDArray

from hill.tree._compile import njit
from hill.tree._paper_rooms import close_room, enter, pop_edge, price, settle
from hill.tree._paper_state import EDGES, HEAP, NODES, PAIRS, State, sink

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@njit
def find_pair(state: State, slot: int, other: int) -> int:
    """Return the place in the table of pairs where the edge between two slots is, or would be."""
    low, high = min(slot, other), max(slot, other)
    key = low * len(state.slots) + high
    mixed = (low * 73856093) ^ (high * 19349663)
    spot = (mixed ^ (mixed >> 17)) & (len(state.pairs) - 1)
    while state.pairs[spot].key >= 0 and state.pairs[spot].key != key:
        spot = (spot + 1) & (len(state.pairs) - 1)
    return spot


@njit
def set_pair(state: State, slot: int, other: int, edge: int) -> None:
    """Record the edge between two slots."""
    if 2 * state.counts[PAIRS] > len(state.pairs):
        # Pairs of slots that were joined are never asked for again: start over with the living edges.
        for spot in range(len(state.pairs)):
            state.pairs[spot].key = -1
        state.counts[PAIRS] = 0
        for old in range(state.counts[EDGES]):
            if state.edges[old].alive:
                set_pair_at(state, find_pair(state, state.halves[2 * old].slot, state.halves[2 * old + 1].slot), old)
    set_pair_at(state, find_pair(state, slot, other), edge)


@njit
def set_pair_at(state: State, spot: int, edge: int) -> None:
    """Record an edge at a place of the table of pairs."""
    slot, other = state.halves[2 * edge].slot, state.halves[2 * edge + 1].slot
    state.counts[PAIRS] += state.pairs[spot].key < 0
    state.pairs[spot].key = min(slot, other) * len(state.slots) + max(slot, other)
    state.pairs[spot].edge = edge


@njit
def attach(state: State, half: int, slot: int) -> None:
    """Put half an edge on the list of a slot."""
    state.halves[half].slot = slot
    state.halves[half].following = state.slots[slot].first_half
    state.slots[slot].first_half = half
    state.slots[slot].degree += 1


@njit
def add_edge(state: State, slot: int, other: int, weight: float) -> None:
    """Make an edge between two slots."""
    edge = state.counts[EDGES]
    state.counts[EDGES] += 1
    state.edges[edge].weight, state.edges[edge].alive, state.edges[edge].room = weight, True, -1
    attach(state, 2 * edge, slot)
    attach(state, 2 * edge + 1, other)
    set_pair(state, slot, other, edge)
    enter(state, edge)


@njit
def move_edge(state: State, half: int, slot: int) -> None:
    """Hand an edge of a joined slot to the slot that goes on; parallel edges become one of their summed weight."""
    edge, other = half // 2, state.halves[half ^ 1].slot
    spot = find_pair(state, slot, other)
    if state.pairs[spot].key < 0:
        attach(state, half, slot)
        set_pair(state, slot, other, edge)
        if state.edges[edge].room < 0:
            enter(state, edge)
        return
    twin = state.pairs[spot].edge
    state.edges[edge].alive = state.edges[twin].alive = False
    add_edge(state, slot, other, state.edges[twin].weight + state.edges[edge].weight)


@njit
def leave_rooms(state: State, slot: int) -> None:
    """Close every room a slot owns."""
    half = state.slots[slot].first_half
    while half >= 0:
        room = state.edges[half // 2].room
        if room >= 0 and (state.rooms[room].owner == slot or state.rooms[room].owner < 0):
            state.edges[half // 2].room = -1
            # The other edges of a room that was just closed find it without an owner.
            if state.rooms[room].owner == slot:
                close_room(state, room)
        half = state.halves[half].following


@njit
def join(state: State, slot: int, small: int) -> None:
    """Let a slot stand for the parent of two: it takes over the edges of the one with fewer."""
    leave_rooms(state, small)
    state.slots[slot].volume += state.slots[small].volume
    state.slots[slot].node = state.counts[NODES]
    state.counts[NODES] += 1
    half = state.slots[small].first_half
    while half >= 0:
        following = state.halves[half].following
        if state.edges[half // 2].alive:
            move_edge(state, half, slot)
        half = following


@njit
def next_pair(state: State) -> int:
    """Take the edge whose compression saves most out of its room, or say -1 when none is left."""
    while state.counts[HEAP] > 0:
        room = state.heap[0]
        if not settle(state, room):
            continue
        gain, low, high = price(state, room)
        if gain == state.rooms[room].gain and low == state.rooms[room].low and high == state.rooms[room].high:
            return pop_edge(state, room)
        state.rooms[room].gain, state.rooms[room].low, state.rooms[room].high = gain, low, high
        sink(state, state.rooms[room].place)
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
    """Compress while a group has more than two children and an edge; write the tree nodes that arise."""
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
