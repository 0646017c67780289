"""Tables of tasks, tenants, commands and the API."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

from sqlite_utils import Database

from ..clock import wall_time
from ..errors import ConfigError
from ..fairness.line import Usage
from ..home.paths import Home
from ..spec.task import TOGETHER, TaskSpec, parse
from .database import Table, insert_all, transaction
from .queries.reader import KEYS, api_row, key_row
from .rows import FINISHED, NO_REASON, ApiKeyRow, ApiRow, Reason, ReasonCode, Tenant, VersionRow, day_of, shown_state


@dataclass(frozen=True)
class Needed:
    """An unfinished dependency."""

    id: int
    name: str
    state: str
    step: int
    steps: int


@dataclass(frozen=True)
class QueuedTask:
    """A task for the scheduler."""

    id: int
    tenant: str
    state: str
    reason: Reason = NO_REASON
    priority: int = 0
    due: float | None = None
    cause: str = ""
    needs: tuple[Needed, ...] = ()


@dataclass(frozen=True)
class Command:
    """A request of the app."""

    id: int
    kind: str
    task: int | None
    arguments: dict[str, Any] = field(default_factory=dict)


class TaskTable(Table):
    """Every method is one short transaction."""

    def unfinished(self) -> list[QueuedTask]:
        """By priority, then by number. Reads no specification: there may be many."""
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
        return int(
            self._db.conn.execute("SELECT coalesce(max(step), 0) FROM policies WHERE task = ?", [task]).fetchone()[0]
        )

    def tries(self, task: int) -> tuple[int, int]:
        sql = "SELECT retried, coalesce(json_extract(config, '$.queue.retries'), 0) FROM tasks WHERE id = ?"
        return tuple(self._db.conn.execute(sql, [task]).fetchone())

    def set_state(self, task: int, state: str, reason: Reason = NO_REASON, fresh: bool = False) -> None:
        """A finished task loses its open plays.

        ``fresh``: a person did it; tries and steps without signal restart at 0, findings no longer pause the task.
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
        """A changed state resets tries and steps without signal."""
        self._db.execute(
            "UPDATE policies SET resumed = step WHERE task = ? AND (SELECT state FROM tasks WHERE id = task) != ?",
            [task, state],
        )
        self._db.execute(
            "UPDATE tasks SET steps = ?, config = json_set(config, '$.steps', ?), finished = NULL,"
            " reason = CASE WHEN state = ? THEN reason ELSE '' END,"
            " reason_code = CASE WHEN state = ? THEN reason_code ELSE '' END,"
            " retried = CASE WHEN state = ? THEN retried ELSE 0 END, state = ? WHERE id = ?",
            [steps, steps, state, state, state, state, task],
        )

    def set_priority(self, task: int, priority: int) -> None:
        self._db.execute(
            "UPDATE tasks SET priority = ?, config = json_set(config, '$.queue.priority', ?) WHERE id = ?",
            [priority, priority, task],
        )

    def replace_auto(self, task: int, values: Mapping[str, Any]) -> None:
        with transaction(self._db):
            for key, value in values.items():
                path = "$" + "".join(f'."{part}"' for part in key.split("."))
                self._db.execute(
                    "UPDATE tasks SET config = json_set(config, ?, json(?)) WHERE id = ?",
                    [path, json.dumps(value), task],
                )

    def try_again(self, task: int, due: float, cause: str) -> None:
        self._db.execute(
            "UPDATE tasks SET state = 'queued', reason = ?, reason_code = ?, due = ?, cause = ?, retried = retried + 1"
            " WHERE id = ?",
            [cause, ReasonCode.RETRY, due, cause, task],
        )

    def hurry(self, environments: Set[str]) -> None:
        """Their tries are due at once; environments by any name."""
        named = " OR ".join(["instr(? || environment || ?, ? || ? || ?)"] * len(environments))  # of a mixture, any
        if environments:
            self._db.execute(
                f"UPDATE tasks SET due = 0 WHERE due IS NOT NULL AND ({named})",
                [part for name in environments for part in (TOGETHER,) * 3 + (name, TOGETHER)],
            )

    def explain(self, reasons: Mapping[int, Reason]) -> None:
        with transaction(self._db):
            self._db.conn.executemany(
                "UPDATE tasks SET state = 'queued', reason_code = ?, reason = ? WHERE id = ?",
                [(reason.code, reason.words, task) for task, reason in reasons.items()],
            )

    def note(self, notes: Mapping[int, str]) -> None:
        with transaction(self._db):
            self._db.conn.executemany(
                "UPDATE tasks SET reason = ? WHERE id = ? AND state = 'running'",
                [(note, task) for task, note in notes.items()],
            )

    def warn(self, task: int, about: str, message: str) -> bool:
        """False: stored already."""
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
        """Earlier *stop* and *drain* were meant for an ended engine."""
        self._db.execute(
            "UPDATE commands SET done = ?, outcome = 'That engine had ended.'"
            " WHERE kind IN ('stop', 'drain') AND done IS NULL AND created < ?",
            [wall_time(), before],
        )

    def finish_command(self, command: int, outcome: str = "") -> None:
        self._db.execute("UPDATE commands SET done = ?, outcome = ? WHERE id = ?", [wall_time(), outcome, command])


USUAL = Tenant()


class TenantTable(Table):
    """Tenants and use, for quotas."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._clients: list[str] = []
        rows = database.query("SELECT name, weight, tasks, tokens_per_day FROM tenants")
        self._known = {row.pop("name"): Tenant(**row) for row in rows}

    def get(self, name: str) -> Tenant:
        return self._known.get(name, USUAL)

    def set(self, name: str, **changes: float) -> Tenant:
        tenant = replace(self.get(name), **changes)  # type: ignore[arg-type]
        with transaction(self._db):
            row = {"name": name, "created": wall_time(), **asdict(tenant)}
            insert_all(self._db, "tenants", [row], replace=True)
        self._known[name] = tenant
        return tenant

    def clients(self, tenant: str) -> int:
        """Their negative task number in the ledger, constant for this engine."""
        if tenant not in self._clients:
            self._clients.append(tenant)
        return -1 - self._clients.index(tenant)

    def add_use(self, usages: Iterable[Usage]) -> None:
        day = today()
        tasks, clients = [], []
        for usage in usages:
            if usage.task < 0:
                clients.append((day, self._clients[-1 - usage.task], usage.tokens, usage.seconds))
            else:
                tasks.append((day, *astuple(usage)))
        if not tasks and not clients:
            return
        more = "DO UPDATE SET tokens = tokens + excluded.tokens, seconds = seconds + excluded.seconds"
        with transaction(self._db):
            self._db.conn.executemany(
                "INSERT INTO usage (day, task, stage, tokens, seconds) VALUES (?, ?, ?, ?, ?)"
                f" ON CONFLICT (day, task, stage) {more}",
                tasks,
            )
            self._db.conn.executemany(
                "INSERT INTO served_usage (day, tenant, tokens, seconds) VALUES (?, ?, ?, ?)"
                f" ON CONFLICT (day, tenant) {more}",
                clients,
            )

    def tokens_today(self) -> Mapping[str, int]:
        return {
            row["tenant"]: row["tokens"]
            for row in self._db.query(
                "SELECT tenant, sum(tokens) AS tokens FROM"
                " (SELECT t.tenant, u.tokens FROM usage u JOIN tasks t ON t.id = u.task WHERE u.day = ?"
                " UNION ALL SELECT tenant, tokens FROM served_usage WHERE day = ?)"
                " GROUP BY tenant HAVING sum(tokens) > 0",
                [today(), today()],
            )
        }


def today() -> str:
    """In UTC: 2026-11-21."""
    return day_of(wall_time())


@dataclass(frozen=True)
class KeyUse:
    """The use of a key since its last write."""

    key: int
    requests: int
    tokens_in: int
    tokens_out: int
    last: float


class ApiTable(Table):
    """Other processes make and revoke keys."""

    def key(self, digest: bytes) -> ApiKeyRow | None:
        for row in self._db.query(f"{KEYS} WHERE hash = ?", [digest]):
            return key_row(row)
        return None

    def any_key(self) -> bool:
        return self._db.conn.execute("SELECT 1 FROM api_keys WHERE revoked IS NULL LIMIT 1").fetchone() is not None

    def add_use(self, uses: Iterable[KeyUse]) -> None:
        with transaction(self._db):
            self._db.conn.executemany(
                "UPDATE api_keys SET requests = requests + ?, tokens_in = tokens_in + ?, tokens_out = tokens_out + ?,"
                " last_use = max(coalesce(last_use, 0), ?) WHERE id = ?",
                [(use.requests, use.tokens_in, use.tokens_out, use.last, use.key) for use in uses],
            )

    def state(self) -> ApiRow:
        for row in self._db.query("SELECT * FROM api"):
            return api_row(row)
        return ApiRow()

    def switch(self, on: bool, port: int | None = None) -> None:
        self._write(replace(self.state(), switched=on, port=port))

    def tell(self, is_open: bool, url: str = "", note: str = "") -> None:
        self._write(replace(self.state(), open=is_open, url=url, note=note, since=wall_time()))

    def _write(self, row: ApiRow) -> None:
        insert_all(self._db, "api", [{"id": 1, **asdict(row)}], replace=True)


MOST_NAMES = 1000
_COLUMNS = """v.id, t.id AS task, t.tenant, t.name AS task_name, p.name AS policy, v.number, v.name, v.state, v.label,
v.checksum, v.path, v.size, v.created, v.resumable"""
_VERSIONS = f"""SELECT {_COLUMNS} FROM tasks t JOIN policies p ON p.task = t.id JOIN versions v ON v.policy = p.id
WHERE t.tenant = ? AND t.base IN ('', ?) AND v.state = 'committed'"""


class ServedTable:
    """Versions and their names for clients. Every read names the tenant."""

    def __init__(self, database: Database, home: Home, fingerprint: str) -> None:
        self._db = database
        self._home = home
        self._fingerprint = fingerprint
        self._holders: Counter[int] = Counter()

    def versions(self, tenant: str, task: int | None = None) -> list[VersionRow]:
        """On the disk, newest first, without scores.

        Raises ``AdapterUnreachable`` for a file outside of the home.
        """
        sql = f"{_VERSIONS} AND t.id = coalesce(?, t.id) ORDER BY t.id DESC, v.number DESC"
        return [self._row(row) for row in self._db.query(sql, [tenant, self._fingerprint, task])]

    def named(self, tenant: str, name: str) -> tuple[VersionRow | None, bool]:
        """The version, None if its file is gone; True if the tenant has the name."""
        for found in self._db.query("SELECT version FROM adapter_names WHERE tenant = ? AND name = ?", [tenant, name]):
            rows = self._db.query(f"{_VERSIONS} AND v.id = ?", [tenant, self._fingerprint, found["version"]])
            return next((self._row(row) for row in rows), None), True
        return None, False

    def names(self, tenant: str) -> dict[str, int]:
        return {
            row["name"]: row["version"]
            for row in self._db.query(
                "SELECT name, version FROM adapter_names WHERE tenant = ? ORDER BY name", [tenant]
            )
        }

    def give(self, tenant: str, name: str, version: int) -> None:
        """Raises ``ConfigError`` beyond ``MOST_NAMES``."""
        known = self.names(tenant)
        if name not in known and len(known) >= MOST_NAMES:
            raise ConfigError(f"Tenant {tenant!r} has {len(known)} names already.", "Remove some with --remove.")
        with transaction(self._db):
            self._db.execute(
                "INSERT INTO adapter_names (tenant, name, version, created) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (tenant, name) DO UPDATE SET version = excluded.version, created = excluded.created",
                [tenant, name, version, wall_time()],
            )

    def take(self, tenant: str, name: str) -> bool:
        with transaction(self._db):
            return bool(
                self._db.execute("DELETE FROM adapter_names WHERE tenant = ? AND name = ?", [tenant, name]).rowcount
            )

    def numbers(self, policy: int) -> dict[int, str]:
        sql = "SELECT v.number, n.name FROM adapter_names n JOIN versions v ON v.id = n.version WHERE v.policy = ?"
        return {row["number"]: row["name"] for row in self._db.query(f"{sql} AND v.state = 'committed'", [policy])}

    @contextmanager
    def hold(self, version: int) -> Iterator[None]:
        """Keep a version's file while the block runs; 0: none."""
        self._holders[version] += 1
        try:
            yield
        finally:
            self._holders[version] -= 1
            if not self._holders[version]:
                del self._holders[version]

    def holds(self, version: int) -> bool:
        return version in self._holders

    def _row(self, row: dict[str, Any]) -> VersionRow:
        path, resumable = str(self._home.file(row["path"])), bool(row["resumable"])
        return VersionRow(**{**row, "path": path, "resumable": resumable, "score": None})
