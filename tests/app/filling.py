"""Fills a database of the real schema by hand, so that screens can be tried without an engine."""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from marlaas.engine.store.database import open_database
from marlaas.engine.store.schema import SUMS

NOW = 1_800_000_000.0
HOSTILE = "[/INST] [b \x1b[31m\x1b]0;owned\x07 \u202egnp.exe\u202c \x00\x07 \ud800 名前が広い [@click=app.quit]x[/] {0}"
WORKERS = (("rollout", 812_000_000, 0.74), ("training", 640_000_000, 0.51), ("env arithmetic", 42_000_000, 0.03))

P = ParamSpec("P")


class Filling:
    """One database."""

    def __init__(self, path: Path, now: float = NOW) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        open_database(path).close()
        self.path, self.now = path, now

    def insert(self, table: str, **values: Any) -> int:
        """One row."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return self._insert(connection, table, values)

    @staticmethod
    def _insert(connection: sqlite3.Connection, table: str, values: dict[str, Any]) -> int:
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join("?" * len(values))
        sql = f'INSERT OR REPLACE INTO "{table}" ({names}) VALUES ({marks})'
        return connection.execute(sql, list(values.values())).lastrowid or 0

    def execute(self, sql: str, *arguments: Any, **named: Any) -> None:
        """Any statement."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute(sql, named or arguments)

    def engine(self, state: str = "running", age: float = 1.0, pid: int | None = None) -> None:
        """An engine that is this very process, and its workers."""
        self.insert(
            "engines",
            pid=pid or os.getpid(),
            state=state,
            started=self.now - 3600,
            heartbeat=self.now - age,
            base="tiny",
        )
        for name, rss, busy in WORKERS:
            self.insert(
                "workers",
                name=name,
                pid=1,
                state="running",
                rss=rss,
                busy=busy,
                started=self.now - 60,
                updated=self.now,
            )

    def task(
        self,
        tenant: str = "physics-lab",
        name: str = "two-digit sums",
        environment: str = "arithmetic",
        state: str = "running",
        reason: str = "",
        steps: int = 60,
        made: int = 0,
        turns: Sequence[tuple[str, str]] = (("user", "17 + 25 = ?"), ("assistant", "42")),
        failure: str = "",
        trajectories: int = 3,
    ) -> int:
        """A task that has made some steps."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            number = self._fill(
                connection, tenant, name, environment, state, reason, steps, made, turns, failure, trajectories
            )
            connection.execute("COMMIT")
        return number

    def _fill(
        self,
        connection: sqlite3.Connection,
        tenant: str,
        name: str,
        environment: str,
        state: str,
        reason: str,
        steps: int,
        made: int,
        turns: Sequence[tuple[str, str]],
        failure: str,
        trajectories: int,
    ) -> int:
        def insert(table: str, **values: Any) -> int:
            return self._insert(connection, table, values)

        task = insert(
            "tasks",
            tenant=tenant.encode("utf-8", "replace").decode(),
            name=name.encode("utf-8", "replace").decode(),
            environment=environment.encode("utf-8", "replace").decode(),
            state="queued" if state == "blocked" else state,
            reason_code="blocked" if state == "blocked" else "",
            reason=reason.encode("utf-8", "replace").decode(),
            config=json.dumps({"name": name}),
            steps=steps,
            created=self.now - 600,
            seconds=1.5 * made,
        )
        policy = insert("policies", task=task, name="policy", config="{}", step=made)
        for step in range(made + 1):
            version = insert(
                "versions",
                policy=policy,
                number=step,
                name=f"t{task}-v{step}-i1",
                incarnation=1,
                state="committed" if step >= made - 1 else "pruned",
                checksum="0" * 16,
                path=f"adapters/{task}/{step}.safetensors",
                size=1_300_000,
                label="last" if step == made else "best" if step == made - 1 else "",
                created=self.now - 2 * (made - step),
            )
            if step % 10 == 0 or step == made:
                insert(
                    "evals",
                    policy=policy,
                    step=step,
                    version=version,
                    environment_version="e1",
                    series="e1",
                    prompts=64,
                    score=reward(task, step) - 0.05,
                    stderr=0.03,
                    n=64,
                    floor=0.08,
                    metrics=json.dumps({"lenient": 0.7}),
                    created=self.now,
                )
            if step:
                insert(
                    "steps",
                    policy=policy,
                    number=step,
                    version=version,
                    incarnation=1,
                    seconds=0.41,
                    created=self.now - 2 * (made - step),
                )
                for key, value in metrics(task, step).items():
                    insert("metrics", policy=policy, step=step, name=key, value=value)
        connection.execute(SUMS)
        if made:
            self._experience(connection, policy, made, turns, failure, trajectories)
        return task

    def _experience(
        self,
        connection: sqlite3.Connection,
        policy: int,
        step: int,
        turns: Sequence[tuple[str, str]],
        failure: str,
        trajectories: int,
    ) -> None:
        group = self._insert(
            connection,
            "groups",
            dict(policy=policy, split="train", number=8 * step, instance=5, version=step - 1, environment_version="e1")
            | dict(state="consumed", step=step, created=self.now),
        )
        for member in range(trajectories):
            failed = bool(failure) and member == trajectories - 1
            self._insert(
                connection,
                "trajectories",
                {
                    "group": group,
                    "member": member,
                    "agent": "agent",
                    "status": "error" if failed else "ok",
                    "reward": None if failed else float(member % 2),
                    "advantage": 0.5 - member % 2,
                    "tokens": bytes(4 * 19),
                    "mask": bytes(19),
                    "logprobs": bytes(4 * 19),
                    "spans": "[]",
                    "turns": json.dumps([{"role": role, "text": text} for role, text in turns]),
                    "parts": json.dumps({"correct": float(member % 2)}),
                    "metrics": "{}",
                    "failure": json.dumps({"message": failure}) if failed else None,
                    "seconds": 0.2,
                },
            )

    def event(self, message: str, task: int | None = None, level: str = "info") -> None:
        """A line of the log."""
        self.insert("events", task=task, level=level, kind="test", message=message, created=self.now)

    def environment(self, name: str = "arithmetic", state: str = "ready", message: str = "") -> None:
        """An environment that is served."""
        parameters = [{"name": "digits", "type": "int", "default": 2, "required": False}]
        self.insert(
            "environments", name=name, version="9f2c41aa", state=state, parameters=json.dumps(parameters),
            description="Sums of whole numbers.", message=message, file="arithmetic.py", line=7, path="/x",
            updated=self.now,
        )  # fmt: skip


def reward(task: int, step: int) -> float:
    """A curve that learns, and wobbles."""
    return min(1.0, 0.15 + 0.75 * (1 - math.exp(-step / 18)) + 0.06 * math.sin(1.7 * step + task))


def metrics(task: int, step: int) -> dict[str, float]:
    """What a step records."""
    return {
        "reward": reward(task, step),
        "reward_spread": 0.31,
        "loss": -0.0132,
        "entropy": 0.74,
        "grad_norm": 0.53,
        "clipped": 0.01,
        "gap_mean": 0.0004,
        "gap_max": 0.0021,
        "staleness": 0.8,
        "tokens": 1480.0,
    }


def kept(fill: Callable[P, Filling]) -> Callable[P, Filling]:
    """A new database that is filled like one before is a copy of it."""
    made: dict[object, bytes] = {}

    @wraps(fill)
    def filled(*path: P.args, **options: P.kwargs) -> Filling:
        database, key = path[0], tuple(options.items())
        assert isinstance(database, Path)
        if database.exists() or len(path) > 1 or "now" in options:
            return fill(*path, **options)
        if key not in made:
            with closing(sqlite3.connect(fill(*path, **options).path)) as connection:
                made[key] = connection.serialize()
        database.parent.mkdir(parents=True, exist_ok=True)
        database.write_bytes(made[key])
        database.chmod(0o600)
        return Filling(database)

    return filled


@kept
def fill_full(path: Path, now: float = NOW, tasks: int = 32) -> Filling:
    """Many tasks in every state."""
    filling = Filling(path, now)
    filling.engine()
    filling.environment()
    tenants = ("physics-lab", "bio", "chemistry department of the university", "名前")
    for i in range(tasks):
        state = ("running", "running", "queued", "paused", "done", "failed", "cancelled", "submitted")[i % 8]
        reason = {"queued": "waits for a free place: 8 tasks run", "failed": "the environment failed 20 times"}.get(
            state, ""
        )
        made = {"queued": 0, "submitted": 0, "done": 60}.get(state, 7 + i)
        filling.task(tenants[i % 4], f"task number {i}", state=state, reason=reason, made=made)
    filling.event("task 1 started", 1)
    columns = {"scopes": '["chat"]', "created": now - 9000, "last_use": now - 30}
    for i in range(3):
        filling.insert("api_keys", tenant=tenants[i], name="", hash=bytes([i]), prefix=f"tml-{i}-abc", **columns)
    return filling


@kept
def fill_hostile(path: Path, now: float = NOW) -> Filling:
    """Every text that somebody else may write is hostile; one trajectory is very long."""
    filling = Filling(path, now)
    filling.engine()
    turns = [("user", HOSTILE), (HOSTILE, "x" * 100_000), ("assistant", "\n".join([HOSTILE] * 50)), ("tool", "")]
    filling.task(HOSTILE, HOSTILE, HOSTILE, reason=HOSTILE, made=12, turns=turns, failure=HOSTILE)
    filling.task("a" * 10_000, "[/]" * 4000, "[", state="failed", reason="[bold" * 2000, made=3)
    filling.task("\x1b[2J", "", "]", state="[red]", made=1)
    filling.execute("UPDATE workers SET name = ?, state = ? WHERE name = 'rollout'", "[/w]\x1b[1m", "[/s]")
    filling.execute("UPDATE engines SET base = ?, note = ?", "[/base]", "[/note]\x1b[31m")
    filling.execute("INSERT OR REPLACE INTO metrics VALUES (1, 12, '[/m]\x1b[31m', 1.0)")
    filling.event("[/event] \x1b[2J", 1, "error")
    filling.environment("[/env]\x1b[31m", "broken", "[/message]\x1b[31m")
    return filling
