"""The Python client's ``Home``: what verbs do, as methods that return rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from marlaas.engine.daemon import control
from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import Home as Folder, check_folder, check_home, find_home
from marlaas.engine.queue.submission import taskfile
from marlaas.engine.queue.submission.references import choose
from marlaas.engine.store.queries import learning, machine
from marlaas.engine.store.queries.learning import Matchup
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import (
    EngineRow,
    EnvironmentRow,
    EvalRow,
    EventRow,
    StepRow,
    TaskRow,
    TrajectoryRow,
    VersionRow,
)
from marlaas.engine.store.submissions import Submission

from ..operations.commands import Follower, steer, written
from ..operations.results import pairs_json, scored
from ..operations.submitting import enqueue, evaluation_table, loaded
from ..reading import find_task, reading
from ..text.learning import list_cells
from ..text.tasks import queue_order
from ..text.terms import with_new_keys

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..operations.estimating import Estimates
    from .functions import WrittenEnvironment


# Tasks as a tuple that a notebook shows as a table, in HTML with all foreign text escaped.

SHOWN = 200
"""Tasks in a notebook's table; of more only the number is given."""


class Tasks(tuple[TaskRow, ...]):
    """Rows of tasks, oldest first."""

    def _repr_html_(self) -> str:
        """The queue as HTML for notebooks, in the order of ``marlaas list``."""
        headers = ("id", "tenant", "task", "environment", "state", "step", "reward", "held-out", "reason")
        tasks = sorted(self, key=queue_order)
        more = f"<p>and {len(tasks) - SHOWN:,} more</p>" if len(tasks) > SHOWN else ""
        rows = [_row("th", headers), *(_row("td", list_cells(task)) for task in tasks[:SHOWN])]
        return f"<table>{''.join(rows)}</table>{more}"


def _row(tag: str, cells: tuple[str, ...]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


# One home, for scripts and notebooks: its queue, what its tasks have learned, and the actions of the command line.
#
# Every call reads again and returns frozen rows, or raises a ``MarlaasError``: one sentence, and how to mend it.
# Prints nothing and keeps no connection; safe to use from several threads.

Answer = TypeVar("Answer")
TaskName = int | str
"""A task by its number or its name; ``TENANT/NAME`` is that of a tenant."""
TaskFile = str | os.PathLike[str] | Mapping[str, Any]
"""A task file by its path, or its content as a table."""


class Columns(dict[str, "NDArray[Any]"]):
    """Metrics by name, a value for each step, NaN where a step has none; ``step`` has the steps' numbers."""

    @classmethod
    def of(cls, steps: Sequence[StepRow]) -> Columns:
        import numpy as np

        names = dict.fromkeys(name for step in steps for name in step.metrics)
        columns = {name: np.array([step.metrics.get(name, np.nan) for step in steps]) for name in names}
        return cls({"step": np.array([step.step for step in steps]), **columns})

    def frame(self) -> Any:
        """As a pandas frame, with the steps as its index. Raises ``ImportError`` without pandas."""
        pandas = import_module("pandas")
        return pandas.DataFrame(self).set_index("step")


class Task(int):
    """A submitted task: its number, with what a home does with it."""

    home: Home

    def __new__(cls, number: int, home: Home) -> Task:
        task = super().__new__(cls, number)
        task.home = home
        return task

    def wait(self, timeout: float | None = None, progress: Callable[[str], None] | None = None) -> TaskRow:
        """Wait until it has ended or paused itself; see ``Home.wait``."""
        return self.home.wait(self, timeout=timeout, progress=progress)[0]

    @property
    def row(self) -> TaskRow:
        """How it stands."""
        return self.home.task(self)

    @property
    def metrics(self) -> Columns:
        """Its steps as columns: ``task.metrics["reward"]``; ``task.metrics.frame()`` for pandas."""
        return Columns.of(self.home.metrics(self))

    def rollouts(self, limit: int = 50, before: int | None = None) -> tuple[TrajectoryRow, ...]:
        """See ``Home.rollouts``."""
        return self.home.rollouts(self, limit, before)

    def _repr_html_(self) -> str:
        return Tasks([self.row])._repr_html_()


class Home:
    """A home by its folder; without one what ``MARLAAS_HOME`` names, else your platform's state folder."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        """Raises ``ConfigError`` if ``folder`` is no home: it is mistyped, or `marlaas home new` has to make one."""
        self._home = find_home(None if folder is None else os.fspath(folder))
        if self._home.root == find_home().root:
            check_folder(self._home)
        else:
            check_home(self._home)

    def __repr__(self) -> str:
        return f"Home({str(self._home.root)!r})"

    @property
    def folder(self) -> Path:
        """The home's folder."""
        return self._home.root

    # Looking.

    def tasks(self, tenant: str | None = None, state: str | None = None, family: str | None = None) -> Tasks:
        """All tasks, oldest first, or those of a tenant, in a state, of a sweep."""
        wanted = {"tenant": tenant, "state": state, "family": family}
        with reading(self._home) as reader:
            rows = reader.tasks() if reader else []
        return Tasks(row for row in rows if all(want in (None, getattr(row, name)) for name, want in wanted.items()))

    def task(self, task: TaskName) -> TaskRow:
        """One task. Raises ``UnknownTask``."""
        with reading(self._home) as reader:
            return find_task(reader, task)

    def config(self, task: TaskName) -> dict[str, Any]:
        """Its whole task file, with every default. Raises ``UnknownTask``."""
        return self._of(task, lambda reader, number: reader.task_config(number))

    def metrics(self, task: TaskName, after: int = 0, policy: str | None = None) -> tuple[StepRow, ...]:
        """Its steps with a number above ``after``, oldest first, each with all its metrics by name, as in JSON.

        ``policy``: of this one, if a task trains several; None: of the first.
        """

        steps = self._of(task, lambda reader, number: reader.steps(number, after, policy))
        return tuple(replace(step, metrics=with_new_keys(step.metrics)) for step in steps)

    def evals(self, task: TaskName, policy: str | None = None) -> tuple[EvalRow, ...]:
        """Its held-out scores, oldest first. Scores of different series do not compare."""
        return tuple(self._of(task, lambda reader, number: reader.evals(number, policy)))

    def matchups(self, task: TaskName) -> tuple[Matchup, ...]:
        """What its policies' versions were paid in plays with others: sums over episodes, for each pair of them."""

        return tuple(self._of(task, lambda reader, number: learning.matchups(reader, number)))

    def rollouts(self, task: TaskName, limit: int = 50, before: int | None = None) -> tuple[TrajectoryRow, ...]:
        """Its trajectories, newest first: what was said, and what it was paid; ``before`` (an ``id``) pages back."""
        return tuple(self._of(task, lambda reader, number: reader.trajectories(number, limit, before)))

    def adapters(self, task: TaskName) -> tuple[VersionRow, ...]:
        """Its adapter versions that are on the disk, newest first."""
        versions = self._of(task, lambda reader, number: reader.versions(number))
        return tuple(version for version in versions if version.state == "committed")

    def events(self, task: TaskName | None = None, limit: int = 200) -> tuple[EventRow, ...]:
        """The last lines of the log, oldest first, of one task or of all."""
        with reading(self._home) as reader:
            number = None if task is None else find_task(reader, task).id
            return tuple(machine.newest_events(reader, machine.EventFilter(task=number), limit=limit)) if reader else ()

    def environments(self) -> tuple[EnvironmentRow, ...]:
        """The environments as the engine last saw them."""
        with reading(self._home) as reader:
            return tuple(reader.environments()) if reader else ()

    def engine(self) -> EngineRow | None:
        """The newest engine, alive or not; None if none ever ran."""
        with reading(self._home) as reader:
            return reader.engine() if reader else None

    def compare(self, *tasks: TaskName, best: bool = False) -> list[dict[str, Any]]:
        """How much more each task, or each of its policies or measured versions, scores than the first, by prompt.

        ``mean`` with its 95 % interval from ``low`` to ``high``, over ``prompts``; or a ``problem``, if the two were
        not measured on the same prompts in the same way. By the last scores; with ``best`` by the best, which are too
        high, for they were chosen on the same prompts.
        """

        with reading(self._home) as reader:
            rows = [find_task(reader, task) for task in tasks]
            assert reader is not None
            faces = [(row, policy) for row in rows for policy in row.trained or ("",)]
            return pairs_json([scored(reader, f"{row.id} {own}".rstrip(), row.id, own, best) for row, own in faces])

    # Acting.

    def submit(self, *tasks: TaskFile, environment: object = None) -> list[Task]:
        """Add tasks to the queue, all or none; the numbers they got. Starts the engine if none runs.

        A table is what a task file would say, ``{"tenant": …, "name": …, "environment": …}``; a list if it has one
        value is a sweep. ``environment``: a function or class of this session, which ``add_environment`` writes down;
        tables need not name it. Raises ``ConfigError`` and its kin, with the sentence that ``marlaas submit`` says.
        """
        if environment is not None:
            name = self.add_environment(environment).name
            tasks = tuple({"environment": name, **task} if isinstance(task, Mapping) else task for task in tasks)
        return [Task(number, self) for number in enqueue(self._home, _read(self._home, tasks))]

    def add_environment(self, function: object) -> WrittenEnvironment:
        """Write a function or class of this session as a plugin of the home, with what it uses; its source is shown.

        With or without ``@env``. Modules are imported there, functions, classes and plain values of the session
        are copied. Called again, it replaces what it wrote. Raises ``ConfigError`` for a lambda, for what has no
        source, and for values that no file can hold.
        """
        from .functions import write_environment  # loads what authors import

        return write_environment(self._home, function)

    def evaluate(
        self,
        *versions: str,
        environment: str = "",
        config: Mapping[str, Any] | None = None,
        tenant: str = "",
        name: str = "",
        sampling: Mapping[str, Any] | None = None,
        **measure: Any,
    ) -> int:
        """Add a task that measures versions and trains nothing; its number. Starts the engine if none runs.

        ``versions`` as in a task file: "17@best", "base", "./DIR". ``measure`` are keys of [eval]: ``prompts``,
        ``samples``, ``split``, ``temperature``, ``agents``. What is not said is as in the task of the first version.
        Raises as ``submit`` does.
        """

        with reading(self._home) as reader:
            table = evaluation_table(reader, versions, environment, config, tenant, name, measure, sampling)
        return self.submit(table)[0]

    def estimate(self, *tasks: TaskFile) -> Estimates:
        """What tasks would take: ``seconds`` (None if nothing was measured), bytes of ``disk`` and ``memory``.

        Nothing is submitted. This call alone loads numpy. Raises as ``submit`` does for what is wrong with a file.
        """
        from ..operations.estimating import estimate_all

        return estimate_all(self._home, _read(self._home, tasks))

    def wait(
        self, *tasks: TaskName, timeout: float | None = None, progress: Callable[[str], None] | None = None
    ) -> tuple[TaskRow, ...]:
        """Wait until the tasks have ended, or paused themselves; their rows then, or after ``timeout`` seconds.

        ``progress`` gets a line for every change: ``progress=print``. Raises ``UnknownTask``, and ``EngineUnreachable``
        if the engine stops meanwhile.
        """
        with reading(self._home) as reader:
            follower = Follower.of(
                self._home,
                lambda: [find_task(reader, task) for task in tasks],
                say=progress or (lambda text: None),
            )
            return tuple(follower.follow(timeout))

    def pause(self, *tasks: TaskName) -> None:
        """Pause tasks; nothing is lost. Raises ``EngineUnreachable``, ``ConfigError`` if one cannot be paused."""
        self._steer("pause", tasks)

    def resume(self, *tasks: TaskName) -> None:
        """Go on with paused tasks. Raises as ``pause`` does."""
        self._steer("resume", tasks)

    def retry(self, *tasks: TaskName) -> None:
        """Put failed or cancelled tasks back into the queue; they go on from their last commit. Raises likewise."""
        self._steer("retry", tasks)

    def cancel(self, *tasks: TaskName) -> None:
        """End tasks; their adapters stay. Raises as ``pause`` does."""
        self._steer("cancel", tasks)

    def export(
        self,
        task: TaskName,
        out: str | os.PathLike[str],
        version: int | str | None = None,
        gguf: bool = False,
        policy: str | None = None,
        merge: bool = False,
    ) -> list[Path]:
        """Write an adapter as a PEFT folder, which must not exist; the files in it.

        ``version``: a number, "best" or "last"; None takes the best, else the last. ``merge`` writes a whole model:
        the base with the adapter added to its weights. ``gguf`` adds a file for llama.cpp. ``policy`` must be given if
        the task trains several. Raises ``AdapterError``, ``ConfigError``.
        """

        from ..report.export import export

        which = None if version is None else str(version)
        number = self.task(task).id
        adapter = str(number) if policy is None else f"{number}/{policy}"
        row = choose(self._of(number, lambda reader, number: reader.versions(number)), adapter, which)
        return export(self._home, row, Path(out).expanduser(), gguf, merge)

    def start_engine(self) -> None:
        """Start the engine in the background unless one is alive, and wait until it serves; it outlives its starter."""
        control.ensure_running(self._home)

    def stop_engine(self) -> bool:
        """Stop it, and wait; False if none ran. Its tasks go on when an engine is started again."""
        return control.stop(self._home)

    def _of(self, task: TaskName, ask: Callable[[Reader, int], Answer]) -> Answer:
        """What ``ask`` reads of a task by its number; the task must exist."""
        with reading(self._home) as reader:
            number = find_task(reader, task).id
            assert reader is not None
            return ask(reader, number)

    def _steer(self, kind: str, tasks: tuple[TaskName, ...]) -> None:

        with reading(self._home) as reader:
            numbers = list(dict.fromkeys(find_task(reader, task).id for task in tasks))
            outcomes = steer(self._home, reader, kind, numbers) if reader else {}
        refused = [f"Task {task}: {outcome}" for task, outcome in outcomes.items() if outcome]
        if refused:
            raise ConfigError(" ".join(refused))


def _read(home: Folder, tasks: Sequence[TaskFile]) -> list[Submission]:
    """The tasks of files and of tables, in which folders are relative to the working folder."""

    paths = [Path(task).expanduser() for task in tasks if not isinstance(task, Mapping)]
    files = iter(loaded(home, paths))
    submissions: list[Submission] = []
    for task in tasks:
        if isinstance(task, Mapping):
            text = written(task)
            submissions += taskfile.tasks_of(taskfile.table_of(text, "the task"), "the task", Path.cwd(), text)
        else:
            submissions += next(files)
    return submissions
