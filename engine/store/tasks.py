"""The queue's tables: tasks, their dependencies, and the commands of the app. Engine side."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from ..clock import wall_time
from ..spec import TOGETHER, TaskSpec, parse
from .database import Table, transaction
from .rows import FINISHED, NO_REASON, Reason, ReasonCode, shown_state


@dataclass(frozen=True)
class Needed:
    """An unfinished task that another one waits for."""

    id: int
    name: str
    state: str
    """Empty: there is no such task."""
    step: int
    steps: int


@dataclass(frozen=True)
class QueuedTask:
    """An unfinished task as the scheduler needs it."""

    id: int
    tenant: str
    state: str
    reason: Reason = NO_REASON
    priority: int = 0
    due: float | None = None
    """Time of its next try, in seconds since 1970, or None."""
    cause: str = ""
    """The number and reason of the try that is due."""
    needs: tuple[Needed, ...] = ()


@dataclass(frozen=True)
class Tries:
    """Retries of a task, and their limit."""

    made: int
    allowed: int


@dataclass(frozen=True)
class Command:
    """A request of the app."""

    id: int
    kind: str
    task: int | None
    arguments: dict[str, Any] = field(default_factory=dict)


class TaskTable(Table):
    """Reads and writes of tasks and commands; every method is one short transaction."""

    def unfinished(self) -> list[QueuedTask]:
        """Tasks that may need the engine, by priority, then by number. Reads no specification: there may be many."""
        needs = self._needs()
        rows = self._db.conn.execute(
            "SELECT id, tenant, state, reason_code, reason, priority, due, cause FROM tasks"
            " WHERE state IN ('submitted', 'queued', 'running', 'paused') ORDER BY priority DESC, id"
        )
        return [
            QueuedTask(
                number,
                tenant,
                state,
                Reason(ReasonCode(code), words),
                priority,
                due,
                cause,
                tuple(needs.get(number, ())),
            )
            for number, tenant, state, code, words, priority, due, cause in rows
        ]

    def _needs(self) -> Mapping[int, list[Needed]]:
        rows = self._db.conn.execute(
            f"SELECT d.task, d.needs, coalesce(n.name, ''), coalesce({shown_state('n')}, ''),"
            " coalesce((SELECT CASE n.kind WHEN 'eval' THEN sum(step) ELSE min(step) END FROM policies"
            " WHERE task = n.id), 0), coalesce(n.steps, 0)"
            " FROM tasks t JOIN dependencies d ON d.task = t.id LEFT JOIN tasks n ON n.id = d.needs"
            " WHERE t.state IN ('submitted', 'queued', 'running') AND n.state IS NOT 'done' ORDER BY d.task, d.needs"
        )
        needs: defaultdict[int, list[Needed]] = defaultdict(list)
        for task, *needed in rows:
            needs[task].append(Needed(*needed))
        return needs

    def spec(self, task: int) -> TaskSpec:
        """A task's specification. Raises ``ConfigError`` if another version of this program wrote something unknown."""
        return parse(json.loads(self._value("config", task)), f"task {task}")

    def adopt(self, base: str) -> None:
        self._db.execute("UPDATE tasks SET base = ? WHERE base = ''", [base])

    def base(self, task: int) -> str:
        return str(self._value("base", task))

    def state(self, task: int) -> str:
        return str(self._value("state", task))

    def reason(self, task: int) -> str:
        return str(self._value("reason", task))

    def steps_made(self, task: int) -> int:
        sql = "SELECT coalesce(max(step), 0) FROM policies WHERE task = ?"
        return int(self._db.conn.execute(sql, [task]).fetchone()[0])

    def tries(self, task: int) -> Tries:
        allowed = "coalesce(json_extract(config, '$.queue.retries'), 0)"
        return Tries(*self._db.conn.execute(f"SELECT retried, {allowed} FROM tasks WHERE id = ?", [task]).fetchone())

    def set_state(self, task: int, state: str, reason: Reason = NO_REASON, fresh: bool = False) -> None:
        """Move a task to a state and drop a due try; a finished task's open plays are removed.

        ``fresh``: a person did it, so tries and steps without signal restart at 0, and findings no longer pause the
        task.
        """
        now = wall_time()
        with transaction(self._db):
            self._db.execute(
                "UPDATE tasks SET state = ?, reason = ?, reason_code = ?, due = NULL, cause = '',"
                " retried = CASE WHEN ? THEN 0 ELSE retried END,"
                " started = CASE WHEN ? = 'running' THEN coalesce(started, ?) ELSE started END,"
                " finished = CASE WHEN ? IN ('done', 'failed', 'cancelled') THEN ? ELSE NULL END WHERE id = ?",
                [state, reason.words, reason.code, fresh, state, now, state, now, task],
            )
            if fresh:
                self._db.execute("UPDATE policies SET resumed = step WHERE task = ?", [task])
                of_task = "policy IN (SELECT id FROM policies WHERE task = ?)"
                self._db.execute(f"UPDATE findings SET pending = 0 WHERE pending AND {of_task}", [task])
            if state in FINISHED:
                self._db.execute("DELETE FROM open_plays WHERE task = ?", [task])

    def extend(self, task: int, steps: int, state: str) -> None:
        """Set a task's total steps and its state; a changed state resets tries and steps without signal."""
        sql = "UPDATE policies SET resumed = step WHERE task = ? AND (SELECT state FROM tasks WHERE id = task) != ?"
        self._db.execute(sql, [task, state])
        self._db.execute(
            "UPDATE tasks SET steps = ?, config = json_set(config, '$.steps', ?), finished = NULL,"
            " reason = CASE WHEN state = ? THEN reason ELSE '' END,"
            " reason_code = CASE WHEN state = ? THEN reason_code ELSE '' END,"
            " retried = CASE WHEN state = ? THEN retried ELSE 0 END, state = ? WHERE id = ?",
            [steps, steps, state, state, state, state, task],
        )

    def set_priority(self, task: int, priority: int) -> None:
        sql = "UPDATE tasks SET priority = ?, config = json_set(config, '$.queue.priority', ?) WHERE id = ?"
        self._db.execute(sql, [priority, priority, task])

    def replace_auto(self, task: int, values: Mapping[str, Any]) -> None:
        """Replace ``auto`` in a task's configuration by numbers, by dotted key."""
        with transaction(self._db):
            for key, value in values.items():
                path = "$" + "".join(f'."{part}"' for part in key.split("."))
                sql = "UPDATE tasks SET config = json_set(config, ?, json(?)) WHERE id = ?"
                self._db.execute(sql, [path, json.dumps(value), task])

    def try_again(self, task: int, due: float, cause: str) -> None:
        self._db.execute(
            "UPDATE tasks SET state = 'queued', reason = ?, reason_code = ?, due = ?, cause = ?, retried = retried + 1"
            " WHERE id = ?",
            [cause, ReasonCode.RETRY, due, cause, task],
        )

    def hurry(self, environments: Set[str]) -> None:
        """Make tries of tasks of these environments, by any of their names, due at once."""
        named = " OR ".join(["instr(? || environment || ?, ? || ? || ?)"] * len(environments))  # of a mixture, any
        if environments:
            sql = f"UPDATE tasks SET due = 0 WHERE due IS NOT NULL AND ({named})"
            self._db.execute(sql, [part for name in environments for part in (TOGETHER,) * 3 + (name, TOGETHER)])

    def explain(self, reasons: Mapping[int, Reason]) -> None:
        with transaction(self._db):
            self._db.conn.executemany(
                "UPDATE tasks SET state = 'queued', reason_code = ?, reason = ? WHERE id = ?",
                [(reason.code, reason.words, task) for task, reason in reasons.items()],
            )

    def note(self, notes: Mapping[int, str]) -> None:
        """Record what holds running tasks up; an empty text: nothing."""
        with transaction(self._db):
            self._db.conn.executemany(
                "UPDATE tasks SET reason = ? WHERE id = ? AND state = 'running'",
                [(note, task) for task, note in notes.items()],
            )

    def warn(self, task: int, about: str, message: str) -> bool:
        """Store a warning for people about a task, until the task is removed; False if it is stored already."""
        row = [task, about, message, wall_time()]
        return bool(self._db.execute("INSERT OR IGNORE INTO warnings VALUES (?, ?, ?, ?)", row).rowcount)

    def add_seconds(self, seconds: Mapping[int, float]) -> None:
        with transaction(self._db):
            rows = [(more, task) for task, more in seconds.items()]
            self._db.conn.executemany("UPDATE tasks SET seconds = seconds + ? WHERE id = ?", rows)

    def _value(self, column: str, task: int) -> Any:
        return self._db.conn.execute(f"SELECT {column} FROM tasks WHERE id = ?", [task]).fetchone()[0]

    def new_commands(self) -> list[Command]:
        rows = self._db.query("SELECT id, kind, task, arguments FROM commands WHERE done IS NULL ORDER BY id")
        return [Command(r["id"], r["kind"], r["task"], json.loads(r["arguments"])) for r in rows]

    def forget_stops(self, before: float) -> None:
        """Drop *stop* and *drain* commands from before ``before``: they were meant for an engine that has ended."""
        self._db.execute(
            "UPDATE commands SET done = ?, outcome = 'That engine had ended.'"
            " WHERE kind IN ('stop', 'drain') AND done IS NULL AND created < ?",
            [wall_time(), before],
        )

    def finish_command(self, command: int, outcome: str = "") -> None:
        self._db.execute("UPDATE commands SET done = ?, outcome = ? WHERE id = ?", [wall_time(), outcome, command])
