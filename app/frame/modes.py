"""The views of the application in the order of their number keys, made when they are first opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..screens.view import View


def _queue() -> View:
    from ..screens.queue import QueueScreen

    return QueueScreen()


def _task() -> View:
    from ..screens.task import TaskScreen

    return TaskScreen()


def _rollouts() -> View:
    from ..screens.rollouts import RolloutsScreen

    return RolloutsScreen()


def _environments() -> View:
    from ..screens.environments import EnvironmentsScreen

    return EnvironmentsScreen()


def _engine() -> View:
    from ..screens.engine import EngineScreen

    return EngineScreen()


def _adapters() -> View:
    from ..screens.adapters import AdaptersScreen

    return AdaptersScreen()


def _logs() -> View:
    from ..screens.logs import LogsScreen

    return LogsScreen()


def _api() -> View:
    from ..screens.api import ApiScreen

    return ApiScreen()


@dataclass(frozen=True)
class Mode:
    """A view that a number key opens."""

    name: str
    make: Callable[[], View]
    summary: str
    """A sentence about the view, for the palette."""
    of_task: bool = False
    """Whether it shows the selected task, with the task's number beside its name."""


ALL_MODES = (
    Mode("queue", _queue, "All tasks: what runs, what waits and why"),
    Mode("task", _task, "One task: is it learning?", of_task=True),
    Mode("rollouts", _rollouts, "What the model writes, from the trend down to its tokens", of_task=True),
    Mode("environments", _environments, "Plugins: which serve, which are broken, and where"),
    Mode("adapters", _adapters, "Versions on the disk: chat with them, export them, roll back, train on"),
    Mode("engine", _engine, "Is the machine busy, and who uses how much of it? Start, drain, stop"),
    Mode("logs", _logs, "What happened, and what the engine and its workers say", of_task=True),
    Mode("api", _api, "Programs from outside: at which address they ask, with which keys; open, close"),
)
