"""Environments in a list: what somebody has to mend first, under names as short as they can be. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from marlaas.engine.environments import count
from marlaas.engine.store import EnvironmentRow, EnvironmentUse

ORDER = ("broken", "failing", "stale", "waiting", "building", "loading", "ready", "hidden")
"""States, the worst first."""
MANY = 0.05
"""The share of failed episodes from which an environment that serves comes before the others."""

Used = tuple[EnvironmentRow, EnvironmentUse]


def broken_first(rows: Iterable[Used]) -> list[Used]:
    """Environments by what is wrong with them, alike ones by the name that they are shown under."""

    rows = list(rows)
    names = short_names([row.name for row, _ in rows])

    def place(one: Used) -> tuple[int, bool, str]:
        row, use = one
        state = ORDER.index(row.state) if row.state in ORDER else 0
        fine = not count(row.findings, "error") and use.failed <= MANY
        return state, fine, names[row.name]

    return sorted(rows, key=place)


def short_names(names: Sequence[str]) -> dict[str, str]:
    """For each full name the part behind its plugin, or the whole where that means several of them."""
    counts = Counter(name.rpartition("/")[2] for name in names)
    return {name: short if counts[short := name.rpartition("/")[2]] == 1 else name for name in names}
