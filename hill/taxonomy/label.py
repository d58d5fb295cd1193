"""One label of a taxonomy."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Label:
    """A label: its id is its identity, its name is what people read and may occur more than once."""

    id: str
    name: str
    parents: tuple[str, ...] = ()
    description: str = ""
