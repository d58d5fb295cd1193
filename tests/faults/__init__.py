"""Fault injection: kills, full disks, flipped bits, losses that are not finite, double starts, attacks.

The tests try a few of each; `make faults` tries many, and prints how many were survived and how many bytes were lost.
"""

import os
from dataclasses import dataclass


def times(few: int, many: int) -> int:
    """How often a test injects its fault."""
    return many if os.environ.get("HILL_FAULTS") == "full" else few


@dataclass
class Count:
    """How often a fault was tried and survived, and how many bytes were lost in total."""

    tried: int = 0
    survived: int = 0
    lost: int = 0


COUNTS: dict[str, Count] = {}


def record(fault: str, lost: int) -> None:
    """Count a fault after which this many bytes were missing or wrong, and fail if there were any."""
    count = COUNTS.setdefault(fault, Count())
    count.tried, count.survived, count.lost = count.tried + 1, count.survived + (not lost), count.lost + lost
    assert not lost, f"{fault}: {lost} bytes lost"


def table() -> str:
    """The counts as a table."""
    rows = [("fault", "tried", "survived", "bytes lost")]
    rows += [(name, str(c.tried), str(c.survived), str(c.lost)) for name, c in COUNTS.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        row[0].ljust(widths[0]) + "".join(f"  {cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    )
