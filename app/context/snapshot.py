"""The store at one moment, as every view gets it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from marlaas.engine.store import EngineRow, PaceRow, TaskRow, WorkerRow

from ..questions.question import Question
from ..words.tasks import liveness, queue_order


@dataclass(frozen=True)
class Snapshot:
    """The store at one moment."""

    now: float
    tasks: tuple[TaskRow, ...] = ()
    rewards: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    """Rewards of the last steps by task, for sparklines."""
    policy_rewards: Mapping[tuple[int, str], tuple[float, ...]] = field(default_factory=dict)
    """Rewards of the last steps by task and policy, for tasks that train several."""
    paces: Mapping[int, PaceRow] = field(default_factory=dict)
    """The speed of tasks over their last steps."""
    engine: EngineRow | None = None
    workers: tuple[WorkerRow, ...] = ()
    turns: float | None = None
    """Turns a second that the samplers ended lately; None where nothing was measured."""
    parameters: int | None = None
    """The size of the engine's base; None where it is not known."""
    question: Question | None = None
    """The question of the view in sight."""
    answer: object = None
    """The answer to it."""
    outcomes: Mapping[int, str] = field(default_factory=dict)
    """Outcomes of commands that the engine has answered since the last snapshot; an empty text is success."""
    note: str = ""
    """What the set-up still does in the background, in a sentence."""
    problem: str = ""
    """Why the store could not be read; everything else is then as in the snapshot before."""

    def task(self, number: int | None) -> TaskRow | None:
        """A task by its number."""
        return next((task for task in self.tasks if task.id == number), None)

    @property
    def serving(self) -> bool:
        """Whether an engine works on the tasks at this moment."""
        return liveness(self.engine, self.now).alive

    @property
    def speeds(self) -> Mapping[int, PaceRow]:
        """``paces`` while an engine serves; without one nothing moves, so nothing can be said of when it ends."""
        return self.paces if self.serving else {}

    @property
    def ordered(self) -> list[TaskRow]:
        """The tasks as the queue shows them."""
        return sorted(self.tasks, key=queue_order)

    @property
    def unfinished(self) -> int:
        """How many tasks the engine has still to work on."""
        return sum(task.unfinished and task.state != "paused" for task in self.tasks)
