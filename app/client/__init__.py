"""The Python client: what the command line does, for scripts and notebooks. It returns rows and prints nothing.

Needs no Textual, no torch and no numpy: ``from marlaas.app.client import Home``.
"""

from marlaas.engine.errors import MarlaasError
from marlaas.engine.store.queries.learning import Matchup
from marlaas.engine.store.rows import (
    EngineRow,
    EnvironmentRow,
    EvalRow,
    EventRow,
    PolicyRow,
    StepRow,
    TaskRow,
    TrajectoryRow,
    Turn,
    VersionRow,
)

from .home import Columns, Home, Task, Tasks

__all__ = [
    "Columns",
    "EngineRow",
    "EnvironmentRow",
    "EvalRow",
    "EventRow",
    "Home",
    "MarlaasError",
    "Matchup",
    "PolicyRow",
    "StepRow",
    "Task",
    "TaskRow",
    "Tasks",
    "TrajectoryRow",
    "Turn",
    "VersionRow",
]
