"""Frozen rows of plain values that reads of the store return, and how some are read from columns. Standard library
only."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..environments import Finding

ACTIVE = ("submitted", "queued", "blocked", "running", "paused")
FINISHED = ("done", "failed", "cancelled")
_PROGRESS = ("step", "reward", "score", "best", "floor", "adapter_version", "staleness", "tokens", "basis")
"""Fields of ``TaskRow`` that are taken from a policy."""


class ReasonCode(StrEnum):
    """Why a task waits, paused or ended, for programs; the sentence beside it is for people."""

    NONE = ""
    STARTING = "starting"
    INTERRUPTED = "interrupted"
    """Its run was interrupted; it continues when it is its turn."""
    DEPENDS = "depends"
    """It waits for another task."""
    SLOTS = "slots"
    """As many tasks run as the engine runs at the same time."""
    QUOTA = "quota"
    """Its tenant has used up a quota: of tasks at the same time, or of tokens a day."""
    YIELDED = "yielded"
    """The engine yields the machine."""
    RETRY = "retry"
    """It is tried again after a pause."""
    BLOCKED = "blocked"
    """It needs something that is missing at the moment: an environment, room on the disk, its adapters."""
    PERSON = "person"
    """A person paused it."""
    ITSELF = "itself"
    """It paused itself, because going on would waste the machine."""
    FAILED = "failed"
    ENDED = "ended"
    """It is done, and the sentence says why it ended early."""


@dataclass(frozen=True)
class Reason:
    """Why a task waits, paused or ended."""

    code: ReasonCode = ReasonCode.NONE
    words: str = ""
    """One sentence, or empty."""


NO_REASON = Reason()


@dataclass(frozen=True)
class ScoreBasis:
    """What a held-out score rests on."""

    stderr: float
    """Standard error of the score, from distinct prompts."""
    n: int
    """Episodes that have a reward."""
    failures: int = 0
    """Episodes that have none after all tries."""
    prompts: int = 0
    """Distinct prompts among the episodes that have a reward."""
    samples: int = 1
    """Episodes of each prompt, k."""
    best_of: float | None = None
    """best@k; None if k is 1."""
    pass_at: float | None = None
    """pass@k; None if k is 1."""


BASIS = (
    "json_object('stderr', coalesce(stderr, 0.0), 'n', n, 'failures', failures, 'prompts', prompts, 'samples', samples,"
    " 'best_of', best_of, 'pass_at', pass_at)"
)
"""SQL for the basis of a row of ``evals``, as JSON."""


def basis_of(text: str | None) -> ScoreBasis | None:
    """The basis that ``BASIS`` gave; None if nothing was measured."""
    return ScoreBasis(**json.loads(text)) if text else None


@dataclass(frozen=True)
class FindingRow:
    """A sign that the learning of a policy goes wrong."""

    policy: str
    """The policy's name in its task."""
    step: int
    """At which it was found."""
    code: str
    """Its name in task files, such as ``entropy_collapse``."""
    evidence: dict[str, float] = field(default_factory=dict)
    """The figures that show it, by name; ``app/words/learning.py`` has their sentences."""
    rollouts: tuple[int, ...] = ()
    """Ids of up to three conversations that show it."""
    holds: bool = True
    """Whether it was still so at the newest step or evaluation."""
    created: float = 0.0


FINDINGS = (
    "(SELECT json_group_array(json_object('policy', q.name, 'code', f.code, 'step', f.step, 'evidence',"
    " json(f.evidence), 'rollouts', json(f.rollouts), 'holds', f.holds, 'created', f.created))"
    " FROM findings f JOIN policies q ON q.id = f.policy WHERE q.task = t.id)"
)
"""SQL for the findings about a task ``t``, as JSON."""


def findings_of(text: str | None) -> tuple[FindingRow, ...]:
    """The findings that ``FINDINGS`` gave, the newest first."""
    rows = (
        FindingRow(**{**row, "holds": bool(row["holds"]), "rollouts": tuple(row["rollouts"])})
        for row in json.loads(text or "[]")
    )
    return tuple(sorted(rows, key=lambda row: (-row.step, -row.created, row.code)))


@dataclass(frozen=True)
class PolicyRow:
    """One policy of a task that has several."""

    name: str
    agents: tuple[str, ...]
    """The agents that it acts as. Hostile text: a plugin named them."""
    frozen: str = ""
    """The version of a frozen policy, as written in the task file; else empty."""
    pool: str = ""
    """For an opponent pool, the policy whose earlier versions play; else empty."""
    step: int = 0
    reward: float | None = None
    """Mean training reward of the newest step."""
    score: float | None = None
    """Newest held-out score."""
    best: float | None = None
    """Best held-out score of the newest evaluation series."""
    floor: float | None = None
    """Score of the best constant answer on the held-out prompts, if it is known."""
    adapter_version: str = ""
    """Name of the newest committed version, or empty."""
    staleness: float | None = None
    """Mean staleness in versions of the tokens of the newest step."""
    tokens: int = 0
    """Tokens trained on so far."""
    measured: bool = False
    """Whether it is a version that an evaluation measures; its step is 1 once it has."""
    basis: ScoreBasis | None = None
    """What the newest held-out score rests on; with a basis and no score, too many episodes failed."""

    @property
    def trained(self) -> bool:
        """Whether it has scores of its own: it is trained, or measured."""
        return not self.frozen and not self.pool


@dataclass(frozen=True)
class LostEpisodes:
    """Episodes of a task that have no reward, because its environment failed each time that they were played."""

    episodes: int
    of: int
    """How many were played for its steps, these among them; 0 if that is not known."""
    failure: str = ""
    """What its environment raised last, with file and line; empty if that is not known any more. Hostile text."""

    @property
    def share(self) -> float:
        """Their share of all episodes; 0 if that is not known."""
        return self.episodes / self.of if self.of else 0.0


@dataclass(frozen=True)
class TaskRow:
    """A task with its progress, which is that of the first policy it trains."""

    id: int
    tenant: str
    name: str
    environment: str
    state: str
    """submitted, queued, blocked, running, paused, done, failed or cancelled"""
    reason: str
    """Why it waits, paused or failed: one sentence, or empty."""
    priority: int
    step: int
    steps: int
    reward: float | None
    """Mean training reward of the newest step."""
    score: float | None
    """Newest held-out score."""
    best: float | None
    """Best held-out score of the newest evaluation series."""
    floor: float | None
    """Score of the best constant answer on the held-out prompts, if it is known."""
    adapter_version: str
    """Name of the newest committed version, or empty."""
    staleness: float | None
    """Mean staleness in versions of the tokens of the newest step."""
    tokens: int
    """Tokens trained on so far."""
    seconds: float
    created: float
    started: float | None
    finished: float | None
    family: str = ""
    """The name of the sweep that it is a member of, or empty."""
    retried: int = 0
    """Automatic tries since a person last put it into the queue."""
    policies: tuple[PolicyRow, ...] = ()
    """All policies in the order of the task file; empty if it has only one."""
    reason_code: str = ""
    """The reason as a ``ReasonCode``."""
    warning: str = ""
    """The newest thing that people should know of it, such as rewards that are biased; empty if there is none."""
    kind: str = "train"
    """``train``, or ``eval``: then its policies are the versions that it measures, and ``step`` counts those that it
    has."""
    basis: ScoreBasis | None = None
    """What the newest held-out score rests on; with a basis and no score, too many episodes failed."""
    findings: tuple[FindingRow, ...] = ()
    """What went wrong in the learning of its policies, the newest first."""
    lost: LostEpisodes | None = None
    """Episodes that its environment lost in the steps made; None: none."""

    @property
    def trained(self) -> tuple[str, ...]:
        """Names of the policies that are trained or measured; empty if the task trains only one policy."""
        return tuple(policy.name for policy in self.policies if policy.trained)

    def seen_by(self, policy: PolicyRow) -> TaskRow:
        """The task with the progress of one of its policies."""
        steps = 1 if policy.measured else self.steps
        own = tuple(finding for finding in self.findings if finding.policy == policy.name)
        return replace(self, steps=steps, findings=own, **{name: getattr(policy, name) for name in _PROGRESS})

    @property
    def unfinished(self) -> bool:
        """Whether the engine still has work to do for it."""
        return self.state in ACTIVE

    @property
    def stuck(self) -> bool:
        """Whether it paused itself, and waits for a person to remove the cause."""
        return self.state == "paused" and self.reason_code != ReasonCode.PERSON


@dataclass(frozen=True)
class KnownTask:
    """What a submission needs to know of a task to depend on it."""

    id: int
    tenant: str
    name: str
    family: str
    created: float
    """In seconds since 1970; the same for all tasks that were submitted together."""


@dataclass(frozen=True)
class TenantRow:
    """A tenant with its weight, quotas and usage."""

    name: str
    weight: float
    tasks: int
    """Quota of tasks at the same time; 0: no quota."""
    tokens_per_day: int
    """Quota of tokens a day; 0: no quota."""
    running: int
    waiting: int
    """Tasks in the queue that lack nothing."""
    blocked: int
    paused: int
    finished: int
    tokens_today: int
    """Tokens used in the day, in UTC."""
    seconds: float
    """Running time of all its tasks together."""


@dataclass(frozen=True)
class StepRow:
    """One optimizer step, with every recorded metric by name."""

    step: int
    created: float
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PaceRow:
    """How fast a task's last steps went."""

    seconds: float
    """From one step to the next, on average."""
    tokens: float
    """Tokens trained on in a step, on average."""
    steps: int = 20
    """Of how many steps these are means."""


@dataclass(frozen=True)
class EvalRow:
    """A version measured on held-out prompts."""

    step: int
    environment_version: str
    score: float | None
    """Mean over the prompts of the mean reward of each prompt's episodes, avg@k; None if too many episodes failed
    for a score."""
    stderr: float
    """Standard error of the score, from distinct prompts."""
    n: int
    """Episodes that have a reward."""
    floor: float | None
    """The constant-answer baseline on the same prompts; None if it is not known."""
    metrics: Mapping[str, float]
    """Means of what the environment logged."""
    failures: int = 0
    """Episodes that have no reward after all tries."""
    prompts: int = 0
    """Distinct prompts among the episodes that have a reward."""
    samples: int = 1
    """Episodes of each prompt, k."""
    series: str = ""
    """The key of its series; empty: that of its environment version alone."""
    suite: str = ""
    """The name of its suite; empty for the task's own held-out prompts."""
    split: str = "eval"
    """``eval`` or ``test``."""
    best_of: float | None = None
    """best@k: the mean over the prompts of the best reward of each; None if k is 1."""
    pass_at: float | None = None
    """pass@k; None if k is 1."""
    created: float = 0.0

    @property
    def basis(self) -> ScoreBasis:
        """What the score rests on."""
        return ScoreBasis(**{one.name: getattr(self, one.name) for one in fields(ScoreBasis)})


@dataclass(frozen=True)
class Turn:
    """One turn of a trajectory, as text. Hostile text: a model or a tenant wrote it."""

    role: str
    text: str


@dataclass(frozen=True)
class TrajectoryRow:
    """One trajectory, for reading."""

    id: int
    task: int
    split: str
    group: int
    """The group's number in its policy."""
    member: int
    agent: str
    status: str
    reward: float | None
    advantage: float
    step: int | None
    """The step that consumed it, or None while it waits."""
    version: int
    environment_version: str
    tokens: int
    turns: tuple[Turn, ...]
    parts: dict[str, float]
    metrics: dict[str, Any]
    failure: str
    part: int = 0
    """Its place among the agent's trajectories in the episode; each continues where the one before ends."""
    policy: str = ""
    """The policy that the group belongs to."""
    speaker: str = ""
    """Who spoke, if that was not ``policy``: a policy's name, or the words that mean a version. It is not trained on
    this."""
    spoke: int | None = None
    """The version that spoke, among those of whoever spoke; None if nothing was said."""


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
    """Whether its file holds the optimizer's moments; without them it can be exported and sampled, not trained on."""
    basis: ScoreBasis | None = None
    """What its held-out score rests on; with a basis and no score, too many episodes failed."""


@dataclass(frozen=True)
class BoundTask:
    """A task because of which its home must keep its base: it is unfinished, or adapters of it are kept."""

    id: int
    tenant: str
    name: str
    state: str
    base: str
    """The fingerprint of the base that it belongs to; empty if no engine has recorded it yet."""
    base_name: str
    """The name that an engine last served that base under; empty if none did."""
    versions: int
    """Adapter versions on disk."""
    size: int
    """Bytes of these versions."""


@dataclass(frozen=True)
class EventRow:
    """One line of the event log."""

    id: int
    task: int | None
    level: str
    """info, warning or error"""
    kind: str
    message: str
    created: float


@dataclass(frozen=True)
class EngineRow:
    """One engine of this home: a process, by its incarnation."""

    incarnation: int
    pid: int
    state: str
    """starting, running, draining, stopping or stopped, as the engine last wrote it"""
    started: float
    heartbeat: float
    base: str
    """The name of the base that it serves."""
    note: str
    fingerprint: str = ""
    """Fingerprint of that base; empty for an engine of an older marlaas."""
    sampler: str = ""
    """torch or llama.cpp; empty for an engine of an older marlaas."""
    rest: str = ""
    """Why it has no workers: yielded, hours or idle; empty while it has."""
    rest_until: float | None = None
    """When yielding ends by itself, in seconds since 1970; None: it does not."""
    placement: str = ""
    """Its placement plan with the reasons: sentences, one a line."""
    version: str = ""
    """The version of marlaas; empty for an engine that is too old to record it."""
    precision: str = ""
    """In which precision it samples and trains, in words; empty if it has not placed its workers."""
    unverified: bool = False
    """True if the base could not be compared with transformers."""

    @property
    def shown_base(self) -> str:
        """The base for people: its name, and whether it is unverified."""
        return f"{self.base} (unverified)" if self.unverified else self.base


@dataclass(frozen=True)
class WorkerRow:
    """A process of the engine, or a worker that is to have one."""

    name: str
    pid: int | None
    """None if it is being started and has no process yet."""
    state: str
    """*running*, or *starting*: for the first time, or again after its death."""
    rss: int
    busy: float
    """Share of the last interval in which it did useful work, 0 to 1."""
    started: float
    updated: float
    device: str = ""
    """What it computes on, in words; empty if it was not assigned a device."""


@dataclass(frozen=True)
class EnvironmentRow:
    """An environment as the engine last saw it."""

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
    """What the conformance checks found in the version that serves."""
    checked: float | None = None
    """When that version was checked; None if it was not yet."""
    agents: tuple[str, ...] = ()
    """The agents that its author declares; empty if there are none."""
    playing: int = 0
    """Processes of its plugin that play episodes."""
    scoring: int = 0
    """Processes of its plugin that score or compare."""
    live: int = 0
    """Episodes in progress in them."""
    waiting: int = 0
    """Episodes that wait for a place in a process."""
    rows: str = "own"
    """Whose rows it draws its tasks from: its ``own``, those of the ``task`` file; empty: none."""


YIELDED = "yielded"
"""Why an engine has no workers: a person asked it to yield the machine."""
HOURS = "hours"
"""Why an engine has no workers: it is outside of the active hours."""
IDLE = "idle"
"""Why an engine has no workers: nothing runs. The next task ends this."""


@dataclass(frozen=True)
class YieldRequest:
    """A person's request that the engine yield the machine."""

    until: float | None
    """In seconds since 1970; None: until it is taken back."""


@dataclass(frozen=True)
class Yielding:
    """Why the engine has no workers: it yields the machine, or nothing runs."""

    kind: str
    """``YIELDED``, ``HOURS`` or ``IDLE``."""
    until: float | None = None
    """When this ends by itself, in seconds since 1970; None: it does not."""

    @property
    def holds(self) -> bool:
        """Whether tasks must wait until it ends."""
        return self.kind != IDLE


@dataclass(frozen=True)
class ApiKeyRow:
    """A key with which a client asks the API, and what it has used. The key itself is kept nowhere."""

    id: int
    tenant: str
    name: str
    """What a person calls it; may be empty."""
    prefix: str
    """How the key begins."""
    scopes: tuple[str, ...]
    """What it may: ``chat``, ``train``, ``admin``."""
    created: float
    """In seconds since 1970, as the two that follow."""
    last_use: float | None
    """None: it was never used."""
    revoked: float | None
    """None: it holds."""
    requests: int
    """Requests that were answered."""
    tokens_in: int
    tokens_out: int


@dataclass(frozen=True)
class ApiRow:
    """Whether the API is open to clients, and whether it should be."""

    switched: bool | None = None
    """What a person asked for; None: what the settings say."""
    port: int | None = None
    """At which a person started it; None: what the settings say."""
    open: bool = False
    url: str = ""
    """Empty while it is closed."""
    since: float | None = None
    """When it was opened or closed, in seconds since 1970."""
    note: str = ""
    """Why it is closed although it should be open, in a sentence."""


def shown_state(task: str) -> str:
    """SQL for the state of a task; ``task`` is the alias of the table ``tasks``."""
    return f"CASE WHEN {task}.state = 'queued' AND {task}.reason_code = 'blocked' THEN 'blocked' ELSE {task}.state END"


_STALE = "staleness_"


def stale(age: int) -> str:
    """The metric that counts groups whose tokens were ``age`` versions old: staleness_2."""
    return f"{_STALE}{age}"


def stale_age(name: str) -> int | None:
    """The age that a metric of that name counts groups of; None for any other metric."""
    rest = name.removeprefix(_STALE)
    return int(rest) if rest != name and rest.isascii() and rest.isdigit() and len(rest) < 4 else None


def day_of(moment: float) -> str:
    """The day of a time in seconds since 1970, as text: 2026-11-21."""
    return time.strftime("%Y-%m-%d", time.gmtime(moment))
