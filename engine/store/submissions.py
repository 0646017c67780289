"""Writes of the application: submitted tasks with their dependencies, commands, and keys of the API.

Standard library only. Only a key's hash is stored.
"""

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
"""Commands without a task that a later engine obeys, too. ``yield`` ends the workers until the time ``until``, in
seconds since 1970; None: until the command ``resume_engine``.
"""
API_SWITCHES = ("api_start", "api_stop")
"""Commands without a task that a later engine obeys, too. ``api_start`` opens the API, at ``port`` if that is not None;
``api_stop`` closes it.
"""
NODE_COMMANDS = ("drain_node", "undrain_node")
"""Commands without a task that a later engine obeys, too. ``drain_node`` gives the cluster's node ``node`` nothing new
and moves its workers; ``undrain_node`` takes that back.
"""
COMMANDS = (
    *("pause", "resume", "cancel", "retry", "stop", "drain", "delete", "extend", "rollback", "tenant", "reload"),
    *("name", "unname", "priority"),
    *YIELDS,
    *API_SWITCHES,
    *NODE_COMMANDS,
)
"""Five have no task: ``stop`` ends the engine, ``drain`` ends it after the steps in progress, ``tenant`` sets weight
and quotas of the tenant ``name``, ``reload`` reads the plugin ``plugin`` again, ``unname`` takes the name ``name`` of a
version from the tenant ``tenant``. ``name`` gives the name ``name`` to the version number ``version``. ``delete``
removes adapter versions of a finished task from the disk: all, or the number ``version``. ``extend`` sets a task's
total steps to ``steps``, ``priority`` its priority to ``priority``. ``rollback`` makes a task that does not run
continue from the version number ``version``.
"""


@dataclass(frozen=True)
class Borrowed:
    """A version of another task that a task file refers to by ``words``."""

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
    """The author's file name, for error messages; it is not stored."""


def submit(database: Path, submissions: Sequence[Submission]) -> list[int]:
    """Insert tasks, all or none, and return their numbers."""
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
    """Send a command to the engine; returns its number, for ``command_outcomes``."""
    if kind not in COMMANDS:
        raise ValueError(f"There is no command {kind!r}; known are {', '.join(COMMANDS)}.")
    with outside_transaction(database) as connection:
        return _command(connection, kind, task, arguments)


def command_all(database: Path, kind: str, tasks: Sequence[int]) -> list[int]:
    """Send a command for many tasks: the engine sees all of them before it acts on the queue again."""
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
    """Store a new key by its SHA-256 digest, and return its number."""
    sql = "INSERT INTO api_keys (tenant, name, hash, prefix, scopes, created) VALUES (?, ?, ?, ?, ?, ?)"
    with outside_transaction(database) as connection:
        return _insert(connection, sql, (tenant, name, digest, prefix, json.dumps(list(scopes)), wall_time()))


def revoke_key(database: Path, beginning: str) -> tuple[str, str]:
    """Revoke the one key with this beginning; returns its prefix and tenant. Requests in progress are answered.

    ``beginning`` may be longer than the stored prefix. Raises ``ConfigError`` if no key or several match, or it was
    revoked before.
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
