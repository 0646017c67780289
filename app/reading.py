"""Reads a home: one reader for the screens, the verbs and Python. Loads the standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from marlaas.engine.errors import UnknownTask
from marlaas.engine.home import Home
from marlaas.engine.store import EnvironmentUse, RecordedGroup, Recordings, Statistics, TaskRow, events, sources
from marlaas.engine.store.queries import api, episodes, history as steps_made, machine, tasks, timeline, versions

HOUR = 3600.0


class HomeReader(Statistics, Recordings):
    """Answers questions about one home from its database; use it from one thread at a time.

    Every question is short, returns frozen rows, and raises ``StoreError`` if it cannot be answered. A question about
    what a task learned is about one of its policies: the first, if none is named.
    """

    def __init__(self, database: Path) -> None:
        super().__init__(database)
        self._database = database
        self._file = _identity(database)
        self._looked: int | None = None

    def __enter__(self) -> Self:
        return self

    def changed(self) -> int:
        """A number that differs after anybody has committed; raises where a newer program changed the schema since."""
        number = super().changed()
        if number != self._looked:
            self.check_schema()
            self._looked = number
        return number

    def stale(self) -> bool:
        """Whether the open file is not the home's database: that was replaced, or is gone."""
        return _identity(self._database) != self._file

    task_source = sources.task_source
    tasks_from = sources.tasks_from
    past_runs = tasks.past_runs
    progress = tasks.progress
    matchups = versions.matchups
    prompt_scores = versions.prompt_scores
    kept_marks = versions.kept_marks
    kept_versions = versions.kept_versions
    given_names = versions.given_names
    devices = machine.device_rows
    nodes = machine.node_rows
    drained_nodes = machine.drained_nodes
    api_keys = api.api_keys
    api_state = api.api_state

    history = steps_made.history
    metric_samples = steps_made.samples
    evals_made = steps_made.measured
    group_ages = steps_made.ages
    recent_means = steps_made.recent
    first_step = tasks.first_step

    newest_samples = timeline.newest
    stage_spans = timeline.spans
    stage_totals = timeline.totals
    turn_rate = timeline.turn_rate
    steps_since = timeline.steps_since
    standings = timeline.standings
    seconds_used = timeline.seconds_used
    engine_starts = timeline.starts

    event_ids = events.ids
    event_rows = events.rows
    newest_events = events.newest
    event_bounds = events.bounds

    rollout_steps = episodes.steps
    group_ids = episodes.group_ids
    group_ids_numbered = episodes.numbered
    group_rows = episodes.groups
    conversation_ids = episodes.conversation_ids
    conversation_rows = episodes.conversations
    conversation_texts = episodes.said
    conversation = episodes.conversation
    episode = episodes.episode

    def environment_use(self, now: float, seconds: float = HOUR) -> dict[str, EnvironmentUse]:
        """What came of the episodes of the last ``seconds``, by environment."""
        from marlaas.engine.store import environment_use  # loads the arrays of tokens as well

        return environment_use(self, now, seconds)

    def recorded_groups(self, task: int, split: str, last: int, component: str = "") -> list[RecordedGroup]:
        """The ``last`` groups of a task's split as they were played, in the order of training or of evaluation.

        Of a task with a mixture: those of the ``component`` of this name.
        """
        return self.groups(task, split, last, component)


def _identity(database: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        status = database.stat()
        return status.st_dev, status.st_ino
    return None


# Opens a home for reading, which no other module does, and finds tasks in it.


def opened(home: Home) -> HomeReader:
    """A reader of a home. Raises ``StoreError`` where there is nothing to read, or it cannot be read."""
    pass

    return HomeReader(home.database)


def exists(home: Home) -> bool:
    """Whether the home has a database."""
    try:
        return home.database.exists()
    except OSError:
        return False


@contextmanager
def reading(home: Home) -> Iterator[HomeReader | None]:
    """A reader of a home, or None where nothing was ever submitted; a database of an older marlaas is brought up to
    date.

    Raises ``StoreError`` where an engine of an older marlaas serves it.
    """
    from marlaas.engine.store import is_current

    if not exists(home):
        yield None
        return
    if not is_current(home.database):
        from marlaas.engine.daemon import update_database

        with suppress(OSError):  # a disk that can only be read: the database is used as it is
            update_database(home)
    with opened(home) as reader:
        yield reader


def find_task(reader: HomeReader | None, said: int | str) -> TaskRow:
    """The task of that number or name. Raises ``UnknownTask``, and ``ConfigError`` for a name that several have."""
    task = reader.task(said) if reader and isinstance(said, int) else None
    if task is not None:
        return task
    from marlaas.engine.submission import task_number  # not loaded where a number is right, as it is each second

    number = task_number(said, reader.known_tasks() if reader else [])
    task = reader.task(number) if reader else None
    if task is None:
        raise UnknownTask(f"There is no task {number}.", "`marlaas list` shows the tasks.")
    return task
