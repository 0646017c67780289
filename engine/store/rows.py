"""What readers of the store get: frozen rows of plain values, one class per question that a screen asks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from ..environments import Finding
from .queries.policies import PolicyRow

ACTIVE = ("submitted", "queued", "running", "paused")
FINISHED = ("done", "failed", "cancelled")
_PROGRESS = ("step", "reward", "score", "best", "floor", "adapter_version", "staleness", "tokens")
"""What tasks have of their policies."""


class ReasonCode(StrEnum):
    """Why a task waits, paused or ended, for programs; the sentence beside it is for people."""

    NONE = ""
    STARTING = "starting"
    INTERRUPTED = "interrupted"
    """Its run was ended in between; it goes on when it is its turn."""
    DEPENDS = "depends"
    """On another task."""
    SLOTS = "slots"
    """As many tasks run as the engine takes."""
    QUOTA = "quota"
    """The tenant's: of tasks at a time, or of tokens a day."""
    YIELDED = "yielded"
    """The engine leaves the machine to others."""
    RETRY = "retry"
    """It is tried again after a pause."""
    BLOCKED = "blocked"
    """It needs something that is not there now: an environment, room on the disk, its adapters."""
    PERSON = "person"
    """A person paused it."""
    ITSELF = "itself"
    """It paused itself: to go on would waste the machine."""
    FAILED = "failed"
    ENDED = "ended"
    """It is done, with a remark."""


@dataclass(frozen=True)
class Reason:
    """Why a task waits, paused or ended."""

    code: ReasonCode = ReasonCode.NONE
    words: str = ""
    """One sentence, or empty."""


NO_REASON = Reason()


@dataclass(frozen=True)
class TaskRow:
    """A task with its progress, which is that of the first policy it trains."""

    id: int
    tenant: str
    name: str
    environment: str
    state: str
    """submitted, queued, running, paused, done, failed or cancelled"""
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
    """Score of the best constant answer on the held-out prompts, where it is known."""
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
    """Times that it was tried again by itself since a person last put it into the queue."""
    policies: tuple[PolicyRow, ...] = ()
    """Where the task has several, all of them in the order of its file; else empty."""
    reason_code: str = ""
    """The reason as a ``ReasonCode``."""

    @property
    def trained(self) -> tuple[str, ...]:
        """The policies that learn, where it has several; else empty."""
        return tuple(policy.name for policy in self.policies if policy.trained)

    def seen_by(self, policy: PolicyRow) -> TaskRow:
        """The task with the progress of one of its policies."""
        return replace(self, **{name: getattr(policy, name) for name in _PROGRESS})

    @property
    def unfinished(self) -> bool:
        """Whether the engine still has work to do for it."""
        return self.state in ACTIVE

    @property
    def stuck(self) -> bool:
        """Whether it paused itself: nothing happens until a person has seen to the reason."""
        return self.state == "paused" and self.reason_code != ReasonCode.PERSON


@dataclass(frozen=True)
class KnownTask:
    """A task as far as others may depend on it."""

    id: int
    tenant: str
    name: str
    family: str
    created: float
    """The same for all that were submitted together."""


@dataclass(frozen=True)
class TenantRow:
    """A tenant: what it may take, and what it has taken."""

    name: str
    weight: float
    tasks: int
    """Quota of tasks at the same time; 0: none."""
    tokens_per_day: int
    """Quota of tokens a day; 0: none."""
    running: int
    waiting: int
    paused: int
    finished: int
    tokens_today: int
    """Of the day in UTC."""
    seconds: float
    """In which its tasks ran, all together."""


@dataclass(frozen=True)
class StepRow:
    """One optimizer step: every metric that was recorded, by name."""

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
    """Trained on in a step, on average."""


@dataclass(frozen=True)
class EvalRow:
    """One held-out evaluation."""

    step: int
    score: float
    stderr: float
    n: int
    floor: float | None
    environment_version: str
    metrics: dict[str, float] = field(default_factory=dict)
    created: float = 0.0


@dataclass(frozen=True)
class Turn:
    """One turn of a trajectory, as text. Hostile: a model or a tenant wrote it."""

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
    """Which of the agent's trajectories in its episode; later ones go on where the one before ends."""
    policy: str = ""
    """Whose group it is in."""
    speaker: str = ""
    """Who spoke, where that was somebody else, who learns nothing from it: a policy's name, or the words that mean a
    version."""
    spoke: int | None = None
    """The version that spoke, in the numbers of whoever it was; None where nobody said anything."""


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
    """Its file holds the optimizer's moments; kept without, it can be exported and sampled, not trained on."""


@dataclass(frozen=True)
class BoundTask:
    """A task that holds its home to a base: it is unfinished, or adapters of it are kept."""

    id: int
    tenant: str
    name: str
    state: str
    base: str
    """The fingerprint of the base that it belongs to; empty where no engine has written it down yet."""
    base_name: str
    """What the engine that served that base last called it; empty where none did."""
    versions: int
    """Adapter versions on disk."""
    size: int
    """Their bytes."""


@dataclass(frozen=True)
class EventRow:
    """One line of the log."""

    id: int
    task: int | None
    level: str
    """info, warning or error"""
    kind: str
    message: str
    created: float


@dataclass(frozen=True)
class EngineRow:
    """The newest engine of this home."""

    incarnation: int
    pid: int
    state: str
    """starting, running, draining, stopping or stopped, as it last said of itself"""
    started: float
    heartbeat: float
    base: str
    """The name of the base that it serves."""
    note: str
    fingerprint: str = ""
    """Of that base; empty for an engine of an older marlaas."""
    sampler: str = ""
    """torch or llama.cpp; empty for an engine of an older marlaas."""
    rest: str = ""
    """Why it has no workers: yielded, hours or idle; empty while it has."""
    rest_until: float | None = None
    """When that ends by itself; None: it does not."""
    placement: str = ""
    """Which worker it has placed where, and why: sentences, one a line."""
    version: str = ""
    """Of marlaas; empty for an engine of one that did not write it down."""


@dataclass(frozen=True)
class WorkerRow:
    """A worker process."""

    name: str
    pid: int
    state: str
    rss: int
    busy: float
    """Share of the last interval in which it did useful work, 0 to 1."""
    started: float
    updated: float
    device: str = ""
    """What it computes on, in words; empty where nobody chose it."""


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
    """What was found wrong, or noted, with the version that serves."""
    checked: float | None = None
    """When; None where that version was not checked yet."""
    agents: tuple[str, ...] = ()
    """Who speaks in it; empty where its author does not say."""


YIELDED = "yielded"
"""A person wants the machine."""
HOURS = "hours"
"""It is outside of the active hours."""
IDLE = "idle"
"""Nothing runs; the next task ends it."""


@dataclass(frozen=True)
class YieldRequest:
    """That a person wants the machine, as the store keeps it."""

    until: float | None
    """In seconds since 1970; None: until it is taken back."""


@dataclass(frozen=True)
class Rest:
    """Why there are no workers."""

    kind: str
    """``YIELDED``, ``HOURS`` or ``IDLE``."""
    until: float | None = None
    """When it ends by itself, in seconds since 1970; None: never."""

    @property
    def holds(self) -> bool:
        """Whether tasks have to wait for its end."""
        return self.kind != IDLE
