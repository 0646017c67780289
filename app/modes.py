"""The views of the application in their order: a number key each, made when they are first looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .screens.view import View


def _queue() -> View:
    from .screens.queue import QueueScreen

    return QueueScreen()


def _task() -> View:
    from .screens.task import TaskScreen

    return TaskScreen()


def _environments() -> View:
    from .screens.environments import EnvironmentsScreen

    return EnvironmentsScreen()


@dataclass(frozen=True)
class Mode:
    """A view that a number key opens."""

    name: str
    make: Callable[[], View]
    summary: str
    """For the palette."""
    of_task: bool = False
    """Shows the selected task, and has its number beside its name."""


ALL_MODES = (
    Mode("queue", _queue, "All tasks: what runs, what waits and why"),
    Mode("task", _task, "One task: is it learning?", of_task=True),
    Mode("environments", _environments, "Plugins: which serve, which are broken, and where"),
)
