"""Questions of views to the home and their answers, read in the poll's thread."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

from marlaas.engine.errors import EnvironmentMissing
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries import episodes, learning, machine
from marlaas.engine.store.queries.episodes import StepSummary
from marlaas.engine.store.queries.learning import FirstStep, GivenName, History, KeptMarks, KeptVersion, Track
from marlaas.engine.store.queries.machine import (
    DeviceRow,
    EnvironmentUse,
    EventFilter,
    NodeRow,
    StageSample,
    StandingRow,
    TenantUse,
)
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import (
    ApiKeyRow,
    ApiRow,
    EngineRow,
    EnvironmentRow,
    EvalRow,
    TaskRow,
    TrajectoryRow,
    day_of,
)

from .lists.filters import Listing, broken_first
from .lists.lines import Learner, learners
from .operations import this_machine
from .operations.api import FILE, Request, requests_in
from .operations.environments.source_lines import Excerpt, Place, definition, source_lines, task_excerpt
from .operations.log_files import LogLine, Tail, fits, names, tail
from .operations.results import Scored, scored
from .operations.this_machine import Disk, Memory
from .text.format import EVENTS
from .text.learning import Evidence, Score
from .text.metrics import BANDS, HELD_OUT, HELD_OUT_ON, REWARD, held_out_on
from .text.tasks import lost_briefly, measured_on, newest_series


class Question(Protocol):
    """Asked by a view while it is shown. Equal questions are not read twice."""

    def read(self, reader: Reader, before: Any) -> Any:
        """Read the answer in the feed's thread, with parts of the last answer ``before``. Raises ``StoreError``."""


def evidence(
    row: TaskRow,
    evals: Sequence[EvalRow],
    rewards: Track,
    recent: Mapping[str, float],
    versions: Mapping[str, EvalRow | None],
    config: Mapping[str, Any] = MappingProxyType({}),
    policy: str = "",
) -> Evidence:
    """What a verdict rests on. ``row`` is the task as the policy sees it.

    ``versions``: of an evaluation, its versions with their newest score. ``policy``: of several.
    """
    found = ((name, None if one is None else _score(one)) for name, one in versions.items())
    basis = row.basis if row.score is None else None
    return Evidence(
        row.state,
        row.reason_code,
        row.step,
        row.steps,
        rewards.steps,
        rewards.values,
        tuple(one for each in newest_series(evals) if (one := _score(each)) is not None),
        (basis.failures, basis.n + basis.failures) if basis is not None else None,
        row.floor,
        recent,
        tuple(found) if row.kind == "eval" else None,
        lost_briefly(row),
        _both_sides(config, policy),
    )


def _both_sides(config: Mapping[str, Any], policy: str) -> bool:
    """True if a policy trains as several agents and is measured with other policies as some of them."""
    own = {agent for agent, acts in config.get("agents", {}).items() if acts == policy}
    return len(own) > 1 and not own.isdisjoint(config.get("eval", {}).get("agents", {}))


def _score(row: EvalRow) -> Score | None:
    return None if row.score is None else Score(row.step, row.score, row.stderr)


@dataclass(frozen=True)
class LearningCurve:
    """One task or policy as a chart shows it."""

    history: History = field(default_factory=History)
    evals: tuple[EvalRow, ...] = ()
    """Of all series, oldest first."""
    measured: tuple[int, int] = (0, 0)
    """Number of all evaluations and newest id: they tell if ``evals`` is complete."""

    def track(self, metric: str) -> Track:
        """The values of a metric by step; the held-out score is that of the newest series."""
        on = held_out_on(metric)
        if on is None:
            return self.history.tracks.get(metric, Track())
        track = Track()
        scores = {row.step: row.score for row in newest_series(self.evals, on) if row.score is not None}
        track.steps.extend(scores)
        track.values.extend(scores.values())
        return track

    @property
    def measured_by(self) -> list[str]:
        """Held-out scores: of the task's prompts, of suites, of the split test."""
        others = sorted({measured_on(row) for row in self.evals} - {""})
        return [HELD_OUT, *(f"{HELD_OUT_ON}{on}" for on in others)]


def learning_curve(reader: Reader, learner: Learner, metric: str, before: LearningCurve | None) -> LearningCurve:
    """One metric with its band, and all evaluations; reads only what ``before`` lacks. Raises ``StoreError``."""
    names = () if held_out_on(metric) is not None else (metric, *BANDS.get(metric, ()))
    task, policy = learner.task, learner.policy or None
    now = learning.evals_made(reader, task, policy)
    return LearningCurve(
        learning.history(reader, task, names, before.history if before else None, policy),
        before.evals if before and before.measured == now else tuple(reader.evals(task, policy)),
        now,
    )


def blocking_source(reader: Reader, task: int, now: float) -> Excerpt | None:
    """The broken lines of a blocked task's environment; else None."""
    row = reader.task(task)
    if row is None or row.state != "blocked":
        return None
    try:
        return task_excerpt(row, reader.environments(), machine.environment_use(reader, now))
    except EnvironmentMissing:
        return None


@dataclass(frozen=True)
class AdaptersAnswer:
    """All versions on disk, newest task first, newest version first."""

    versions: tuple[KeptVersion, ...] = ()
    marks: KeptMarks = field(default_factory=dict)
    by_policy: Mapping[int, tuple[KeptVersion, ...]] = field(default_factory=dict)
    preview: PreviewAnswer | None = None
    """Curve and last rollout of the learner in question."""


def _place(kept: KeptVersion) -> tuple[int, ...]:
    """Policies of a task stay together, oldest first."""
    return -kept.row.task, kept.policy_id, -kept.row.number, -kept.row.id


@dataclass(frozen=True)
class AdaptersQuestion:
    """Asks for all tasks' versions, and more ``about`` one learner."""

    about: Learner | None = None
    known: AdaptersAnswer | None = field(default=None, compare=False, repr=False)
    """An answer to another question, to take versions from."""

    def read(self, reader: Reader, before: AdaptersAnswer | None) -> AdaptersAnswer:
        before = before or self.known or AdaptersAnswer()
        answer = self._versions(reader, before)
        if self.about is None:
            return answer
        return replace(answer, preview=PreviewQuestion((self.about,)).read(reader, before.preview))

    @staticmethod
    def _versions(reader: Reader, before: AdaptersAnswer) -> AdaptersAnswer:
        """Reads only policies whose versions, scores or tasks have changed."""
        marks = learning.kept_marks(reader)
        if marks == before.marks:
            return before
        changed = {policy for policy, mark in marks.items() if before.marks.get(policy) != mark}
        known = {policy: kept for policy, kept in before.by_policy.items() if policy in marks.keys() - changed}
        read: dict[int, list[KeptVersion]] = {}
        for kept in learning.kept_versions(reader, changed):
            read.setdefault(kept.policy_id, []).append(kept)
        by_policy = {**known, **{policy: tuple(kept) for policy, kept in read.items()}}
        versions = (kept for own in by_policy.values() for kept in own)
        ordered = sorted(versions, key=_place)
        return AdaptersAnswer(tuple(ordered), marks, by_policy)


@dataclass(frozen=True)
class ApiAnswer:
    """The API of a home at one moment."""

    state: ApiRow
    keys: tuple[ApiKeyRow, ...] = ()
    """Valid ones, newest first; then revoked ones, latest first."""
    names: tuple[GivenName, ...] = ()
    requests: tuple[Request, ...] = ()
    """Of all keys, newest first."""
    log: Tail = field(default_factory=Tail)

    @property
    def holding(self) -> tuple[ApiKeyRow, ...]:
        """Valid keys."""
        return tuple(key for key in self.keys if key.revoked is None)

    def key(self, id: int | None) -> ApiKeyRow | None:
        return next((key for key in self.keys if key.id == id), None)

    def names_of(self, tenant: str) -> tuple[GivenName, ...]:
        """Names that a tenant's keys may use."""
        return tuple(name for name in self.names if name.tenant == tenant)

    def requests_of(self, key: ApiKeyRow) -> tuple[Request, ...]:
        return tuple(request for request in self.requests if request.key == key.prefix)


def _key_place(key: ApiKeyRow) -> tuple[bool, float, int]:
    return key.revoked is not None, -(key.revoked or 0.0), -key.id


@dataclass(frozen=True)
class ApiQuestion:
    """Asks for all of a home's."""

    home: Home

    def read(self, reader: Reader, before: ApiAnswer | None) -> ApiAnswer:
        keys = tuple(sorted(reader.api_keys(), key=_key_place))
        log = tail(self.home.logs / FILE, before.log if before else None)
        requests = before.requests if before is not None and log is before.log else requests_in(log.lines)
        return ApiAnswer(reader.api_state() or ApiRow(), keys, tuple(learning.given_names(reader)), requests, log)


MINUTE = 60.0
FILES = 10.0
"""Seconds between two measurements of the home's size."""
STARTS = 6
"""Listed starts."""


@dataclass(frozen=True)
class EngineAnswer:
    """The state of the machine at one moment."""

    until: float = 0.0
    """The end of the newest sample; 0: none."""
    spans: tuple[StageSample, ...] = ()
    """Of the timeline, oldest first."""
    now: Mapping[str, StageSample] = field(default_factory=dict)
    minute: Mapping[str, StageSample] = field(default_factory=dict)
    """Sums of the last minute by stage."""
    steps: int = 0
    """Of all tasks, in that minute."""
    standings: tuple[StandingRow, ...] = ()
    used: tuple[TenantUse, ...] = ()
    """Of today."""
    starts: tuple[EngineRow, ...] = ()
    """Newest first."""
    memory: Memory | None = None
    cores: int = 0
    pinned: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """Cores of each process."""
    devices: tuple[DeviceRow, ...] = ()
    """As the engine last saw them."""
    nodes: tuple[NodeRow, ...] = ()
    """As the engine last saw them."""
    account: str = ""
    """This application's account."""
    disk: Disk | None = None
    counted: float = 0.0
    """The time of the home's last measurement."""


@dataclass(frozen=True)
class EngineQuestion:
    """Asks for ``cells`` of ``grain`` seconds, and all else."""

    home: Home
    grain: int
    cells: int

    def read(self, reader: Reader, before: EngineAnswer | None) -> EngineAnswer:
        """Reads only what is new of the timeline; measures files every few seconds."""
        begun, until = machine.newest_samples(reader)
        disk, counted = (before.disk, before.counted) if before else (None, 0.0)
        if before is None or until >= counted + FILES:
            disk, counted = this_machine.disk(self.home), until
        processes = [worker.pid for worker in reader.workers() if worker.pid is not None]
        return EngineAnswer(
            until=until,
            spans=self._spans(reader, until, before.spans if before else ()),
            now=machine.stage_totals(reader, begun),
            minute=machine.stage_totals(reader, until - MINUTE),
            steps=machine.steps_since(reader, until - MINUTE),
            standings=tuple(machine.standings(reader)),
            used=tuple(machine.tenants_used(reader, day_of(until))),
            starts=tuple(machine.engine_starts(reader, STARTS)),
            memory=this_machine.memory(),
            cores=this_machine.cores(),
            pinned=this_machine.pinned(processes),
            devices=tuple(found := machine.devices(reader)),
            nodes=tuple(machine.nodes(reader)),
            account=this_machine.account() if found else "",
            disk=disk,
            counted=counted,
        )

    def _spans(self, reader: Reader, until: float, known: tuple[StageSample, ...]) -> tuple[StageSample, ...]:
        """The newest two are read again, since a sample may reach into the next cell."""
        oldest = until - self.grain * (self.cells + 1)
        if not known:
            return tuple(machine.stage_spans(reader, oldest, self.grain))
        again = (max(span.begun for span in known) // self.grain - 1) * self.grain
        kept = (span for span in known if oldest <= span.begun < again)
        return (*kept, *machine.stage_spans(reader, again, self.grain))


@dataclass(frozen=True)
class EnvironmentsAnswer:
    """The broken ones first."""

    rows: tuple[EnvironmentRow, ...] = ()
    use: Mapping[str, EnvironmentUse] = field(default_factory=dict)
    """Of the last hour, by full name."""

    lines: Mapping[str, Mapping[Place, str]] = field(default_factory=dict)
    """Lines of errors, by full name."""
    definitions: Mapping[str, Excerpt] = field(default_factory=dict)
    """Code, by full name, if it can be read."""

    def use_of(self, row: EnvironmentRow) -> EnvironmentUse:
        return self.use.get(row.name, EnvironmentUse())


@dataclass(frozen=True)
class EnvironmentsQuestion:
    """Asks for all environments."""

    clock: Callable[[], float] = field(default=time.time, compare=False)

    def read(self, reader: Reader, before: EnvironmentsAnswer | None) -> EnvironmentsAnswer:
        use = machine.environment_use(reader, self.clock())
        used = broken_first((row, use.get(row.name, EnvironmentUse())) for row in reader.environments())
        lines = {row.name: source_lines(row, of) for row, of in used}
        defined = {row.name: found for row, _ in used if (found := definition(row)) is not None}
        return EnvironmentsAnswer(tuple(row for row, _ in used), use, lines, defined)


@dataclass(frozen=True, eq=False)
class LogsAnswer:
    """The lines in order, and the log files."""

    listing: Listing[LogLine]
    files: tuple[str, ...] = ()
    oldest: int = 0
    """The oldest stored event; if it changes, older ones were removed."""
    last: int = 0
    """The newest event that was read."""
    tail: Tail = field(default_factory=Tail)


@dataclass(frozen=True)
class LogsQuestion:
    """Asks for one log of a home."""

    home: Home
    source: str
    """``EVENTS``, or a file of the home's logs."""
    wanted: EventFilter

    def read(self, reader: Reader, before: LogsAnswer | None) -> LogsAnswer:
        """Read what was added; the same listing if nothing was."""
        files = names(self.home.logs)
        return self._events(reader, before, files) if self.source == EVENTS else self._file(before, files)

    def _events(self, reader: Reader, before: LogsAnswer | None, files: tuple[str, ...]) -> LogsAnswer:
        oldest, last = machine.event_bounds(reader)
        known = before if before is not None and before.oldest == oldest else None
        found = machine.event_ids(reader, self.wanted, known.last if known else 0)
        if found:
            last = max(last, found[-1])  # an event came between the two queries
        if known is None:
            return LogsAnswer(_listing(found), files, oldest, last)
        listing = _listing(array("q", known.listing.ids) + found) if found else known.listing
        return LogsAnswer(listing, files, oldest, last)

    def _file(self, before: LogsAnswer | None, files: tuple[str, ...]) -> LogsAnswer:
        if self.source not in files:  # so a name cannot lead out of the folder
            return LogsAnswer(Listing(()), files)
        end = tail(self.home.logs / self.source, before.tail if before else None)
        if before is not None and end is before.tail:
            return LogsAnswer(before.listing, files, tail=end)
        lines = {line.id: line for line in end.lines if fits(line, self.wanted)}
        return LogsAnswer(Listing.of(lines), files, tail=end)


def _listing(ids: array[int]) -> Listing[LogLine]:
    return Listing(ids, _read)


def _read(reader: Reader, ids: Sequence[int]) -> Mapping[int, LogLine]:
    return {
        row.id: LogLine(row.id, row.level, row.message, row.created, row.task, row.kind)
        for row in machine.event_rows(reader, ids).values()
    }


@dataclass(frozen=True)
class PreviewAnswer:
    """Rewards and scores of learners, and more of the first one."""

    curves: Mapping[Learner, LearningCurve] = field(default_factory=dict)
    """In the order of the question."""
    samples: Mapping[str, Track] = field(default_factory=dict)
    """Of all metrics, if asked for."""
    recent: Mapping[str, float] = field(default_factory=dict)
    """Means over the last steps."""
    rollout: TrajectoryRow | None = None
    """The newest one."""
    versions: Mapping[str, EvalRow | None] = field(default_factory=dict)
    """Of an evaluation: its versions with their newest score."""
    first: FirstStep | None = None
    """What the first step waits for; None after it."""
    config: Mapping[str, Any] = field(default_factory=dict)
    source: Excerpt | None = None
    """The broken lines of a blocked task's environment."""


@dataclass(frozen=True)
class PreviewQuestion:
    """Asks for one learner, or a few to compare."""

    learners: tuple[Learner, ...]
    samples: bool = False
    """True if there is room for other metrics."""
    known: PreviewAnswer | None = field(default=None, compare=False, repr=False)
    """An answer to another question, to take curves from."""
    clock: Callable[[], float] = field(default=time.time, compare=False, repr=False)

    def read(self, reader: Reader, before: PreviewAnswer | None) -> PreviewAnswer:
        """Read what the last answer lacks."""
        known = before or self.known or PreviewAnswer()
        curves = {each: learning_curve(reader, each, REWARD, known.curves.get(each)) for each in self.learners}
        if not self.learners:
            return PreviewAnswer()
        first = self.learners[0]
        task, policy = first.task, first.policy or None
        config = reader.task_config(task)
        return PreviewAnswer(
            curves,
            learning.metric_samples(reader, task, policy=policy) if self.samples else {},
            learning.recent_means(reader, task, policy=policy),
            reader.newest_rollout(task, policy),
            {words: next(reversed(reader.evals(task, words)), None) for words in config.get("versions", ())},
            learning.first_step(reader, task, policy),
            config,
            blocking_source(reader, task, self.clock()),
        )


LATE = 20
"""Steps after which a step is complete: evaluations run next to later steps."""


@dataclass(frozen=True)
class RolloutsAnswer:
    """A task's steps and evaluations."""

    steps: tuple[StepSummary, ...] = ()
    """Oldest first; groups without a step come last."""


@dataclass(frozen=True)
class RolloutsQuestion:
    """Asks for the steps of one task, or of one of its policies."""

    learner: Learner

    def read(self, reader: Reader, before: RolloutsAnswer | None) -> RolloutsAnswer:
        """Read the last known steps and newer ones; all, if steps were lost."""
        made = [step.step for step in before.steps if step.step is not None] if before else []
        row = reader.task(self.learner.task)
        since = max(0, max(made, default=0) - LATE)
        if row is None or learners(row).get(self.learner, row).step < since:
            since = 0
        newer = episodes.rollout_steps(reader, self.learner.task, since, self.learner.policy or None)
        known = before.steps if before else ()
        return RolloutsAnswer((*(step for step in known if step.step is not None and step.step < since), *newer))


AGES_OVER = 50
"""Steps over which staleness is counted."""


@dataclass(frozen=True)
class TaskAnswer:
    """A task as one of its policies sees it."""

    learner: Learner
    metric: str
    own: LearningCurve = field(default_factory=LearningCurve)
    others: Mapping[Learner, LearningCurve] = field(default_factory=dict)
    """The same metric of the tasks laid over it."""
    samples: Mapping[str, Track] = field(default_factory=dict)
    """Of all metrics, at some steps."""
    recent: Mapping[str, float] = field(default_factory=dict)
    """Means over the last steps."""
    ages: Mapping[int, int] = field(default_factory=dict)
    """Groups of the last steps by staleness in versions."""
    configs: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """By task."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of its environment's parameters."""
    trajectories: tuple[TrajectoryRow, ...] = ()
    """Of the newest group, all speakers, newest first."""
    scores: Mapping[Learner, Scored] = field(default_factory=dict)
    """Held-out scores to compare, its own first."""
    versions: Mapping[str, EvalRow | None] = field(default_factory=dict)
    """Of an evaluation: its versions with their newest score."""
    first: FirstStep | None = None
    """What the first step waits for; None after it."""
    source: Excerpt | None = None
    """The broken lines of a blocked task's environment."""

    @property
    def task(self) -> int:
        return self.learner.task


@dataclass(frozen=True)
class TaskQuestion:
    """Asks for one learner and metric, and the metric of up to three others."""

    learner: Learner
    metric: str = REWARD
    others: tuple[Learner, ...] = ()
    known: TaskAnswer | None = field(default=None, compare=False, repr=False)
    """An answer to another question, to take parts from."""
    clock: Callable[[], float] = field(default=time.time, compare=False, repr=False)

    def read(self, reader: Reader, before: TaskAnswer | None) -> TaskAnswer:
        """Read what the last answer lacks."""
        known = before or self.known
        curves = {**known.others, known.learner: known.own} if known else {}
        everybody = (self.learner, *self.others)
        wanted = {each: learning_curve(reader, each, self.metric, curves.get(each)) for each in everybody}
        own = wanted.pop(self.learner)
        task, policy = self.learner.task, self.learner.policy or None
        configs = {each.task: reader.task_config(each.task) for each in everybody}
        return TaskAnswer(
            self.learner,
            self.metric,
            own,
            wanted,
            learning.metric_samples(reader, task, policy=policy),
            learning.recent_means(reader, task, policy=policy),
            learning.group_ages(reader, task, own.history.last[0] - AGES_OVER, policy),
            configs,
            _parameters(reader, str(configs[task].get("environment", ""))),
            tuple(reader.newest_group(task, policy)),
            {each: scored(reader, each.words, each.task, each.policy) for each in everybody if self.others},
            {words: next(reversed(reader.evals(task, words)), None) for words in configs[task].get("versions", ())},
            learning.first_step(reader, task, policy),
            blocking_source(reader, task, self.clock()),
        )


def _parameters(reader: Reader, environment: str) -> dict[str, Any]:
    rows = (row for row in reader.environments() if row.name == environment)
    return {str(one.get("name")): one.get("default") for row in rows for one in row.parameters}
