"""Finds the task that a person means by its number or its name. Pure.

Numbers always mean tasks; a name means a task of any tenant, and TENANT/NAME one of that tenant.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ConfigError, UnknownTask
from ..spec import nearest
from ..store import KnownTask

NAMED = 10
"""Numbers that an error lists."""
SHOWS = "`marlaas list` shows the tasks."


def task_number(said: int | str, known: Sequence[KnownTask]) -> int:
    """The number of the task that ``said`` means.

    Raises ``UnknownTask`` where there is none, and ``ConfigError`` with the numbers where there are several.
    """
    if isinstance(said, int):
        if any(task.id == said for task in known):
            return said
        raise UnknownTask(f"There is no task {said}.", SHOWS)
    found = [task for task in known if said in (task.name, f"{task.tenant}/{task.name}")]
    if len(found) == 1:
        return found[0].id
    if found:
        hint = f"Give a number: {max(task.id for task in found)} is the newest."
        raise ConfigError(f"Several tasks are named {said!r}: {_listed([task.id for task in found])}.", hint)
    sweep = [task.id for task in known if said in (task.family, f"{task.tenant}/{task.family}") and task.family]
    if sweep:
        hint = f"Give one of its tasks, {_listed(sweep)}; verbs that take several tasks have --family."
        raise UnknownTask(f"{said!r} is a sweep, not a task.", hint)
    names = sorted({task.name for task in known})
    raise UnknownTask(f"There is no task {said!r}.", f"{nearest(said, names)} {SHOWS}" if _near(said, names) else SHOWS)


def _near(said: str, names: Sequence[str]) -> bool:
    return nearest(said, names).startswith("Did you mean")


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:NAMED]))
    return f"{shown} and {len(numbers) - NAMED} more" if len(numbers) > NAMED else shown
