"""Which versions the view of adapters shows, in which order, and what each line says. Pure; knows no Textual.

The first line of a task, or of each of its policies, names it and gives its total size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from marlaas.engine.spec import ONLY

from ..home.references import reference
from ..words.format import line, pad, size
from ..words.held_out import with_error

if TYPE_CHECKING:
    from marlaas.engine.store import KeptVersion, VersionRow

SORTS = ("task", "score", "size", "age")
"""The orders that s goes through: newest tasks and versions, best scores, largest files, oldest files first."""
_KEYS: dict[str, Callable[[KeptVersion], float]] = {
    "score": lambda kept: math.inf if kept.row.score is None or math.isnan(kept.row.score) else -kept.row.score,
    "size": lambda kept: -kept.row.size,
    "age": lambda kept: kept.row.created,
}
COLUMNS = (("version", 7), ("label", 11), ("held-out", 11), ("size", 6), ("age", 6), ("resumable", 9))
"""The columns after the task. ``resumable``: whether its optimizer is kept; else training begins with a new one."""
LEAST = 12
"""Cells that the task's column needs; where there is no room for them, the last columns go."""
SUMS, MOST = 34, 64
"""Widths of the task's column: from the first on it has the total size as well, and it has no more than the second."""
RIGHT = ("version", "held-out", "size", "age")
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@dataclass(frozen=True)
class Choice:
    """What a person wants to see."""

    task: int | None = None
    """The versions of this task; None: of all tasks."""
    words: tuple[str, ...] = ()
    """Words in lower case, each of which must be in a line."""
    sort: str = "task"


@dataclass(frozen=True)
class VersionLine:
    """One line of the list."""

    kept: KeptVersion
    total: int = 0
    """Bytes of the policy's versions that are shown, on its first line; 0 elsewhere."""

    @property
    def row(self) -> VersionRow:
        """The version."""
        return self.kept.row


def lines(versions: Iterable[KeptVersion], choice: Choice) -> list[VersionLine]:
    """The lines of the wanted versions, in order."""
    wanted = [kept for kept in versions if _wanted(kept, choice)]
    if choice.sort != "task":
        return [VersionLine(kept) for kept in sorted(wanted, key=_KEYS[choice.sort])]
    totals = Counter[int]()
    for kept in wanted:
        totals[kept.policy_id] += kept.row.size
    return [VersionLine(kept, totals.pop(kept.policy_id, 0)) for kept in wanted]


def _wanted(kept: KeptVersion, choice: Choice) -> bool:
    row = kept.row
    if choice.task is not None and row.task != choice.task:
        return False
    said = f"{reference(row)} {row.task_name} {row.tenant} {kept.label} {kept.environment}".lower()
    return all(word in said for word in choice.words)


def head(width: int) -> str:
    """The names of the columns."""
    return _joined("task", "together", [name for name, _ in COLUMNS], width)


def text(shown: VersionLine, width: int, now: float, sort: str) -> str:
    """A version in ``width`` cells. Under its task's first line the task is not said again."""
    row = shown.row
    named = shown.total or sort != "task"
    whose = "" if row.policy == ONLY else f"{line(row.policy, 16)} of "
    owner = f"{row.task} {whose}{line(row.tenant, 20)}/{line(row.task_name, width)}" if named else ""
    resumable = "yes" if row.resumable else "no"
    values = [str(row.number), shown.kept.label, with_error(row.score, row.basis).replace("± ", "±"), size(row.size)]
    together = size(shown.total) if shown.total else ""
    return _joined(owner, together, [*values, age(now - row.created), resumable], width)


def age(seconds: float) -> str:
    """In one unit: 5 min, 3 d."""
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return "0 s"


def _joined(owner: str, together: str, values: Sequence[str], width: int) -> str:
    shown = len(COLUMNS)
    while shown > 1 and LEAST + sum(wide + 1 for _, wide in COLUMNS[:shown]) > width:
        shown -= 1
    rest = [
        pad(line(value, wide), wide, right=name in RIGHT)
        for (name, wide), value in zip(COLUMNS[:shown], values[:shown], strict=True)
    ]
    room = min(MOST, max(1, width - sum(wide + 1 for _, wide in COLUMNS[:shown])))
    if room >= SUMS:
        together = pad(together, 9, right=True)
        return " ".join([pad(line(owner, room - 10), room - 10), together, *rest])
    return " ".join([pad(line(owner, room), room), *rest])


def summary(shown: Sequence[VersionLine], versions: Sequence[KeptVersion]) -> str:
    """How many versions are shown, and how much of the disk they take."""
    tasks = len({each.row.task for each in shown})
    taken = sum(each.row.size for each in shown)
    counted = f"{len(shown)} version{'' if len(shown) == 1 else 's'} of {tasks} task{'' if tasks == 1 else 's'}"
    total = sum(kept.row.size for kept in versions)
    whole = "" if len(shown) == len(versions) else f"; all {len(versions)} take {size(total)}"
    return f"{counted}, {size(taken)}{whole}"
