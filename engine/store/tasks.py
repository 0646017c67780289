"""The queue's rows: tasks, their tenants, and the commands that the app sends. Engine side."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field

from sqlite_utils import Database

from ..spec import TaskSpec, parse
from .database import transaction


@dataclass(frozen=True)
class QueuedTask:
    """A task as the orchestrator needs it."""

    id: int
    state: str
    reason: str
    spec: TaskSpec


@dataclass(frozen=True)
class Command:
    """Something that the app asked for."""

    id: int
    kind: str
    task: int | None
    arguments: dict[str, int] = field(default_factory=dict)


class TaskTable:
    """Reads and writes of tasks and commands; every method is one short transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def unfinished(self) -> list[QueuedTask]:
        """Tasks that may need the engine, in the order in which they should run.

        One whose specification this program does not understand, because another version wrote it, fails with the
        reason: it must not stop the others.
        """
        rows = self._db.query(
            "SELECT id, state, reason, config FROM tasks WHERE state IN ('submitted', 'queued', 'running', 'paused')"
            " ORDER BY priority DESC, id"
        )
        tasks = []
        for row in list(rows):
            try:
                spec = parse(json.loads(row["config"]), f"task {row['id']}")
            except (ValueError, TypeError) as error:
                self.set_state(row["id"], "failed", f"This marlaas cannot read the task: {error}")
            else:
                tasks.append(QueuedTask(row["id"], row["state"], row["reason"], spec))
        return tasks

    def adopt(self, base: str) -> None:
        """Write down that tasks of which nobody knows the base belong to the one with the fingerprint ``base``."""
        self._db.execute("UPDATE tasks SET base = ? WHERE base = ''", [base])

    def state(self, task: int) -> str:
        """A task's state."""
        return str(next(iter(self._db.query("SELECT state FROM tasks WHERE id = ?", [task])))["state"])

    def set_state(self, task: int, state: str, reason: str = "") -> None:
        """Move a task to a state; writes nothing where nothing changes."""
        now = time.time()
        with transaction(self._db):
            self._db.execute(
                "INSERT OR IGNORE INTO tenants (name, weight, created) SELECT tenant, 1, ? FROM tasks WHERE id = ?",
                [now, task],
            )
            self._db.execute(
                "UPDATE tasks SET state = ?, reason = ?,"
                " started = CASE WHEN ? = 'running' THEN coalesce(started, ?) ELSE started END,"
                " finished = CASE WHEN ? IN ('done', 'failed', 'cancelled') THEN ? ELSE NULL END"
                " WHERE id = ? AND (state != ? OR reason != ?)",
                [state, reason, state, now, state, now, task, state, reason],
            )

    def add_seconds(self, task: int, seconds: float) -> None:
        """Add running time."""
        self._db.execute("UPDATE tasks SET seconds = seconds + ? WHERE id = ?", [seconds, task])

    def states(self, tasks: tuple[int, ...]) -> dict[int, str]:
        """States of those of the tasks that exist."""
        marks = ",".join("?" * len(tasks))
        return {
            r["id"]: r["state"] for r in self._db.query(f"SELECT id, state FROM tasks WHERE id IN ({marks})", tasks)
        }

    def new_commands(self) -> list[Command]:
        """Commands that nobody has carried out, oldest first."""
        rows = self._db.query("SELECT id, kind, task, arguments FROM commands WHERE done IS NULL ORDER BY id")
        return [Command(r["id"], r["kind"], r["task"], json.loads(r["arguments"])) for r in rows]

    def forget_stops(self, before: float) -> None:
        """Drop *stop* commands from before ``before``: they were meant for an engine that has ended."""
        self._db.execute(
            "UPDATE commands SET done = ?, outcome = 'That engine had ended.'"
            " WHERE kind = 'stop' AND done IS NULL AND created < ?",
            [time.time(), before],
        )

    def finish_command(self, command: int, outcome: str = "") -> None:
        """Record that a command was carried out, or why not."""
        self._db.execute("UPDATE commands SET done = ?, outcome = ? WHERE id = ?", [time.time(), outcome, command])
