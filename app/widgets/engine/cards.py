"""The cards of the machine: free memory, how busy they are, who holds them, and why one is not used."""

from __future__ import annotations

from collections.abc import Sequence

from marlaas.engine.store import DeviceRow

from ...words.format import line, share, size
from ...words.machine.devices import held
from .pane import Line, table


def cards(rows: Sequence[DeviceRow], account: str, width: int) -> list[Line]:
    """A line for each card, and a second one for a card that is not used; empty without cards.

    ``account`` is the reader's own.
    """
    if not rows:
        return []
    cells = [
        (
            row.label,
            row.name.removeprefix("NVIDIA "),
            f"{size(row.free)} of {size(row.memory)}",
            "" if row.utilisation is None else share(row.utilisation),
            held(row.holders, account),
        )
        for row in rows
    ]
    headers, *lines = table(("card", "name", "free", "busy", "held by"), cells, (8, 18, -18, -5, 60), width)
    shown = [headers]
    for row, text in zip(rows, lines, strict=True):
        shown.append(text)
        if row.reason:
            shown.append((("  " + line(row.reason, width - 2), "$text-warning"),))
    return shown
