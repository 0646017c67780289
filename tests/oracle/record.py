"""What the database says, as frozen rows.

Reads ``marlaas.db`` with sqlite3 and knows nothing of the engine's code. Everything but ``state_now`` is of one moment,
even while an engine commits. Arrays are BLOBs of little-endian int32 tokens, uint8 masks and float32 log-probabilities;
a trajectory whose arrays are empty though it has spans was shrunk to text and rewards.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Task:
    """A task as one of its policies sees it, with the tables of its task file, every default filled in."""

    id: int
    policy: str
    """The policy's name."""
    tenant: str
    state: str
    steps: int
    base: str
    tables: dict[str, Any]
    start: str | None
    """The checksum of the version that the policy begins from; None where it begins untrained, or from a folder."""

    @property
    def where(self) -> str:
        """The task, and its policy where it has several, as findings name it."""
        return f"task {self.id}, {self.policy}" if self.policies else f"task {self.id}"

    @property
    def policies(self) -> dict[str, dict[str, Any]]:
        """The policies by name; empty where the task has only one."""
        found: dict[str, dict[str, Any]] = self.tables.get("policies") or {}
        return found

    @property
    def agents(self) -> dict[str, str]:
        """The policy of each agent by its name; empty where the only policy acts as all."""
        found: dict[str, str] = self.tables.get("agents") or {}
        return found

    def value(self, table: str, key: str, default: Any = None) -> Any:
        """What the task file says; ``default`` for a key that was unknown when it was submitted."""
        found = self.tables.get(table, {}).get(key)
        return default if found is None else found

    @property
    def pulls_to_start(self) -> bool:
        """True if the KL term pulls to version 0 of the policy, whose weights were given."""
        policy = self.policies.get(self.policy) or self.tables.get("policy") or {}
        pulls = float(self.value("train", "kl", 0.0)) > 0 and self.value("train", "kl_reference") == "start"
        return pulls and bool(policy.get("start"))

    @property
    def members(self) -> int:
        """Members that begin with a group, redundant ones included."""
        return int(self.value("train", "group_size")) + int(self.value("train", "redundant", 0))

    @property
    def batch(self) -> int:
        """Groups that a step consumes."""
        return int(self.value("train", "groups_per_step"))

    @property
    def staleness(self) -> int:
        """By how many versions a trained token may be older than the version that it updates."""
        return int(self.value("train", "max_staleness"))

    @property
    def by_arrival(self) -> bool:
        """Whether a step consumes whichever groups are complete first, and not those of its numbers."""
        return bool(self.value("train", "order", "number") == "arrival")


@dataclass(frozen=True)
class Version:
    """A row of the table *versions*."""

    id: int
    number: int
    name: str
    incarnation: int
    state: str
    checksum: str
    path: str
    restarted: bool
    """Whether the optimizer began anew here, because no moments could be read."""
    created: float


@dataclass(frozen=True)
class Rollback:
    """A person had a policy go on from an earlier version: what came after it is void on purpose."""

    number: int
    """Number of that version."""
    done: float
    """When it was carried out, in seconds since 1970."""


@dataclass(frozen=True)
class Step:
    """A row of the table *steps*."""

    number: int
    version: int
    incarnation: int


@dataclass(frozen=True)
class Group:
    """A training group without its trajectories."""

    id: int
    number: int
    instance: int
    version: int
    state: str
    step: int | None
    environment: str
    """The version of the environment that was played."""
    play: int
    """The first group of the same play; its own id where it is the first."""
    component: str
    """Which environment of a mixture was played; empty where there is no mixture."""


@dataclass(frozen=True)
class Beside:
    """What somebody said in a play without learning from it."""

    speaker: str
    agent: str
    versions: frozenset[int]
    """Numbers of the versions that spoke."""


@dataclass(frozen=True)
class SaidOpenly:
    """What an agent said in a member of an open play."""

    member: int
    agent: str
    versions: frozenset[int]
    """Numbers of the versions that spoke."""


@dataclass(frozen=True)
class OpenPlay:
    """A row of the table *open_plays*, with what its members said."""

    number: int
    policies: tuple[str, ...]
    speaking: dict[str, int]
    """By the name of whoever plays, the number of the version."""
    said: tuple[SaidOpenly, ...]


@dataclass(frozen=True)
class Trajectory:
    """A row of the table *trajectories* that its policy learns from."""

    id: int
    member: int
    agent: str
    status: str
    reward: float | None
    advantage: float
    tokens: NDArray[np.int32]
    mask: NDArray[np.uint8]
    logprobs: NDArray[np.float32]
    spans: tuple[tuple[int, int, int], ...]
    cut: bool
    """Whether a length limit ended it."""
    turns: tuple[tuple[bool, float | None], ...] = ()
    """Of each span: whether it was said in a fork without a name, and the advantage of its turn where it has one."""
    paid: tuple[tuple[int, float], ...] = ()
    """(replies by then, amount) of all that its agent was paid in the episode; with its first trajectory alone."""

    @property
    def advantages(self) -> NDArray[np.float64]:
        """Those with which its sampled tokens are trained, (N,)."""
        result: NDArray[np.float64] = np.full(len(self.tokens), self.advantage)
        for (start, stop, _), (_, own) in zip(self.spans, self.turns, strict=True):
            if own is not None:
                result[start:stop] = own
        sampled: NDArray[np.float64] = result[self.mask == 1]
        return sampled

    @property
    def given(self) -> bool:
        """Whether its replies are a demonstration's, which nobody sampled; unknown, and False, once it is shrunk."""
        return bool(np.isnan(self.logprobs).any())

    @property
    def shrunk(self) -> bool:
        """Whether its tokens were given up for room."""
        return bool(self.spans) and not len(self.tokens)

    @property
    def sampled(self) -> int:
        """How many of its tokens the policy sampled."""
        return sum(stop - start for start, stop, _ in self.spans)


@dataclass(frozen=True)
class Policy:
    """One policy's whole history."""

    id: int
    task: Task
    step: int
    versions: tuple[Version, ...]
    steps: tuple[Step, ...]
    groups: tuple[Group, ...]
    metrics: dict[tuple[int, str], float]
    """Metrics by step and name."""
    evaluated: tuple[tuple[int, int], ...]
    """(step, id of the version) of each held-out score."""
    rollbacks: tuple[Rollback, ...]

    def lost(self) -> list[Version]:
        """Versions that are void although nobody asked for it: their files could not be used."""
        return [
            version
            for version in self.versions
            if version.state == "void"
            and not any(back.number < version.number and version.created < back.done for back in self.rollbacks)
        ]

    def living(self) -> dict[int, Version]:
        """Versions by number, without those that are void."""
        return {version.number: version for version in self.versions if version.state != "void"}


class Record:
    """A home's database, opened read-only while an engine may run."""

    def __init__(self, database: Path, connection: sqlite3.Connection) -> None:
        self._database = database
        self._connection = connection

    def damage(self) -> list[str]:
        """What sqlite finds wrong with the database, and rows that refer to missing rows."""
        found = [text for (text,) in self._rows("PRAGMA integrity_check") if text != "ok"]
        broken = Counter((table, named) for table, _, named, _ in self._rows("PRAGMA foreign_key_check"))
        lacking = [
            f"{count} rows of {table} name {named} that are not there" for (table, named), count in broken.items()
        ]
        return [*found, *lacking]

    def state_now(self, version: int) -> str:
        """The state of a version at this moment, not when the check began; empty where its row is gone."""
        with closing(_connected(self._database)) as connection:
            found = connection.execute("SELECT state FROM versions WHERE id = ?", [version]).fetchone()
        return str(found[0]) if found else ""

    def trained_by_evaluations(self) -> list[int]:
        """Tasks that only measure, and yet have a step, a version or a training group."""
        rows = self._rows(
            "SELECT DISTINCT p.task FROM policies p JOIN tasks t ON t.id = p.task AND t.kind = 'eval'"
            " WHERE EXISTS (SELECT 1 FROM steps WHERE policy = p.id)"
            " OR EXISTS (SELECT 1 FROM versions WHERE policy = p.id)"
            " OR EXISTS (SELECT 1 FROM groups WHERE policy = p.id AND split = 'train')"
        )
        return [task for (task,) in rows]

    def policies(self) -> list[Policy]:
        """Every policy that is trained, with everything but its trajectories."""
        tasks = {row[0]: row for row in self._rows("SELECT id, tenant, state, steps, base, config FROM tasks")}
        return [
            Policy(
                id=id,
                task=self._seen(name, *tasks[task]),
                step=step,
                versions=tuple(
                    Version(*row)
                    for row in self._rows(
                        "SELECT id, number, name, incarnation, state, checksum, path, restarted, created FROM versions"
                        " WHERE policy = ? ORDER BY id",
                        id,
                    )
                ),
                steps=tuple(
                    Step(*row)
                    for row in self._rows(
                        "SELECT number, version, incarnation FROM steps WHERE policy = ? ORDER BY id", id
                    )
                ),
                groups=tuple(
                    Group(*row)
                    for row in self._rows(
                        "SELECT id, number, instance, version, state, step, environment_version, coalesce(play, id),"
                        " component FROM groups WHERE policy = ? AND split = 'train' ORDER BY number, id",
                        id,
                    )
                ),
                metrics={
                    (number, name): value
                    for number, name, value in self._rows("SELECT step, name, value FROM metrics WHERE policy = ?", id)
                },
                evaluated=tuple(
                    (row[0], row[1]) for row in self._rows("SELECT step, version FROM evals WHERE policy = ?", id)
                ),
                rollbacks=tuple(self._rollbacks(task, name)),
            )
            for id, task, name, step in self._rows(
                "SELECT id, task, name, step FROM policies WHERE task IN (SELECT id FROM tasks WHERE kind = 'train')"
                " ORDER BY id"
            )
        ]

    def _seen(self, name: str, id: int, tenant: str, state: str, steps: int, base: str, config: str) -> Task:
        """A task with one policy's adapter, learning rate and batch where a task with a single policy has them."""
        tables = json.loads(config)
        own = tables.get("policies", {}).get(name)
        if own is not None:
            changed = {key: own[key] for key in ("learning_rate", "groups_per_step") if own.get(key) is not None}
            tables |= {"policy": own, "train": tables["train"] | changed}
        start = self.borrowed(id).get(tables["policy"].get("start", ""))
        return Task(id, name, tenant, state, steps, base, tables, start.checksum if start else None)

    def _rollbacks(self, task: int, policy: str) -> Iterator[Rollback]:
        """The rollbacks that were carried out; one that names no policy is of a task with a single policy."""
        rows = self._rows(
            "SELECT arguments, done FROM commands WHERE kind = 'rollback' AND task = ? AND done IS NOT NULL"
            " AND outcome = ''",
            task,
        )
        for text, done in rows:
            arguments = json.loads(text)
            if arguments.get("policy") in (None, policy):
                yield Rollback(int(arguments["version"]), done)

    def borrowed(self, task: int) -> dict[str, Version]:
        """Versions of other tasks, by the words that stand for them in this task's file."""
        rows = self._rows(
            "SELECT b.words, v.id, v.number, v.name, v.incarnation, v.state, v.checksum, v.path, v.restarted,"
            " v.created FROM borrowed b JOIN versions v ON v.id = b.version WHERE b.task = ?",
            task,
        )
        return {words: Version(*row) for words, *row in rows}

    def beside(self, group: int) -> list[Beside]:
        """What was said in a group's play by those who learn nothing from it."""
        rows = self._rows(
            "SELECT speaker, agent, spans FROM trajectories WHERE \"group\" = ? AND speaker != '' ORDER BY id", group
        )
        return [
            Beside(speaker, agent, frozenset(version for _, _, version, *_ in json.loads(spans or "[]")))
            for speaker, agent, spans in rows
        ]

    def open_plays(self, task: int) -> list[OpenPlay]:
        """The plays of a task that are still open."""
        rows = self._rows("SELECT id, number, policies, speaking FROM open_plays WHERE task = ? ORDER BY id", task)
        return [
            OpenPlay(
                number,
                tuple(json.loads(policies)),
                {name: version for name, (version, _) in json.loads(speaking).items()},
                tuple(
                    SaidOpenly(member, agent, frozenset(version for _, _, version, *_ in json.loads(spans)))
                    for member, agent, spans in self._rows(
                        "SELECT member, agent, spans FROM open_trajectories WHERE play = ? ORDER BY rowid", id
                    )
                ),
            )
            for id, number, policies, speaking in list(rows)
        ]

    def trajectories(self, group: int) -> list[Trajectory]:
        """The trajectories of one group from which its policy learns, in the order in which they were stored."""
        rows = self._rows(
            "SELECT id, member, agent, status, reward, advantage, tokens, mask, logprobs, spans, cut, paid FROM"
            " trajectories WHERE \"group\" = ? AND speaker = '' ORDER BY id",
            group,
        )
        return [
            Trajectory(
                *row[:6],  # type: ignore[call-arg]
                np.frombuffer(row[6] or b"", "<i4").astype(np.int32),
                np.frombuffer(row[7] or b"", np.uint8),
                np.frombuffer(row[8] or b"", "<f4").astype(np.float32),
                tuple((start, stop, version) for start, stop, version, *_ in json.loads(row[9] or "[]")),
                bool(row[10]),
                tuple((bool(one[3]), one[4]) if len(one) > 3 else (False, None) for one in json.loads(row[9] or "[]")),
                tuple((turns, amount) for turns, amount, _ in json.loads(row[11] or "[]")),
            )
            for row in rows
        ]

    def doubled_names(self) -> list[str]:
        """Version names that stand for more than one version."""
        return [name for (name,) in self._rows("SELECT name FROM versions GROUP BY name HAVING count(*) > 1")]

    def strangers(self) -> int:
        """Trajectories and groups that no row owns."""
        lost = 'SELECT count(*) FROM trajectories WHERE "group" NOT IN (SELECT id FROM groups)'
        homeless = "SELECT count(*) FROM groups WHERE policy NOT IN (SELECT id FROM policies)"
        return sum(int(count) for sql in (lost, homeless) for (count,) in self._rows(sql))

    def base(self) -> str:
        """What the newest engine called its base; empty where none ever ran."""
        return next(
            (str(name) for (name,) in self._rows("SELECT base FROM engines ORDER BY incarnation DESC LIMIT 1")), ""
        )

    def _rows(self, sql: str, *arguments: Any) -> Iterator[Any]:
        return iter(self._connection.execute(sql, arguments).fetchall())


@contextmanager
def opened(database: Path) -> Iterator[Record]:
    """The record of a database for the length of the block, as one moment saw it. Raises ``sqlite3.Error``."""
    with closing(_connected(database)) as connection:
        connection.execute("BEGIN")  # one snapshot, also while an engine commits
        yield Record(database, connection)


def _connected(database: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=30)
