"""How the queue shares its lines between the table and what is below it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

AROUND = 7
"""Lines for bars, keys, the state of workers, and the task under the cursor."""
_LEAST = 6
"""Lines that a verdict and a chart take at least."""
_LEAST_TABLE = 6
"""Lines that stay for the table before anything is given away."""
_SHARE = 0.4
"""What the lower part gets at least, where there is room."""


@dataclass(frozen=True)
class Room:
    """Lines of the two parts."""

    table: int
    below: int


def lower_part(height: int, wanted: int) -> Room | None:
    """The lines of a terminal of ``height`` lines whose table would like ``wanted``; None: no room for two parts.

    The table gets what it needs as long as the lower part has its share; what it does not need is the lower part's.
    """
    lines = height - AROUND
    if lines < _LEAST + _LEAST_TABLE:
        return None
    below = max(_LEAST, int(lines * _SHARE))
    table = max(_LEAST_TABLE, min(wanted, lines - below))
    return Room(table, lines - table)
