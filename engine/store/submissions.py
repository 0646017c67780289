"""Writes of the application. Standard library only."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..clock import wall_time
from ..errors import ConfigError, UnknownTask
from ..spec.task import TaskSpec
from .schema import outside_transaction

YIELDS = ("yield", "resume_engine")
"""Later engines obey these. ``until``: seconds since 1970; None: until ``resume_engine``."""
API_SWITCHES = ("api_start", "api_stop")
"""Later engines obey these. ``port`` is optional."""
NODE_COMMANDS = ("drain_node", "undrain_node")
"""Later engines obey these. A drained ``node`` gets nothing new, and its workers move."""
COMMANDS = (
    *("pause", "resume", "cancel", "retry", "stop", "drain", "delete", "extend", "rollback", "tenant", "reload"),
    *("name", "unname", "priority"),
    *YIELDS,
    *API_SWITCHES,
    *NODE_COMMANDS,
)
"""Without a task: ``stop``, ``drain`` (a stop after the steps in progress), ``tenant`` (weight, quotas of ``name``),
``reload`` (``plugin``), ``unname`` (``name``, ``tenant``). ``delete`` removes files of a finished task: all versions,
or ``version``. ``extend`` sets total ``steps``. ``rollback``: a task that does not run continues from ``version``."""


@dataclass(frozen=True)
class Borrowed:
    """Another task's version, as ``words`` of a task file."""

    words: str
    version: int
    plays: bool


@dataclass(frozen=True)
class Submission:
    """A validated task file."""

    spec: TaskSpec
    source: str = ""
    base: str = ""
    family: str = ""
    needs: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    borrowed: tuple[Borrowed, ...] = ()
    file: str = ""
    """Not stored."""


def submit(database: Path, submissions: Sequence[Submission]) -> list[int]:
    """All or none; returns their numbers."""
    sql = (
        "INSERT INTO tasks (tenant, name, environment, state, reason, config, source, priority, steps, base, family,"
        " kind, created, seconds) VALUES (?, ?, ?, 'submitted', 'waiting for the engine', ?, ?, ?, ?, ?, ?, ?, ?, 0)"
    )
    now = wall_time()
    with outside_transaction(database) as connection:
        numbers = []
        for submission in submissions:
            spec = submission.spec
            what = (spec.tenant, spec.name, spec.played, json.dumps(spec.to_json()), submission.source)
            rest = (spec.queue.priority, spec.steps, submission.base, submission.family, spec.kind, now)
            numbers.append(_insert(connection, sql, (*what, *rest)))
        for number, submission in zip(numbers, submissions, strict=True):
            needed = {*submission.needs, *(numbers[place] for place in submission.after)}
            rows = [(number, other) for other in sorted(needed)]
            connection.executemany("INSERT INTO dependencies (task, needs) VALUES (?, ?)", rows)
            lent = [(number, one.words, one.version, one.plays) for one in submission.borrowed]
            connection.executemany("INSERT INTO borrowed (task, words, version, plays) VALUES (?, ?, ?, ?)", lent)
    return numbers


def command(database: Path, kind: str, task: int | None = None, **arguments: Any) -> int:
    """Returns its number, for ``command_outcomes``."""
    if kind not in COMMANDS:
        raise ValueError(f"There is no command {kind!r}; known are {', '.join(COMMANDS)}.")
    with outside_transaction(database) as connection:
        return _command(connection, kind, task, arguments)


def command_all(database: Path, kind: str, tasks: Sequence[int]) -> list[int]:
    """The engine sees all before it acts on the queue."""
    with outside_transaction(database) as connection:
        return [_command(connection, kind, task, {}) for task in tasks]


def _command(connection: sqlite3.Connection, kind: str, task: int | None, arguments: Mapping[str, Any]) -> int:
    if task is not None and not connection.execute("SELECT 1 FROM tasks WHERE id = ?", (task,)).fetchone():
        raise UnknownTask(f"There is no task {task}.", "`marlaas list` shows the tasks.")
    return _insert(
        connection,
        "INSERT INTO commands (kind, task, arguments, created) VALUES (?, ?, ?, ?)",
        (kind, task, json.dumps(dict(arguments)), wall_time()),
    )


def _insert(connection: sqlite3.Connection, sql: str, values: tuple[Any, ...]) -> int:
    return connection.execute(sql, values).lastrowid or 0


def add_key(database: Path, tenant: str, name: str, digest: bytes, prefix: str, scopes: Sequence[str]) -> int:
    """``digest``: SHA-256 of the key, which is not stored. Returns its number."""
    sql = "INSERT INTO api_keys (tenant, name, hash, prefix, scopes, created) VALUES (?, ?, ?, ?, ?, ?)"
    with outside_transaction(database) as connection:
        return _insert(connection, sql, (tenant, name, digest, prefix, json.dumps(list(scopes)), wall_time()))


def revoke_key(database: Path, beginning: str) -> tuple[str, str]:
    """Returns prefix and tenant. Requests in progress are answered.

    ``beginning`` may exceed the stored prefix. Raises ``ConfigError`` for no key, several, or a revoked one.
    """
    sql = (
        "SELECT id, prefix, tenant, revoked FROM api_keys WHERE substr(prefix, 1, length(?1)) = ?1"
        " OR substr(?1, 1, length(prefix)) = prefix"
    )
    listed = "`marlaas api key list` shows them."
    with outside_transaction(database) as connection:
        found = connection.execute(sql, (beginning,)).fetchall() if beginning else []
        holds = [row for row in found if row[3] is None]
        if not found:
            raise ConfigError(f"No key begins with {beginning!r}.", listed)
        if len(holds) > 1:
            raise ConfigError(f"{len(holds)} keys begin with {beginning!r}.", f"Give more of it; {listed}")
        if not holds:
            raise ConfigError(f"The key {found[0][1]}… was revoked before.", listed)
        number, prefix, tenant, _ = holds[0]
        connection.execute("UPDATE api_keys SET revoked = ? WHERE id = ?", (wall_time(), number))
    return str(prefix), str(tenant)
