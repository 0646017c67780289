"""What a view asks of the home, and the answer that it shows. A question is answered in the poll's thread."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

from marlaas.engine.errors import EnvironmentMissing
from marlaas.engine.home.paths import Home
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

# The protocol of questions: what the feed needs to know of one, and nothing about who asks.


class Question(Protocol):
    """Asked by a view while it is shown; compared by ``==``, so that the same question is not read twice."""

    def read(self, reader: Reader, before: Any) -> Any:
        """Read the answer in the feed's thread, or take parts from ``before``, the last one. Raises ``StoreError``."""


# What views ask of the store: frozen questions that read their own answers.

# From rows of the store to what a verdict goes by. Pure.


def evidence(
    row: TaskRow,
    evals: Sequence[EvalRow],
    rewards: Track,
    recent: Mapping[str, float],
    versions: Mapping[str, EvalRow | None],
    config: Mapping[str, Any] = MappingProxyType({}),
    policy: str = "",
) -> Evidence:
    """``row``: the task as the policy sees it whose evaluations, rewards and recent means these are.

    ``versions``: of an evaluation, what it measures, with the newest score of each. ``config``: the task's
    configuration; ``policy``: which one is meant of several.
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
    """Whether a policy acts as several agents in training, of which others play one when it is measured."""
    own = {agent for agent, acts in config.get("agents", {}).items() if acts == policy}
    return len(own) > 1 and not own.isdisjoint(config.get("eval", {}).get("agents", {}))


def _score(row: EvalRow) -> Score | None:
    return None if row.score is None else Score(row.step, row.score, row.stderr)


# How one task or policy learned: a metric by step, and its evaluations. What charts and verdicts go by.


@dataclass(frozen=True)
class LearningCurve:
    """One task or policy as a chart shows it."""

    history: History = field(default_factory=History)
    evals: tuple[EvalRow, ...] = ()
    """Evaluations of all series, oldest first."""
    measured: tuple[int, int] = (0, 0)
    """Count of all evaluations and newest id, which tell whether ``evals`` is complete."""

    def track(self, metric: str) -> Track:
        """The values of a metric by step; for the held-out score, those of the newest evaluation series."""
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
        """The metrics that are held-out scores: of the task's own prompts, then of suites and of the split test."""
        others = sorted({measured_on(row) for row in self.evals} - {""})
        return [HELD_OUT, *(f"{HELD_OUT_ON}{on}" for on in others)]


def learning_curve(reader: Reader, learner: Learner, metric: str, before: LearningCurve | None) -> LearningCurve:
    """One metric with the edges of its band, and all evaluations; of these only what ``before`` does not have is read.

    Raises ``StoreError``.
    """
    names = () if held_out_on(metric) is not None else (metric, *BANDS.get(metric, ()))
    task, policy = learner.task, learner.policy or None
    now = reader.evals_made(task, policy)
    return LearningCurve(
        reader.history(task, names, before.history if before else None, policy),
        before.evals if before and before.measured == now else tuple(reader.evals(task, policy)),
        now,
    )


# The code that a blocked task waits for.


def blocking_source(reader: Reader, task: int, now: float) -> Excerpt | None:
    """The lines of its environment that are wrong, of a task that is blocked; else None."""
    row = reader.task(task)
    if row is None or row.state != "blocked":
        return None
    try:
        return task_excerpt(row, reader.environments(), reader.environment_use(now))
    except EnvironmentMissing:
        return None


# What the view of adapters shows: the versions that are on the disk, and how the task of one of them learns.


@dataclass(frozen=True)
class AdaptersAnswer:
    """All versions on the disk, newest task first and newest version first."""

    versions: tuple[KeptVersion, ...] = ()
    marks: KeptMarks = field(default_factory=dict)
    by_policy: Mapping[int, tuple[KeptVersion, ...]] = field(default_factory=dict)
    preview: PreviewAnswer | None = None
    """Of the learner that was asked about: its curve, and what it wrote last."""


def _place(kept: KeptVersion) -> tuple[int, ...]:
    """A sort key: policies of a task together, in the order in which they began."""
    return -kept.row.task, kept.policy_id, -kept.row.number, -kept.row.id


@dataclass(frozen=True)
class AdaptersQuestion:
    """Asks for all tasks; the view chooses which to show. Of the one it is ``about``, for more."""

    about: Learner | None = None
    known: AdaptersAnswer | None = field(default=None, compare=False, repr=False)
    """An answer to another question, from which versions can be taken over."""

    def read(self, reader: Reader, before: AdaptersAnswer | None) -> AdaptersAnswer:
        """Read what has changed."""
        before = before or self.known or AdaptersAnswer()
        answer = self._versions(reader, before)
        if self.about is None:
            return answer
        return replace(answer, preview=PreviewQuestion((self.about,)).read(reader, before.preview))

    @staticmethod
    def _versions(reader: Reader, before: AdaptersAnswer) -> AdaptersAnswer:
        """The versions; only policies whose versions, scores or tasks have changed are read again."""
        marks = reader.kept_marks()
        if marks == before.marks:
            return before
        changed = {policy for policy, mark in marks.items() if before.marks.get(policy) != mark}
        known = {policy: kept for policy, kept in before.by_policy.items() if policy in marks.keys() - changed}
        read: dict[int, list[KeptVersion]] = {}
        for kept in reader.kept_versions(changed):
            read.setdefault(kept.policy_id, []).append(kept)
        by_policy = {**known, **{policy: tuple(kept) for policy, kept in read.items()}}
        versions = (kept for own in by_policy.values() for kept in own)
        ordered = sorted(versions, key=_place)
        return AdaptersAnswer(tuple(ordered), marks, by_policy)


# What the view of the API shows: whether it is open, its keys, the names of adapters, and the latest requests.


@dataclass(frozen=True)
class ApiAnswer:
    """The API of a home at one moment."""

    state: ApiRow
    keys: tuple[ApiKeyRow, ...] = ()
    """Those that hold, the newest first; then those that were revoked, the latest first."""
    names: tuple[GivenName, ...] = ()
    requests: tuple[Request, ...] = ()
    """The latest of all keys, the newest first."""
    log: Tail = field(default_factory=Tail)

    @property
    def holding(self) -> tuple[ApiKeyRow, ...]:
        """Keys that were not revoked."""
        return tuple(key for key in self.keys if key.revoked is None)

    def key(self, id: int | None) -> ApiKeyRow | None:
        """One key by its number."""
        return next((key for key in self.keys if key.id == id), None)

    def names_of(self, tenant: str) -> tuple[GivenName, ...]:
        """Names that a tenant gave: those that its keys may use."""
        return tuple(name for name in self.names if name.tenant == tenant)

    def requests_of(self, key: ApiKeyRow) -> tuple[Request, ...]:
        """The latest requests with a key."""
        return tuple(request for request in self.requests if request.key == key.prefix)


def _key_place(key: ApiKeyRow) -> tuple[bool, float, int]:
    return key.revoked is not None, -(key.revoked or 0.0), -key.id


@dataclass(frozen=True)
class ApiQuestion:
    """Asks for all of a home's."""

    home: Home

    def read(self, reader: Reader, before: ApiAnswer | None) -> ApiAnswer:
        """Read the answer with three short queries, and what was added to the log of requests."""
        keys = tuple(sorted(reader.api_keys(), key=_key_place))
        log = tail(self.home.logs / FILE, before.log if before else None)
        requests = before.requests if before is not None and log is before.log else requests_in(log.lines)
        return ApiAnswer(reader.api_state() or ApiRow(), keys, tuple(reader.given_names()), requests, log)


# What the view of the engine shows: what the stages did, who waits in line, what the machine has left.

MINUTE = 60.0
FILES = 10.0
"""Seconds after which the size of the home's files is measured again."""
STARTS = 6
"""Engine starts that are listed."""


@dataclass(frozen=True)
class EngineAnswer:
    """The state of the machine at one moment."""

    until: float = 0.0
    """The end of the newest sample; 0: no engine has ever measured anything."""
    spans: tuple[StageSample, ...] = ()
    """Samples for the whole timeline, oldest first."""
    now: Mapping[str, StageSample] = field(default_factory=dict)
    """The newest sample of each stage."""
    minute: Mapping[str, StageSample] = field(default_factory=dict)
    """The sum of the last minute, by stage."""
    steps: int = 0
    """Steps of all tasks in that minute."""
    standings: tuple[StandingRow, ...] = ()
    used: tuple[TenantUse, ...] = ()
    """What tenants have used today."""
    starts: tuple[EngineRow, ...] = ()
    """Engine starts, newest first."""
    memory: Memory | None = None
    cores: int = 0
    pinned: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """Cores that each process may run on."""
    devices: tuple[DeviceRow, ...] = ()
    """The cards, as the engine last saw them."""
    nodes: tuple[NodeRow, ...] = ()
    """The machines of the cluster, as the engine last saw them."""
    account: str = ""
    """The account that runs this application."""
    disk: Disk | None = None
    counted: float = 0.0
    """When the home's files were measured."""


@dataclass(frozen=True)
class EngineQuestion:
    """Asks for a timeline of this many cells of ``grain`` seconds, and for everything else."""

    home: Home
    grain: int
    cells: int

    def read(self, reader: Reader, before: EngineAnswer | None) -> EngineAnswer:
        """Read the answer: of the timeline only what is new; files are measured every few seconds."""
        begun, until = reader.newest_samples()
        disk, counted = (before.disk, before.counted) if before else (None, 0.0)
        if before is None or until >= counted + FILES:
            disk, counted = this_machine.disk(self.home), until
        processes = [worker.pid for worker in reader.workers() if worker.pid is not None]
        return EngineAnswer(
            until=until,
            spans=self._spans(reader, until, before.spans if before else ()),
            now=reader.stage_totals(begun),
            minute=reader.stage_totals(until - MINUTE),
            steps=reader.steps_since(until - MINUTE),
            standings=tuple(reader.standings()),
            used=tuple(reader.seconds_used(day_of(until))),
            starts=tuple(reader.engine_starts(STARTS)),
            memory=this_machine.memory(),
            cores=this_machine.cores(),
            pinned=this_machine.pinned(processes),
            devices=tuple(found := reader.devices()),
            nodes=tuple(reader.nodes()),
            account=this_machine.account() if found else "",
            disk=disk,
            counted=counted,
        )

    def _spans(self, reader: Reader, until: float, known: tuple[StageSample, ...]) -> tuple[StageSample, ...]:
        """Samples of the timeline; the newest two are read again, because a sample may reach into the next cell."""
        oldest = until - self.grain * (self.cells + 1)
        if not known:
            return tuple(reader.stage_spans(oldest, self.grain))
        again = (max(span.begun for span in known) // self.grain - 1) * self.grain
        kept = (span for span in known if oldest <= span.begun < again)
        return (*kept, *reader.stage_spans(again, self.grain))


# What the environments view shows: all of them with their code, and what came of the last hour's episodes.


@dataclass(frozen=True)
class EnvironmentsAnswer:
    """Environments as the engine last saw them, the broken ones first."""

    rows: tuple[EnvironmentRow, ...] = ()
    use: Mapping[str, EnvironmentUse] = field(default_factory=dict)
    """The last hour's episodes, by full name of the environment."""

    lines: Mapping[str, Mapping[Place, str]] = field(default_factory=dict)
    """By full name, the lines of code at which something went wrong."""
    definitions: Mapping[str, Excerpt] = field(default_factory=dict)
    """By full name, the code that defines it, if it can be read."""

    def use_of(self, row: EnvironmentRow) -> EnvironmentUse:
        """The last hour's episodes of an environment."""
        return self.use.get(row.name, EnvironmentUse())


@dataclass(frozen=True)
class EnvironmentsQuestion:
    """Asks for all environments."""

    clock: Callable[[], float] = field(default=time.time, compare=False)

    def read(self, reader: Reader, before: EnvironmentsAnswer | None) -> EnvironmentsAnswer:
        """Read the answer with three short queries, and from the plugins' files code and the lines that errors name."""
        use = reader.environment_use(self.clock())
        used = broken_first((row, use.get(row.name, EnvironmentUse())) for row in reader.environments())
        lines = {row.name: source_lines(row, of) for row, of in used}
        defined = {row.name: found for row, _ in used if (found := definition(row)) is not None}
        return EnvironmentsAnswer(tuple(row for row, _ in used), use, lines, defined)


# What the view of logs shows: events of the store that pass a filter, or the end of a log file.


@dataclass(frozen=True, eq=False)
class LogsAnswer:
    """The lines in order, and the log files that exist."""

    listing: Listing[LogLine]
    files: tuple[str, ...] = ()
    oldest: int = 0
    """The oldest event that the store keeps; if that changes, older ones were removed."""
    last: int = 0
    """The newest event that was looked at."""
    tail: Tail = field(default_factory=Tail)


@dataclass(frozen=True)
class LogsQuestion:
    """Asks for one log of a home."""

    home: Home
    source: str
    """``EVENTS``, or the name of a file in the home's folder of logs."""
    wanted: EventFilter

    def read(self, reader: Reader, before: LogsAnswer | None) -> LogsAnswer:
        """Read only what was added; the same listing if nothing was."""
        files = names(self.home.logs)
        return self._events(reader, before, files) if self.source == EVENTS else self._file(before, files)

    def _events(self, reader: Reader, before: LogsAnswer | None, files: tuple[str, ...]) -> LogsAnswer:
        oldest, last = reader.event_bounds()
        known = before if before is not None and before.oldest == oldest else None
        found = reader.event_ids(self.wanted, known.last if known else 0)
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
        for row in reader.event_rows(ids).values()
    }


# What the queue shows below its table: how the task under the cursor learns, and what its model wrote last.


@dataclass(frozen=True)
class PreviewAnswer:
    """Some learners' rewards and scores, and more of the first of them."""

    curves: Mapping[Learner, LearningCurve] = field(default_factory=dict)
    """In the order of the question."""
    samples: Mapping[str, Track] = field(default_factory=dict)
    """Samples of all metrics, if the question asked for them."""
    recent: Mapping[str, float] = field(default_factory=dict)
    """The mean of each metric over the last steps."""
    rollout: TrajectoryRow | None = None
    """Its newest trajectory."""
    versions: Mapping[str, EvalRow | None] = field(default_factory=dict)
    """Of an evaluation: what it measures, with the newest score of each."""
    first: FirstStep | None = None
    """Before the first step: what it waits for."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Its task's configuration."""
    source: Excerpt | None = None
    """Of a task that is blocked by its environment: the lines of it that are wrong."""


@dataclass(frozen=True)
class PreviewQuestion:
    """Asks for one learner, or for a few whose rewards are compared."""

    learners: tuple[Learner, ...]
    samples: bool = False
    """Whether there is room for other metrics next to the reward."""
    known: PreviewAnswer | None = field(default=None, compare=False, repr=False)
    """An answer to another question, from which curves can be taken over."""
    clock: Callable[[], float] = field(default=time.time, compare=False, repr=False)

    def read(self, reader: Reader, before: PreviewAnswer | None) -> PreviewAnswer:
        """Read what the last answer does not have: of a curve its new steps, and a few rows for the rest."""
        known = before or self.known or PreviewAnswer()
        curves = {each: learning_curve(reader, each, REWARD, known.curves.get(each)) for each in self.learners}
        if not self.learners:
            return PreviewAnswer()
        first = self.learners[0]
        task, policy = first.task, first.policy or None
        config = reader.task_config(task)
        return PreviewAnswer(
            curves,
            reader.metric_samples(task, policy=policy) if self.samples else {},
            reader.recent_means(task, policy=policy),
            reader.newest_rollout(task, policy),
            {words: next(reversed(reader.evals(task, words)), None) for words in config.get("versions", ())},
            reader.first_step(task, policy),
            config,
            blocking_source(reader, task, self.clock()),
        )


# What the view of rollouts asks of the feed: the steps of a task. The lists read everything below them.

LATE = 20
"""Steps after which a step is complete: a version is evaluated next to the steps that follow it."""


@dataclass(frozen=True)
class RolloutsAnswer:
    """A task's steps and evaluations."""

    steps: tuple[StepSummary, ...] = ()
    """Oldest first; groups that no step has consumed come last."""


@dataclass(frozen=True)
class RolloutsQuestion:
    """Asks for the steps of one task, or of one of its policies."""

    learner: Learner

    def read(self, reader: Reader, before: RolloutsAnswer | None) -> RolloutsAnswer:
        """Read the last steps that were known and newer ones; if steps were lost, all of them."""
        made = [step.step for step in before.steps if step.step is not None] if before else []
        row = reader.task(self.learner.task)
        since = max(0, max(made, default=0) - LATE)
        if row is None or learners(row).get(self.learner, row).step < since:
            since = 0
        newer = reader.rollout_steps(self.learner.task, since, self.learner.policy or None)
        known = before.steps if before else ()
        return RolloutsAnswer((*(step for step in known if step.step is not None and step.step < since), *newer))


# What the view of one task shows beyond its row: one metric whole, the others in samples, and details around them.

AGES_OVER = 50
"""Steps over which staleness is counted."""


@dataclass(frozen=True)
class TaskAnswer:
    """A task in detail, as one of its policies sees it."""

    learner: Learner
    metric: str
    own: LearningCurve = field(default_factory=LearningCurve)
    others: Mapping[Learner, LearningCurve] = field(default_factory=dict)
    """The same metric of the tasks and policies laid over it."""
    samples: Mapping[str, Track] = field(default_factory=dict)
    """Samples of all metrics, at some steps."""
    recent: Mapping[str, float] = field(default_factory=dict)
    """The mean of each metric over the last steps."""
    ages: Mapping[int, int] = field(default_factory=dict)
    """Groups of the last steps by their staleness in versions."""
    configs: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Configurations of the task and of the others, by task."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of its environment's parameters."""
    trajectories: tuple[TrajectoryRow, ...] = ()
    """Trajectories of the newest group's play, of all who spoke in it, newest first."""
    scores: Mapping[Learner, Scored] = field(default_factory=dict)
    """By which held-out scores it and those laid over it are compared, its own first; empty if nothing is."""
    versions: Mapping[str, EvalRow | None] = field(default_factory=dict)
    """Of an evaluation: what it measures, with the newest score of each."""
    first: FirstStep | None = None
    """Before the first step: what it waits for."""
    source: Excerpt | None = None
    """Where it is blocked by its environment before that: the lines of it that are wrong."""

    @property
    def task(self) -> int:
        """The number of the task."""
        return self.learner.task


@dataclass(frozen=True)
class TaskQuestion:
    """Asks for one task or policy, one metric, and the same metric of up to three others."""

    learner: Learner
    metric: str = REWARD
    others: tuple[Learner, ...] = ()
    known: TaskAnswer | None = field(default=None, compare=False, repr=False)
    """An answer to another question, from which parts can be taken over."""
    clock: Callable[[], float] = field(default=time.time, compare=False, repr=False)

    def read(self, reader: Reader, before: TaskAnswer | None) -> TaskAnswer:
        """Read what the last answer does not have."""
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
            reader.metric_samples(task, policy=policy),
            reader.recent_means(task, policy=policy),
            reader.group_ages(task, own.history.last[0] - AGES_OVER, policy),
            configs,
            _parameters(reader, str(configs[task].get("environment", ""))),
            tuple(reader.newest_group(task, policy)),
            {each: scored(reader, each.words, each.task, each.policy) for each in everybody if self.others},
            {words: next(reversed(reader.evals(task, words)), None) for words in configs[task].get("versions", ())},
            reader.first_step(task, policy),
            blocking_source(reader, task, self.clock()),
        )


def _parameters(reader: Reader, environment: str) -> dict[str, Any]:
    rows = (row for row in reader.environments() if row.name == environment)
    return {str(one.get("name")): one.get("default") for row in rows for one in row.parameters}
