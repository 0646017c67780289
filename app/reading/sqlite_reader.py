"""Answers the questions of ``HomeReader`` from a home's database.

The queries themselves are the store's: here they get one name each, beside those that the store's reader has already.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from marlaas.engine.store import RecordedGroup, Recordings, Statistics, events, sources
from marlaas.engine.store.queries import (
    api,
    episodes,
    history as steps_made,
    machine as cards,
    machine as machines,
    tasks as first,
    tasks as made,
    tasks as past,
    timeline,
    versions,
    versions as by_prompt,
    versions as given,
    versions as pairs,
)

if TYPE_CHECKING:
    from marlaas.engine.store import EnvironmentUse

HOUR = 3600.0


class SqliteReader(Statistics, Recordings):
    """Reads the database of a home on this machine. Use it from one thread at a time; raises ``StoreError``."""

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
    past_runs = past.past_runs
    progress = made.progress
    matchups = pairs.matchups
    prompt_scores = by_prompt.prompt_scores
    kept_marks = versions.kept_marks
    kept_versions = versions.kept_versions
    given_names = given.given_names
    devices = cards.device_rows
    nodes = machines.node_rows
    drained_nodes = machines.drained_nodes
    api_keys = api.api_keys
    api_state = api.api_state

    history = steps_made.history
    metric_samples = steps_made.samples
    evals_made = steps_made.measured
    group_ages = steps_made.ages
    recent_means = steps_made.recent
    first_step = first.first_step

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
