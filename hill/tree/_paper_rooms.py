"""Rooms: the edges of a shrinking graph, queued so that the best pair to compress is found without rescanning a hub.

An edge waits in the room of its end of larger volume, with the edges of equal weight there. All of them have the same
order whatever the owner's volume becomes: the smaller the other end, the better. So a room is a pairing heap by the
other end's (volume, node), and only the best of each room is in the heap of rooms. A key there can be out of date, but
volumes only grow, so it is never too low and is corrected when it comes up.
"""

import math

import numpy as np

from hill.tree._compile import njit
from hill.tree._paper_state import HEAP, ROOMS, TABLE, State, rise, sink


@njit
def other_end(state: State, edge: int, slot: int) -> int:
    """Return the slot at the far end of an edge."""
    end: int = state.halves[2 * edge].slot
    return end if end != slot else int(state.halves[2 * edge + 1].slot)


@njit
def meld(state: State, edge: int, other: int) -> int:
    """Join two pairing heaps of edges and return the root."""
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
def pop_edge(state: State, room: int) -> int:
    """Take the first edge out of a room."""
    edge: int = state.rooms[room].top
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
        following = state.edges[pairs].sibling
        root = meld(state, root, pairs)
        pairs = following
    state.rooms[room].top = root
    state.edges[edge].room = -1
    return edge


@njit
def close_room(state: State, room: int) -> None:
    """Take a room out of the heap and give it back."""
    place = state.rooms[room].place
    state.counts[HEAP] -= 1
    last = state.heap[state.counts[HEAP]]
    state.rooms[room].place = -1
    if last != room:
        state.heap[place] = last
        state.rooms[last].place = place
        rise(state, place)
        sink(state, state.rooms[last].place)
    state.rooms[room].owner = -1
    state.counts[ROOMS] -= 1
    state.free[state.counts[ROOMS]] = room


@njit
def hash_room(state: State, owner: int, weight: float) -> int:
    """Return where the search for a room starts in its table."""
    fraction, _ = math.frexp(weight)
    bits = int(fraction * 9007199254740992.0)
    mixed = (((bits ^ (bits >> 29)) & 0x7FFFFFFF) * 19349663) ^ (owner * 73856093)
    return (mixed ^ (mixed >> 17)) & (len(state.room_table) - 1)


@njit
def rebuild_rooms(state: State) -> None:
    """Write the table of rooms anew, without those given back."""
    state.room_table[:] = -1
    state.counts[TABLE] = state.counts[HEAP]
    for place in range(state.counts[HEAP]):
        room = state.heap[place]
        spot = hash_room(state, state.rooms[room].owner, state.rooms[room].weight)
        while state.room_table[spot] >= 0:
            spot = (spot + 1) & (len(state.room_table) - 1)
        state.room_table[spot] = room


@njit
def open_room(state: State, owner: int, weight: float) -> int:
    """Return the room of an owner's edges of one weight, a new one where there is none."""
    spot = hash_room(state, owner, weight)
    while state.room_table[spot] >= 0:
        room = state.room_table[spot]
        if state.rooms[room].owner == owner and state.rooms[room].weight == weight:
            return int(room)
        spot = (spot + 1) & (len(state.room_table) - 1)
    room = state.free[state.counts[ROOMS]]
    state.counts[ROOMS] += 1
    state.rooms[room].owner, state.rooms[room].weight, state.rooms[room].top = owner, weight, -1
    state.rooms[room].gain = -np.inf
    state.heap[state.counts[HEAP]] = room
    state.rooms[room].place = state.counts[HEAP]
    state.counts[HEAP] += 1
    state.room_table[spot] = room
    state.counts[TABLE] += 1
    if 2 * state.counts[TABLE] > len(state.room_table):
        rebuild_rooms(state)
    return int(room)


@njit
def price(state: State, room: int) -> tuple[float, int, int]:
    """Return the key of a room's first edge now: the gain times VOL / 2, and the nodes of the pair."""
    owner, edge = state.rooms[room].owner, state.rooms[room].top
    total = state.slots[owner].volume + state.edges[edge].key_volume
    gain = state.edges[edge].weight * math.log2(state.group_volume[state.slots[owner].group] / total)
    node, other = state.slots[owner].node, state.edges[edge].key_node
    return gain, min(node, other), max(node, other)


@njit
def enter(state: State, edge: int) -> None:
    """Put an edge into the room it belongs in."""
    owner, slot = state.halves[2 * edge].slot, state.halves[2 * edge + 1].slot
    if state.slots[slot].volume > state.slots[owner].volume:
        owner, slot = slot, owner
    room = open_room(state, owner, state.edges[edge].weight)
    state.edges[edge].room = room
    state.edges[edge].child = state.edges[edge].sibling = -1
    state.edges[edge].key_volume, state.edges[edge].key_node = state.slots[slot].volume, state.slots[slot].node
    state.rooms[room].top = meld(state, state.rooms[room].top, edge)
    gain, low, high = price(state, room)
    if gain > state.rooms[room].gain or (
        gain == state.rooms[room].gain and (low, high) < (state.rooms[room].low, state.rooms[room].high)
    ):
        state.rooms[room].gain, state.rooms[room].low, state.rooms[room].high = gain, low, high
        rise(state, state.rooms[room].place)


@njit
def settle(state: State, room: int) -> bool:
    """Bring the first edge of a room up to date; close the room and say False when none is left."""
    owner = state.rooms[room].owner
    while state.rooms[room].top >= 0:
        edge = state.rooms[room].top
        slot = other_end(state, edge, owner)
        if state.edges[edge].alive and state.edges[edge].key_node == state.slots[slot].node:
            return True
        pop_edge(state, room)
        if state.edges[edge].alive:
            enter(state, edge)
    close_room(state, room)
    return False
