"""The graph while it is being compressed, as flat arrays, and the heap over its rooms."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hill.tree._compile import COMPILED, njit

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ROOMS, HEAP, TABLE, EDGES, PAIRS, NODES = range(6)
"""Places in `State.counts`: rooms ever used, rooms in the heap, entries in each table, edges and nodes made."""


class State(NamedTuple):
    """Everything the compression of a graph changes, as arrays of records."""

    counts: Ints
    slots: Any
    """Children of the groups while they last; a slot that was joined to another is never asked again."""
    group_volume: Floats
    edges: Any
    halves: Any
    """Ends of edges, in a list for each slot; the halves of edge e are 2e and 2e + 1."""
    rooms: Any
    heap: Ints
    free: Ints
    room_table: Ints
    pairs: Any
    """Hash table from two slots to the edge between them."""


SLOT = "node:i8 volume:f8 group:i8 first_half:i8 degree:i8"
EDGE = "weight:f8 alive:i8 room:i8 child:i8 sibling:i8 key_volume:f8 key_node:i8"
HALF = "slot:i8 following:i8"
ROOM = "owner:i8 weight:f8 top:i8 place:i8 gain:f8 low:i8 high:i8"
PAIR = "key:i8 edge:i8"


def records(size: int, fields: str) -> Any:
    """Return records of zeros; as objects where nothing is compiled, which Python reads much faster than arrays."""
    names = [tuple(field.split(":")) for field in fields.split()]
    if COMPILED:
        return np.zeros(size, dtype=names)
    return [SimpleNamespace(**{name: 0 for name, _ in names}) for _ in range(size)]


def new_state(volumes: Floats, groups: Ints, group_volumes: Floats, edges: int) -> State:
    """Return a state with a slot for each child and room for the edges, not yet added."""
    most = max(2 * edges, 1)
    # Half a table holds every living edge and some dead ones, so that it is seldom written anew.
    table = 1 << (3 * edges).bit_length()
    state = State(
        counts=np.array([0, 0, 0, 0, 0, len(volumes) + len(group_volumes)]),
        slots=records(len(volumes), SLOT),
        group_volume=group_volumes,
        edges=records(most, EDGE),
        halves=records(2 * most, HALF),
        rooms=records(most, ROOM),
        heap=np.zeros(most, dtype=np.int64),
        free=np.arange(most),
        room_table=np.full(table, -1, dtype=np.int64),
        pairs=records(table, PAIR),
    )
    fill(state, volumes, groups)
    return state


@njit
def fill(state: State, volumes: Floats, groups: Ints) -> None:
    """Let every slot stand for its own child, without edges."""
    for slot in range(len(volumes)):
        state.slots[slot].node = slot
        state.slots[slot].volume = volumes[slot]
        state.slots[slot].group = groups[slot]
        state.slots[slot].first_half = -1
    for spot in range(len(state.pairs)):
        state.pairs[spot].key = -1


@njit
def before(state: State, room: int, other: int) -> bool:
    """Tell whether a room's pair goes first: more gain, then smaller nodes."""
    if state.rooms[room].gain != state.rooms[other].gain:
        return bool(state.rooms[room].gain > state.rooms[other].gain)
    if state.rooms[room].low != state.rooms[other].low:
        return bool(state.rooms[room].low < state.rooms[other].low)
    return bool(state.rooms[room].high < state.rooms[other].high)


@njit
def rise(state: State, place: int) -> None:
    """Move the room at a place of the heap up to where it belongs."""
    room = state.heap[place]
    while place > 0 and before(state, room, state.heap[(place - 1) // 2]):
        state.heap[place] = state.heap[(place - 1) // 2]
        state.rooms[state.heap[place]].place = place
        place = (place - 1) // 2
    state.heap[place] = room
    state.rooms[room].place = place


@njit
def sink(state: State, place: int) -> None:
    """Move the room at a place of the heap down to where it belongs."""
    room, size = state.heap[place], state.counts[HEAP]
    while 2 * place + 1 < size:
        best = 2 * place + 1
        if best + 1 < size and before(state, state.heap[best + 1], state.heap[best]):
            best += 1
        if before(state, room, state.heap[best]):
            break
        state.heap[place] = state.heap[best]
        state.rooms[state.heap[place]].place = place
        place = best
    state.heap[place] = room
    state.rooms[room].place = place
