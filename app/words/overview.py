"""What the first line of every screen says of the whole home: the base, its speed, who runs, who is next. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from .format import line
from .pace import is_rough, left_text, seconds_left
from .tasks import GLYPHS

if TYPE_CHECKING:
    from marlaas.engine.store import PaceRow, TaskRow

_LONGEST_BASE = 24
UNVERIFIED = " (unverified)"
"""The end of ``EngineRow.shown_base`` for a base that could not be compared with transformers."""


@dataclass(frozen=True)
class Overview:
    """The home in a few numbers."""

    base: str = ""
    """The name under which the engine serves its base; empty where none does."""
    parameters: int | None = None
    turns: float | None = None
    """Turns a second that samplers end; None while no engine serves."""
    running: int = 0
    blocked: int = 0
    next_task: int | None = None
    """The running task that is done first, at the present speeds; None where that is not known."""
    next_seconds: float = 0.0
    next_rough: bool = False
    """Whether that time is not known well."""


def overview(
    tasks: Sequence[TaskRow],
    paces: Mapping[int, PaceRow],
    base: str,
    parameters: int | None,
    turns: float | None,
    alive: bool,
) -> Overview:
    """The numbers; without an engine nothing runs, whatever the rows say."""
    blocked = sum(task.state == "blocked" for task in tasks)
    if not alive:
        return Overview(base, parameters, blocked=blocked)
    left = {task.id: seconds_left(task, paces.get(task.id)) for task in tasks}
    ends = sorted((seconds, task) for task, seconds in left.items() if seconds is not None)
    first, task = ends[0] if ends else (0.0, None)
    running = sum(task.state == "running" for task in tasks)
    rough = task is not None and is_rough(paces.get(task))
    return Overview(base, parameters, turns, running, blocked, task, first, rough)


@dataclass(frozen=True)
class Part:
    """A few words of the line."""

    text: str
    rank: int
    """What fits is chosen by rank: 0 stays longest."""
    style: str = "$text-muted"


def parts(of: Overview) -> list[Part]:
    """The words in the order in which they stand."""
    found = []
    if of.base:
        base = of.base.removesuffix(UNVERIFIED)
        name = line(PurePath(base).name or base, _LONGEST_BASE) + of.base[len(base) :]
        found.append(Part(f"{name} {parameter_count(of.parameters)}".rstrip(), 4))
    if of.turns is not None:
        found.append(Part(f"{of.turns:.0f} turns/s" if of.turns >= 10 else f"{of.turns:.1f} turns/s", 5))
    if of.running:
        found.append(Part(f"{GLYPHS['running']} {of.running} running", 1, "$text-success"))
    if of.blocked:
        found.append(Part(f"{GLYPHS['blocked']} {of.blocked} blocked", 0, "bold $text-error"))
    if of.next_task is not None:
        found.append(Part(f"task {of.next_task} done in {left_text(of.next_seconds, of.next_rough)}", 2))
    return found


def parameter_count(value: int | None) -> str:
    """A number of parameters as people name models by it: 42M, 1.5B; empty where it is not known."""
    if value is None:
        return ""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            shown = value / limit
            return f"{shown:.1f}{unit}" if shown < 10 else f"{shown:.0f}{unit}"
    return str(value)
