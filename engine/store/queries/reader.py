"""Reads for screens and the command line. Standard library only.

Every method is one short read-only query; ``changed`` is cheap enough for once a second.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from ...clock import wall_time
from ...environments.conformance.finding import Finding
from ...errors import StoreError
from ...models.reference import is_unverified
from ...spec.task import TOGETHER
from ..rows import (
    BASIS,
    BEHIND,
    FINDINGS,
    FINISHED,
    PLAY,
    POLICY,
    ApiKeyRow,
    ApiRow,
    BoundTask,
    EngineRow,
    EnvironmentRow,
    EvalRow,
    KnownTask,
    LostEpisodes,
    PaceRow,
    PolicyRow,
    StepRow,
    TaskRow,
    TenantRow,
    TrajectoryRow,
    Turn,
    VersionRow,
    WorkerRow,
    basis_of,
    findings_of,
    shown_state,
)
from ..schema import read_only, refuse_newer

Row = TypeVar("Row")
_NEWEST = "FROM evals WHERE policy = p.id AND suite = '' AND split = p.split ORDER BY id DESC LIMIT 1"
SCORES = f"""(SELECT score {_NEWEST}) AS score,
       (SELECT max(score) FROM evals WHERE policy = p.id AND suite = '' AND split = p.split
           AND series = (SELECT series {_NEWEST})) AS best,
       (SELECT floor {_NEWEST}) AS floor,
       (SELECT {BASIS} {_NEWEST}) AS basis"""
"""Of a policy ``p``: newest held-out score, the series' best, baseline, basis."""


_PROGRESS = f"""
       (SELECT value FROM metrics WHERE policy = p.id AND step = p.step AND name = 'reward') AS reward,
       (SELECT value FROM metrics WHERE policy = p.id AND step = p.step AND name = 'staleness') AS staleness,
       {SCORES},
       coalesce((SELECT name FROM versions WHERE policy = p.id AND state != 'void' ORDER BY number DESC, id DESC
                 LIMIT 1), '') AS adapter_version,
       coalesce(p.tokens, 0) AS tokens"""
SILENT = 15.0
"""Seconds without a heartbeat until an engine counts as ended."""
_TASKS = f"""
SELECT t.id, t.tenant, t.name, t.environment, {shown_state("t")} AS state, t.reason, t.reason_code, t.priority, t.steps,
       t.seconds, t.created, t.started, t.finished, t.family, t.retried, t.kind,
       coalesce((SELECT CASE t.kind WHEN 'eval' THEN sum(step) ELSE min(step) END FROM policies WHERE task = t.id), 0)
           AS step,
       json_extract(t.config, '$.policies') AS policies, json_extract(t.config, '$.agents') AS agents,
       json_extract(t.config, '$.versions') AS versions, {_PROGRESS},
       coalesce((SELECT message FROM warnings WHERE task = t.id ORDER BY created DESC, about LIMIT 1), '') AS warning,
       {FINDINGS} AS findings, p.lost, p.errors,
       json_extract(t.config, '$.train.groups_per_step') * json_extract(t.config, '$.train.group_size') AS episodes
FROM tasks t LEFT JOIN policies p ON p.id = (SELECT min(id) FROM policies WHERE task = t.id)
"""

_TENANTS = f"""
SELECT n.name, coalesce(s.weight, 1.0) AS weight, coalesce(s.tasks, 0) AS tasks,
       coalesce(s.tokens_per_day, 0) AS tokens_per_day,
       coalesce(sum(t.state = 'running'), 0) AS running,
       coalesce(sum({shown_state("t")} IN ('submitted', 'queued')), 0) AS waiting,
       coalesce(sum({shown_state("t")} = 'blocked'), 0) AS blocked,
       coalesce(sum(t.state = 'paused'), 0) AS paused,
       coalesce(sum(t.state IN ('done', 'failed', 'cancelled')), 0) AS finished,
       (SELECT coalesce(sum(u.tokens), 0) FROM usage u JOIN tasks o ON o.id = u.task
        WHERE u.day = ? AND o.tenant = n.name)
       + coalesce((SELECT tokens FROM served_usage WHERE day = ? AND tenant = n.name), 0) AS tokens_today,
       coalesce(sum(t.seconds), 0.0) AS seconds
FROM (SELECT name FROM tenants UNION SELECT tenant FROM tasks UNION SELECT tenant FROM served_usage) n
LEFT JOIN tenants s ON s.name = n.name LEFT JOIN tasks t ON t.tenant = n.name GROUP BY n.name ORDER BY n.name
"""

_TRAJECTORIES = """
SELECT j.id, p.task, p.name AS policy, j.speaker, g.split, g.number AS "group", j.member, j.agent, j.status,
       j.reward, j.advantage, g.step, g.version, g.environment_version,
       coalesce(j.length, length(j.tokens) / 4) AS tokens, j.turns, j.parts, j.metrics, j.failure,
       json_extract(j.spans, '$[0][2]') AS spoke,
       (SELECT count(*) FROM trajectories e
        WHERE e."group" = j."group" AND e.member = j.member AND e.agent = j.agent AND e.id < j.id) AS part
FROM trajectories j JOIN groups g ON g.id = j."group" JOIN policies p ON p.id = g.policy
"""


_FAILED = """
SELECT file, line, message FROM failures
WHERE created BETWEEN ? AND coalesce(?, 1e99) + 60
  AND EXISTS (SELECT 1 FROM json_each(?)
              WHERE value IN (environment, substr(environment, instr(environment, '/') + 1)))
ORDER BY created DESC LIMIT 1
"""
"""Between two times; it is written a minute later at most."""

KEYS = (
    "SELECT id, tenant, name, prefix, scopes, created, last_use, revoked, requests, tokens_in, tokens_out FROM api_keys"
)
_OLDER = "An older marlaas made this database."


class Reader:
    """A read-only view, for one thread at a time. Raises ``StoreError``."""

    def __init__(self, database: Path) -> None:
        self._root = database.parent
        self._database, self._file = database, _identity(database)
        self._seen: int | None = None
        if not database.exists():
            raise StoreError(f"There is no database at {database}.", "Submit a task first, or give --home.")
        with ExitStack() as undo:
            try:
                self._connection = sqlite3.connect(
                    read_only(database), uri=True, timeout=5, isolation_level=None, check_same_thread=False
                )
                undo.callback(self._connection.close)
                self._connection.row_factory = sqlite3.Row
                self._connection.execute("PRAGMA query_only = 1")
                refuse_newer(self._connection)
            except sqlite3.Error as error:
                raise StoreError(f"the database cannot be opened: {error}.", where=str(database)) from error
            undo.pop_all()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def all(self, sql: str, *arguments: Any) -> list[sqlite3.Row]:
        try:
            return self._connection.execute(sql, arguments).fetchall()
        except sqlite3.Error as error:
            if str(error).startswith("no such"):
                raise StoreError(_OLDER, "`marlaas engine start` updates it.") from error
            raise StoreError(f"The database cannot be read: {error}.") from error

    def rows(self, cls: Callable[..., Row], sql: str, *arguments: Any) -> list[Row]:
        return [cls(**dict(row)) for row in self.all(sql, *arguments)]

    def changed(self) -> int:
        """Changes with every commit; raises for a newer schema."""
        number = int(self.all("PRAGMA data_version")[0][0])
        if number != self._seen:
            refuse_newer(self._connection)
            self._seen = number
        return number

    def stale(self) -> bool:
        """The open file is no longer the home's database."""
        return _identity(self._database) != self._file

    def tasks(self) -> list[TaskRow]:
        return [self._task(row) for row in self.all(f"{_TASKS} ORDER BY t.id")]

    def task(self, task: int) -> TaskRow | None:
        rows = self.all(f"{_TASKS} WHERE t.id = ?", task)
        return self._task(rows[0]) if rows else None

    def _task(self, row: sqlite3.Row) -> TaskRow:
        values = dict(row)
        named = (json.loads(values.pop(name) or "{}") for name in ("policies", "agents", "versions"))
        policies = self._policies(row["id"], *named)
        lost, errors, episodes = (values.pop(name) or 0 for name in ("lost", "errors", "episodes"))
        if lost:  # its steps consume ``episodes``; ``errors`` of the lost ones stayed in their groups
            names = json.dumps(row["environment"].split(TOGETHER))
            failures = self.all(_FAILED, row["created"], row["finished"], names)
            failure = "".join(f"{file}:{line}: {message}" for file, line, message in failures)
            of = row["step"] * episodes + lost - errors if episodes else 0
            values["lost"] = LostEpisodes(lost, of, failure)
        findings, basis = findings_of(row["findings"]), basis_of(row["basis"])
        return TaskRow(**values | {"findings": findings, "basis": basis, "policies": policies})

    def _policies(
        self, task: int, named: Mapping[str, Any], agents: Mapping[str, str], versions: Iterable[str]
    ) -> tuple[PolicyRow, ...]:
        """Empty for a single policy."""
        if not named and not versions:
            return ()
        rows = self.all(f"SELECT p.name, p.step, {_PROGRESS} FROM policies p WHERE p.task = ?", task)
        progress: dict[str, dict[str, Any]] = {
            row["name"]: {**dict(row), "basis": basis_of(row["basis"])} for row in rows
        }
        if versions:
            known = ({"name": words, **progress.get(words, {})} for words in versions)
            return tuple(PolicyRow(agents=(), measured=True, **values) for values in known)
        return tuple(
            PolicyRow(
                agents=tuple(agent for agent, policy in agents.items() if policy == name),
                frozen=str(policy_file.get("frozen", "")),
                pool=str(policy_file.get("pool", "")),
                **{"name": name, **progress.get(name, {})},
            )
            for name, policy_file in named.items()
        )

    def states(self) -> dict[int, str]:
        """Of all tasks, by number; as the engine has them, without *blocked*."""
        return {row["id"]: row["state"] for row in self.all("SELECT id, state FROM tasks ORDER BY id")}

    def trackers(self) -> set[str]:
        """Those that task files name."""
        rows = self.all("SELECT DISTINCT value FROM tasks, json_each(config, '$.track.to')")
        return {row[0] for row in rows}

    def known_tasks(self) -> list[KnownTask]:
        return self.rows(KnownTask, "SELECT id, tenant, name, family, created FROM tasks ORDER BY id")

    def needs(self, task: int) -> list[TaskRow]:
        return [
            self._task(row)
            for row in self.all(
                f"{_TASKS} WHERE t.id IN (SELECT needs FROM dependencies WHERE task = ?) ORDER BY t.id", task
            )
        ]

    def warnings(self, task: int) -> list[str]:
        return [row[0] for row in self.all("SELECT message FROM warnings WHERE task = ? ORDER BY created, about", task)]

    def tenants(self, day: str) -> list[TenantRow]:
        return self.rows(TenantRow, _TENANTS, day, day)

    def task_config(self, task: int) -> dict[str, Any]:
        rows = self.all("SELECT config FROM tasks WHERE id = ?", task)
        return dict(json.loads(rows[0]["config"])) if rows else {}

    # Default policy: the task's first.

    def rewards(self, task: int, limit: int = 60, policy: str | None = None) -> list[float]:
        return [
            row["value"]
            for row in reversed(
                self.all(
                    f"SELECT value FROM metrics WHERE name = 'reward' AND policy = {POLICY} ORDER BY step DESC LIMIT ?",
                    task,
                    policy,
                    limit,
                )
            )
        ]

    def pace(self, task: int, over: int = 20, policy: str | None = None) -> PaceRow | None:
        """None before the second step.

        Default: the policy with the fewest steps. Pauses, waits and restarts do not count.
        """
        (row,) = self.all(
            "SELECT count(*) AS gaps, avg(made - before) AS seconds, avg(tokens) AS tokens FROM"
            " (SELECT created AS made, lead(created) OVER (ORDER BY number DESC) AS before, tokens FROM"
            " (SELECT s.number, s.created, (SELECT value FROM metrics WHERE policy = s.policy AND step = s.number"
            " AND name = 'tokens') AS tokens FROM steps s"
            f" WHERE s.policy = {BEHIND} ORDER BY s.number DESC LIMIT ?)) WHERE before IS NOT NULL"
            " AND NOT EXISTS (SELECT 1 FROM engines WHERE started > before AND started < made)"
            " AND NOT EXISTS (SELECT 1 FROM events e WHERE e.task = ? AND e.kind IN ('task', 'recovery')"
            " AND e.created > before AND e.created < made)",
            task,
            policy,
            over + 1,
            task,
        )
        return PaceRow(row["seconds"], row["tokens"] or 0.0, row["gaps"]) if row["gaps"] else None

    def steps(self, task: int, after: int = 0, policy: str | None = None) -> list[StepRow]:
        """Above ``after``, oldest first.

        Two queries: a join would look through all metrics for each step.
        """
        rows = self.all(
            f"SELECT number, created, seconds FROM steps WHERE policy = {POLICY} AND number > ? ORDER BY number",
            task,
            policy,
            after,
        )
        steps = {row["number"]: StepRow(row["number"], row["created"], row["seconds"], {}) for row in rows}
        for row in self.all(
            f"SELECT step, name, value FROM metrics WHERE policy = {POLICY} AND step > ?", task, policy, after
        ):
            if row["step"] in steps:  # a commit came between the two queries
                steps[row["step"]].metrics[row["name"]] = row["value"]
        return list(steps.values())

    def evals(self, task: int, policy: str | None = None) -> list[EvalRow]:
        rows = self.all(
            "SELECT step, score, coalesce(stderr, 0) AS stderr, n, failures, prompts, samples, best_of, pass_at, floor,"
            f" environment_version, series, suite, split, metrics, created FROM evals WHERE policy = {POLICY}"
            " ORDER BY id",
            task,
            policy,
        )
        return [EvalRow(**{**dict(row), "metrics": json.loads(row["metrics"])}) for row in rows]

    def trajectories(self, task: int, limit: int = 50, before: int | None = None) -> list[TrajectoryRow]:
        ids = (  # from indexes only: just the page's rows are read
            'SELECT j.id FROM policies p JOIN groups g ON g.policy = p.id JOIN trajectories j ON j."group" = g.id'
            " WHERE p.task = ? AND j.id < ? ORDER BY j.id DESC LIMIT ?"
        )
        last = before if before is not None else 2**62
        rows = self.all(f"{_TRAJECTORIES} WHERE j.id IN ({ids}) ORDER BY j.id DESC", task, last, limit)
        return [_trajectory(row) for row in rows]

    def newest_group(self, task: int, policy: str | None = None) -> list[TrajectoryRow]:
        """All agents' trajectories in the newest training group's play, else the newest measured one's.

        The last sample first, with each agent's newest trajectory.
        """
        newest = self._newest_group(task, policy)
        if newest is None:
            return []
        order = "ORDER BY j.member DESC, g.id, j.agent, j.id DESC"
        rows = self.all(f"{_TRAJECTORIES} WHERE g.id IN {PLAY} {order}", newest)
        return [_trajectory(row) for row in rows]

    def newest_rollout(self, task: int, policy: str | None = None) -> TrajectoryRow | None:
        """The newest of that play.

        Rewarded ones first, the policy's own before its partners'. None without a reply.
        """
        newest = self._newest_group(task, policy)
        order = "ORDER BY j.reward IS NULL, g.id != ?, j.speaker != '', j.id DESC LIMIT 1"
        rows = self.all(f"{_TRAJECTORIES} WHERE g.id IN {PLAY} {order}", newest, newest) if newest is not None else []
        return _trajectory(rows[0]) if rows else None

    def _newest_group(self, task: int, policy: str | None) -> int | None:
        of_policy = f"SELECT id FROM groups WHERE split = 'train' AND policy = {POLICY} ORDER BY number DESC LIMIT 1"
        measured = f"SELECT id FROM groups WHERE policy = {POLICY} ORDER BY id DESC LIMIT 1"
        rows = self.all(of_policy, task, policy) or self.all(measured, task, policy)
        return int(rows[0]["id"]) if rows else None

    def versions(self, task: int | None = None, kept: bool = False) -> list[VersionRow]:
        """Newest first, without void ones; ``kept``: without removed files."""
        where, arguments = ("AND t.id = ?", (task,)) if task is not None else ("", ())
        state = "= 'committed'" if kept else "!= 'void'"
        of_version = (  # the plus sign keeps sqlite from looking through all evaluations of the policy
            "FROM evals WHERE +policy = v.policy AND version = v.id AND suite = '' AND split = 'eval'"
            " ORDER BY id DESC LIMIT 1"
        )
        rows = self.all(
            "SELECT v.id, t.id AS task, t.tenant, t.name AS task_name, p.name AS policy, v.number, v.name, v.state,"
            f" v.label, (SELECT score {of_version}) AS score, (SELECT {BASIS} {of_version}) AS basis,"
            " v.checksum, v.path, v.size, v.created, v.resumable"
            " FROM versions v JOIN policies p ON p.id = v.policy JOIN tasks t ON t.id = p.task"
            f" WHERE v.state {state} {where} ORDER BY t.id DESC, v.number DESC",
            *arguments,
        )
        return [self.version(row) for row in rows]

    def version(self, row: sqlite3.Row | Mapping[str, Any]) -> VersionRow:
        """Makes the path absolute."""
        path, resumable, basis = self._root / row["path"], bool(row["resumable"]), basis_of(row["basis"])
        return VersionRow(**{**dict(row), "path": str(path), "resumable": resumable, "basis": basis})

    def engine(self) -> EngineRow | None:
        rows = self.all("SELECT * FROM engines ORDER BY incarnation DESC LIMIT 1")
        return self.engine_row(rows[0]) if rows else None

    def engine_row(self, row: sqlite3.Row) -> EngineRow:
        values = dict(row)  # an older engine's row lacks columns
        return EngineRow(**values, unverified=is_unverified(self._root, values.get("fingerprint") or ""))

    def bound_tasks(self) -> list[BoundTask]:
        return self.rows(
            BoundTask,
            f"SELECT t.id, t.tenant, t.name, {shown_state('t')} AS state, t.base, count(v.id) AS versions,"
            " coalesce(sum(v.size), 0) AS size,"
            " coalesce((SELECT e.base FROM engines e WHERE e.fingerprint = t.base AND t.base != ''"
            " ORDER BY e.incarnation DESC LIMIT 1), '') AS base_name"
            " FROM tasks t LEFT JOIN policies p ON p.task = t.id"
            " LEFT JOIN versions v ON v.policy = p.id AND v.state = 'committed' GROUP BY t.id"
            f" HAVING t.state NOT IN {FINISHED} OR count(v.id) > 0 ORDER BY t.id",
        )

    def workers(self) -> list[WorkerRow]:
        return self.rows(WorkerRow, "SELECT * FROM workers ORDER BY name")

    def environments(self) -> list[EnvironmentRow]:
        engine = self.engine()
        ended = engine is None or engine.state == "stopped" or wall_time() - engine.heartbeat > SILENT
        rows = self.all(
            "SELECT e.*, c.findings, c.created AS checked FROM environments e"
            " LEFT JOIN conformance c ON c.environment = e.name AND c.version = e.version ORDER BY e.name"
        )
        found = [self._environment(row) for row in rows]
        return [replace(one, playing=0, scoring=0, live=0, waiting=0) for one in found] if ended else found

    def _environment(self, row: sqlite3.Row) -> EnvironmentRow:
        found = tuple(Finding(**finding) for finding in json.loads(row["findings"] or "[]"))
        lists = {name: tuple(json.loads(row[name])) for name in ("parameters", "agents")}
        path = str(self._root / row["path"]) if row["path"] else ""
        return EnvironmentRow(**{**dict(row), **lists, "findings": found, "path": path})

    def command_outcomes(self, commands: Iterable[int]) -> dict[int, str]:
        wanted = list(commands)
        marks = ",".join("?" * len(wanted))
        return {
            row["id"]: row["outcome"]
            for row in self.all(f"SELECT id, outcome FROM commands WHERE done IS NOT NULL AND id IN ({marks})", *wanted)
        }

    def task_source(self, task: int) -> str:
        rows = self.all("SELECT source FROM tasks WHERE id = ?", task)
        return str(rows[0]["source"]) if rows else ""

    def tasks_from(self, source: str) -> list[int]:
        rows = self.all(
            "SELECT id FROM tasks WHERE source = ? AND source != '' AND state IN ('submitted', 'queued', 'running')"
            " ORDER BY id",
            source,
        )
        return [int(row["id"]) for row in rows]

    def api_keys(self) -> list[ApiKeyRow]:
        return [key_row(dict(row)) for row in self.all(f"{KEYS} ORDER BY id")]

    def api_state(self) -> ApiRow | None:
        """A killed engine has not recorded the closing.

        None: nobody ever asked for the API.
        """
        rows = self.all("SELECT * FROM api")
        return api_row(dict(rows[0])) if rows else None


def _trajectory(row: sqlite3.Row) -> TrajectoryRow:
    turns = tuple(Turn(**turn) for turn in json.loads(row["turns"] or "[]"))
    maps = {name: json.loads(row[name] or "{}") for name in ("parts", "metrics")}
    failure = json.loads(row["failure"]) if row["failure"] else {}
    return TrajectoryRow(**{**dict(row), **maps, "turns": turns, "failure": failure.get("message", "")})


def _identity(database: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        status = database.stat()
        return status.st_dev, status.st_ino
    return None


def key_row(row: Mapping[str, Any]) -> ApiKeyRow:
    """A row of ``KEYS``."""
    return ApiKeyRow(**{**row, "scopes": tuple(json.loads(row["scopes"]))})


def api_row(row: Mapping[str, Any]) -> ApiRow:
    """The row of the table ``api``."""
    shown = {name: row[name] for name in ("port", "url", "since", "note")}
    return ApiRow(None if row["switched"] is None else bool(row["switched"]), open=bool(row["open"]), **shown)
