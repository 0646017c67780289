"""Frozen rows that the store returns. Standard library only."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..environments.conformance.finding import Finding

ACTIVE = ("submitted", "queued", "blocked", "running", "paused")
FINISHED = ("done", "failed", "cancelled")


class ReasonCode(StrEnum):
    """A machine-readable ``Reason``."""

    NONE = ""
    STARTING = "starting"
    INTERRUPTED = "interrupted"
    DEPENDS = "depends"
    SLOTS = "slots"
    QUOTA = "quota"
    YIELDED = "yielded"
    RETRY = "retry"
    BLOCKED = "blocked"
    PERSON = "person"
    ITSELF = "itself"
    FAILED = "failed"
    ENDED = "ended"


@dataclass(frozen=True)
class Reason:
    """Why a task waits, paused or ended."""

    code: ReasonCode = ReasonCode.NONE
    words: str = ""


NO_REASON = Reason()


@dataclass(frozen=True)
class ScoreBasis:
    """The basis of a held-out score."""

    stderr: float
    n: int
    failures: int = 0
    prompts: int = 0
    samples: int = 1
    best_of: float | None = None
    """None if k is 1."""
    pass_at: float | None = None
    """None if k is 1."""


BASIS = (
    "json_object('stderr', coalesce(stderr, 0.0), 'n', n, 'failures', failures, 'prompts', prompts, 'samples', samples,"
    " 'best_of', best_of, 'pass_at', pass_at)"
)


def basis_of(text: str | None) -> ScoreBasis | None:
    """None: nothing was measured."""
    return ScoreBasis(**json.loads(text)) if text else None


@dataclass(frozen=True)
class NewFinding:
    """A sign that a policy learns wrongly."""

    code: str
    step: int
    evidence: Mapping[str, float] = field(default_factory=dict)
    """By name; ``app/text/learning.py`` has the sentences."""
    rollouts: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FindingRow(NewFinding):
    """A stored finding."""

    policy: str
    holds: bool = True
    created: float = 0.0


FINDINGS = (
    "(SELECT json_group_array(json_object('policy', q.name, 'code', f.code, 'step', f.step, 'evidence',"
    " json(f.evidence), 'rollouts', json(f.rollouts), 'holds', f.holds, 'created', f.created))"
    " FROM findings f JOIN policies q ON q.id = f.policy WHERE q.task = t.id)"
)


def findings_of(text: str | None) -> tuple[FindingRow, ...]:
    """Newest first."""
    rows = (
        FindingRow(**{**row, "holds": bool(row["holds"]), "rollouts": tuple(row["rollouts"])})
        for row in json.loads(text or "[]")
    )
    return tuple(sorted(rows, key=lambda row: (-row.step, -row.created, row.code)))


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A policy's progress."""

    step: int = 0
    reward: float | None = None
    score: float | None = None
    best: float | None = None
    """Held-out, of the newest evaluation series."""
    floor: float | None = None
    """The best constant answer's held-out score."""
    adapter_version: str = ""
    """The newest committed version, or empty."""
    staleness: float | None = None
    """Mean of the newest step's tokens, in versions."""
    tokens: int = 0
    basis: ScoreBasis | None = None


@dataclass(frozen=True)
class PolicyRow(Progress):
    """One of a task's policies."""

    name: str
    agents: tuple[str, ...]
    """Hostile text, from a plugin."""
    frozen: str = ""
    pool: str = ""
    measured: bool = False
    """For a version that an evaluation measures: its step is 1 when done."""

    @property
    def trained(self) -> bool:
        return not self.frozen and not self.pool


@dataclass(frozen=True)
class LostEpisodes:
    """Episodes whose environment always failed."""

    episodes: int
    of: int
    failure: str = ""
    """Hostile text."""

    @property
    def share(self) -> float:
        return self.episodes / self.of if self.of else 0.0


@dataclass(frozen=True)
class TaskRow(Progress):
    """A task, with its first trained policy's progress."""

    id: int
    tenant: str
    name: str
    environment: str
    state: str
    """submitted, queued, blocked, running, paused, done, failed or cancelled"""
    reason: str
    priority: int
    steps: int
    seconds: float
    created: float
    started: float | None
    finished: float | None
    family: str = ""
    retried: int = 0
    policies: tuple[PolicyRow, ...] = ()
    """Empty for a single policy."""
    reason_code: str = ""
    warning: str = ""
    kind: str = "train"
    """``train`` or ``eval``: then policies are measured versions, and ``step`` counts finished ones."""
    findings: tuple[FindingRow, ...] = ()
    lost: LostEpisodes | None = None

    @property
    def trained(self) -> tuple[str, ...]:
        return tuple(policy.name for policy in self.policies if policy.trained)

    def seen_by(self, policy: PolicyRow) -> TaskRow:
        progress = {each.name: getattr(policy, each.name) for each in fields(Progress)}
        findings = tuple(finding for finding in self.findings if finding.policy == policy.name)
        return replace(self, steps=1 if policy.measured else self.steps, findings=findings, **progress)

    @property
    def unfinished(self) -> bool:
        return self.state in ACTIVE

    @property
    def stuck(self) -> bool:
        return self.state == "paused" and self.reason_code != ReasonCode.PERSON


@dataclass(frozen=True)
class KnownTask:
    """A possible dependency."""

    id: int
    tenant: str
    name: str
    family: str
    created: float


@dataclass(frozen=True)
class Tenant:
    """Weight and quotas of one tenant."""

    weight: float = 1.0
    tasks: int = 0
    """Simultaneous; 0: no quota."""
    tokens_per_day: int = 0
    """0: no quota."""


@dataclass(frozen=True, kw_only=True)
class TenantRow(Tenant):
    """With its tasks and usage."""

    name: str
    running: int
    waiting: int
    blocked: int
    paused: int
    finished: int
    tokens_today: int
    seconds: float


@dataclass(frozen=True)
class StepRow:
    """One optimizer step."""

    step: int
    created: float
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PaceRow:
    """A task's recent speed."""

    seconds: float
    tokens: float
    steps: int = 20


@dataclass(frozen=True, kw_only=True)
class EvalRow(ScoreBasis):
    """A held-out measurement of a version."""

    step: int
    environment_version: str
    score: float | None
    """avg@k; None if too many episodes failed."""
    floor: float | None
    """The constant answer's score; None: unknown."""
    metrics: Mapping[str, float]
    series: str = ""
    suite: str = ""
    """Empty for the task's own prompts."""
    split: str = "eval"
    created: float = 0.0


@dataclass(frozen=True)
class Turn:
    """Hostile text: a model or a tenant wrote it."""

    role: str
    text: str


@dataclass(frozen=True)
class TrajectoryRow:
    """One trajectory."""

    id: int
    task: int
    split: str
    group: int
    member: int
    agent: str
    status: str
    reward: float | None
    advantage: float
    step: int | None
    version: int
    environment_version: str
    tokens: int
    turns: tuple[Turn, ...]
    parts: dict[str, float]
    metrics: dict[str, Any]
    failure: str
    part: int = 0
    """Place among the agent's trajectories in the episode; each continues the one before."""
    policy: str = ""
    speaker: str = ""
    spoke: int | None = None


@dataclass(frozen=True)
class VersionRow:
    """One adapter version."""

    id: int
    task: int
    tenant: str
    task_name: str
    policy: str
    number: int
    name: str
    state: str
    """committed, pruned or void; only committed ones can be exported"""
    label: str
    score: float | None
    checksum: str
    path: str
    size: int
    created: float
    resumable: bool = True
    """True with optimizer moments; without, it can only be exported and sampled."""
    basis: ScoreBasis | None = None


@dataclass(frozen=True)
class BoundTask:
    """A task that binds the home to its base: unfinished, or with kept adapters."""

    id: int
    tenant: str
    name: str
    state: str
    base: str
    base_name: str
    versions: int
    size: int


@dataclass(frozen=True)
class EventRow:
    """A log line."""

    id: int
    task: int | None
    level: str
    kind: str
    message: str
    created: float


@dataclass(frozen=True)
class EngineRow:
    """One engine process."""

    incarnation: int
    pid: int
    state: str
    """starting, running, draining, stopping or stopped"""
    started: float
    heartbeat: float
    base: str
    note: str
    fingerprint: str = ""
    """Empty for an older marlaas."""
    sampler: str = ""
    """torch, llama.cpp, or empty for an older marlaas."""
    rest: str = ""
    rest_until: float | None = None
    placement: str = ""
    version: str = ""
    precision: str = ""
    unverified: bool = False
    """The base could not be compared with transformers."""

    @property
    def shown_base(self) -> str:
        return f"{self.base} (unverified)" if self.unverified else self.base


@dataclass(frozen=True)
class WorkerRow:
    """A worker process, or one to start."""

    name: str
    pid: int | None
    """None before its start."""
    state: str
    rss: int
    busy: float
    started: float
    updated: float
    device: str = ""


@dataclass(frozen=True)
class EnvironmentRow:
    """An environment as last seen."""

    name: str
    version: str
    state: str
    parameters: tuple[dict[str, Any], ...]
    description: str
    message: str
    file: str
    line: int
    path: str
    updated: float
    findings: tuple[Finding, ...] = ()
    checked: float | None = None
    agents: tuple[str, ...] = ()
    playing: int = 0
    scoring: int = 0
    live: int = 0
    waiting: int = 0
    rows: str = "own"
    """``own``, ``task``, or empty."""


YIELDED = "yielded"
HOURS = "hours"
IDLE = "idle"


@dataclass(frozen=True)
class YieldRequest:
    """A person's request to yield the machine."""

    until: float | None


@dataclass(frozen=True)
class Yielding:
    """Why the engine has no workers."""

    kind: str
    until: float | None = None

    @property
    def holds(self) -> bool:
        return self.kind != IDLE


@dataclass(frozen=True)
class ApiKeyRow:
    """A client's key. The key itself is stored nowhere."""

    id: int
    tenant: str
    name: str
    prefix: str
    scopes: tuple[str, ...]
    """``chat``, ``train``, ``admin``."""
    created: float
    last_use: float | None
    revoked: float | None
    requests: int
    tokens_in: int
    tokens_out: int


@dataclass(frozen=True)
class ApiRow:
    """The API's actual and requested state."""

    switched: bool | None = None
    port: int | None = None
    open: bool = False
    url: str = ""
    since: float | None = None
    note: str = ""


def shown_state(task: str) -> str:
    """``task``: alias of the table ``tasks``."""
    return f"CASE WHEN {task}.state = 'queued' AND {task}.reason_code = 'blocked' THEN 'blocked' ELSE {task}.state END"


_STALE = "staleness_"


def stale(age: int) -> str:
    """Metric of groups by staleness in versions: staleness_2."""
    return f"{_STALE}{age}"


def stale_age(name: str) -> int | None:
    """None for any other metric."""
    rest = name.removeprefix(_STALE)
    return int(rest) if rest != name and rest.isascii() and rest.isdigit() and len(rest) < 4 else None


def day_of(moment: float) -> str:
    """Seconds since 1970 as UTC day: 2026-11-21."""
    return time.strftime("%Y-%m-%d", time.gmtime(moment))


POLICY = "(SELECT id FROM policies WHERE task = ? AND name = coalesce(?, name) ORDER BY id LIMIT 1)"
"""A policy's id. Parameters: task, policy name or None (the first)."""
BEHIND = "(SELECT id FROM policies WHERE task = ? AND name = coalesce(?, name) ORDER BY step, id LIMIT 1)"
"""As ``POLICY``; None: the one with the fewest steps, which decides the task's end."""
SIDE_CALL = ", side call: "
"""Between the name of an agent and that of a thread that is not trained on."""
PLAY = """(SELECT o.id FROM groups g JOIN policies p ON p.id = g.policy JOIN policies q ON q.task = p.task
JOIN groups o ON o.policy = q.id AND o.split = g.split AND o.number = g.number
AND coalesce(o.play, o.id) = coalesce(g.play, g.id) WHERE g.id = ?)"""
"""All group ids of a play. Parameter: one of them."""
