"""What views ask of a home, and the answers, read in the poll's thread."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from marlaas.engine.devices.limits import affinity, available_memory
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
from marlaas.engine.store.rows import ApiKeyRow, ApiRow, EnvironmentRow, EvalRow, TaskRow, TrajectoryRow, day_of

from .lists.filters import Listing, broken_first
from .lists.lines import Learner, learners
from .operations.api import FILE, Request, requests_in
from .operations.environments.source_lines import Excerpt, Place, definition, source_lines, task_excerpt
from .operations.log_files import LogLine, Tail, fits, names, tail
from .operations.results import Scored, scored
from .text.format import EVENTS
from .text.learning import Evidence, Score
from .text.metrics import BANDS, HELD_OUT, HELD_OUT_ON, REWARD, held_out_on
from .text.tasks import lost_briefly, measured_on, newest_series

Clock = Callable[[], float]


@dataclass(frozen=True)
class Question:
    """Asked by a view while it is shown. Equal questions are not read twice."""

    answer: Callable[..., Any]
    """One of the functions below. Called in the feed's thread with the reader, the last answer or None, and the
    arguments; raises ``StoreError``."""
    arguments: tuple[Any, ...] = ()
    known: Any = field(default=None, compare=False, repr=False)
    """An answer to another question, to take parts from."""

    def read(self, reader: Reader, before: Any) -> Any:
        return self.answer(reader, before or self.known, *self.arguments)


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
class LearningAnswer:
    """How some learners do, and more of the first one."""

    metric: str = REWARD
    curves: Mapping[Learner, LearningCurve] = field(default_factory=dict)
    """In the order of the question."""
    recent: Mapping[str, float] = field(default_factory=dict)
    """Means over the last steps."""
    configs: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """By task."""
    versions: Mapping[str, EvalRow | None] = field(default_factory=dict)
    """Of an evaluation: its versions with their newest score."""
    first: FirstStep | None = None
    """What the first step waits for; None after it."""
    source: Excerpt | None = None
    """The broken lines of a blocked task's environment."""
    rollout: TrajectoryRow | None = None
    """The newest one. Only of a preview; what follows is only of a task's view."""
    samples: Mapping[str, Track] | None = None
    """Of all metrics, at some steps."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of its environment's parameters."""
    conversations: tuple[int, ...] = ()
    """Of the newest group, all speakers, newest first."""
    scores: Mapping[Learner, Scored] = field(default_factory=dict)
    """Held-out scores to compare, its own first."""

    @property
    def learner(self) -> Learner:
        return next(iter(self.curves))

    @property
    def own(self) -> LearningCurve:
        return self.curves[self.learner]

    @property
    def others(self) -> Mapping[Learner, LearningCurve]:
        return {each: curve for each, curve in self.curves.items() if each != self.learner}

    def evidence(self, row: TaskRow) -> Evidence:
        """What a verdict on the first learner rests on; ``row``: its task as it sees it."""
        rewards = self.own.track(REWARD) if self.samples is None else self.samples.get(REWARD, Track())
        measured = ((words, None if of is None else _score(of)) for words, of in self.versions.items())
        basis = row.basis if row.score is None else None
        return Evidence(
            row.state,
            row.step,
            row.steps,
            rewards.steps,
            rewards.values,
            tuple(score for of in newest_series(self.own.evals) if (score := _score(of)) is not None),
            (basis.failures, basis.n + basis.failures) if basis is not None else None,
            row.floor,
            self.recent,
            tuple(measured) if row.kind == "eval" else None,
            lost_briefly(row),
            _both_sides(self.configs[self.learner.task], self.learner.policy),
        )


def preview(reader: Reader, before: LearningAnswer | None, learners: Sequence[Learner], clock: Clock) -> LearningAnswer:
    """Rewards and scores of one learner, or of a few to compare; the newest rollout of the first."""
    first = learners[0]
    return replace(
        learning_answer(reader, before, REWARD, learners, [first], clock),
        rollout=reader.newest_rollout(first.task, first.policy or None),
    )


def task_view(
    reader: Reader, before: LearningAnswer | None, metric: str, learners: Sequence[Learner], clock: Clock
) -> LearningAnswer:
    """A metric of one learner and of those laid over it; all metrics and the newest group of the first."""
    answer = learning_answer(reader, before, metric, learners, learners, clock)
    task, policy = learners[0].task, learners[0].policy or None
    several = learners if len(learners) > 1 else ()
    return replace(
        answer,
        samples=learning.metric_samples(reader, task, policy=policy),
        parameters=_parameters(reader, str(answer.configs[task].get("environment", ""))),
        conversations=tuple(row.id for row in reader.newest_group(task, policy) if not row.part),
        scores={each: scored(reader, each.words, each.task, each.policy) for each in several},
    )


def learning_answer(
    reader: Reader,
    before: LearningAnswer | None,
    metric: str,
    learners: Sequence[Learner],
    configured: Sequence[Learner],
    clock: Clock,
) -> LearningAnswer:
    """Reads what the last answer lacks. ``configured``: learners whose configuration is read."""
    known = before.curves if before is not None else {}
    task, policy = learners[0].task, learners[0].policy or None
    configs = {each.task: reader.task_config(each.task) for each in configured}
    return LearningAnswer(
        metric,
        {each: learning_curve(reader, each, metric, known.get(each)) for each in learners},
        learning.recent_means(reader, task, policy=policy),
        configs,
        {words: next(reversed(reader.evals(task, words)), None) for words in configs[task].get("versions", ())},
        learning.first_step(reader, task, policy),
        blocking_source(reader, task, clock()),
    )


def _parameters(reader: Reader, environment: str) -> dict[str, Any]:
    rows = (row for row in reader.environments() if row.name == environment)
    return {str(one.get("name")): one.get("default") for row in rows for one in row.parameters}


@dataclass(frozen=True)
class AdaptersAnswer:
    """All versions on disk, newest task first, newest version first."""

    versions: tuple[KeptVersion, ...] = ()
    marks: KeptMarks = field(default_factory=dict)
    by_policy: Mapping[int, tuple[KeptVersion, ...]] = field(default_factory=dict)
    preview: LearningAnswer | None = None
    """Curve and last rollout of the learner in question."""


def adapters(reader: Reader, before: AdaptersAnswer | None, about: Learner | None, clock: Clock) -> AdaptersAnswer:
    """The versions of all tasks, and more ``about`` one learner."""
    before = before or AdaptersAnswer()
    answer = _versions(reader, before)
    if about is None:
        return answer
    return replace(answer, preview=preview(reader, before.preview, (about,), clock))


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
    versions = [kept for own in by_policy.values() for kept in own]
    # policies of a task stay together, oldest first
    versions.sort(key=lambda kept: (-kept.row.task, kept.policy_id, -kept.row.number, -kept.row.id))
    return AdaptersAnswer(tuple(versions), marks, by_policy)


@dataclass(frozen=True)
class ApiAnswer:
    """The API of a home at one moment."""

    state: ApiRow
    keys: tuple[ApiKeyRow, ...] = ()
    """Valid ones, newest first; then revoked ones, latest first."""
    names: tuple[GivenName, ...] = ()
    """Given to versions by all tenants."""
    requests: tuple[Request, ...] = ()
    """Of all keys, newest first."""
    log: Tail = field(default_factory=Tail)

    @property
    def holding(self) -> tuple[ApiKeyRow, ...]:
        """Valid keys."""
        return tuple(key for key in self.keys if key.revoked is None)


def api(reader: Reader, before: ApiAnswer | None, home: Home) -> ApiAnswer:
    """State, keys, names and latest requests."""
    keys = sorted(reader.api_keys(), key=lambda key: (key.revoked is not None, -(key.revoked or 0.0), -key.id))
    log = tail(home.logs / FILE, before.log if before else None)
    requests = before.requests if before is not None and log is before.log else requests_in(log.lines)
    return ApiAnswer(reader.api_state() or ApiRow(), tuple(keys), tuple(learning.given_names(reader)), requests, log)


MINUTE = 60.0


@dataclass(frozen=True)
class Memory:
    """This machine's memory in bytes."""

    total: int
    free: int
    """Within the container's limits."""


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
    memory: Memory | None = None
    cores: int = 0
    devices: tuple[DeviceRow, ...] = ()
    """As the engine last saw them."""
    nodes: tuple[NodeRow, ...] = ()
    """As the engine last saw them."""
    account: str = ""
    """This application's account."""


def engine(reader: Reader, before: EngineAnswer | None, grain: int, cells: int) -> EngineAnswer:
    """A timeline of ``cells`` of ``grain`` seconds, and all else.

    Reads only what is new of the timeline.
    """
    begun, until = machine.newest_samples(reader)
    return EngineAnswer(
        until=until,
        spans=_spans(reader, until, grain, cells, before.spans if before else ()),
        now=machine.stage_totals(reader, begun),
        minute=machine.stage_totals(reader, until - MINUTE),
        steps=machine.steps_since(reader, until - MINUTE),
        standings=tuple(machine.standings(reader)),
        used=tuple(machine.tenants_used(reader, day_of(until))),
        memory=memory(),
        cores=cores(),
        devices=tuple(devices := machine.devices(reader)),
        nodes=tuple(machine.nodes(reader)),
        account=account() if devices else "",
    )


def memory() -> Memory:
    """The memory at this moment."""
    import psutil  # here, because only this view needs it

    return Memory(int(psutil.virtual_memory().total), available_memory())


def cores() -> int:
    """Cores that this program may use."""
    return len(affinity()) or os.cpu_count() or 1


def account() -> str:
    """This process's account, as holders of cards are named."""
    from marlaas.engine.devices.survey import own_account  # loads what looks for cards

    return own_account()


def _spans(
    reader: Reader, until: float, grain: int, cells: int, known: tuple[StageSample, ...]
) -> tuple[StageSample, ...]:
    """The newest two are read again, since a sample may reach into the next cell."""
    oldest = until - grain * (cells + 1)
    if not known:
        return tuple(machine.stage_spans(reader, oldest, grain))
    again = (max(span.begun for span in known) // grain - 1) * grain
    kept = (span for span in known if oldest <= span.begun < again)
    return (*kept, *machine.stage_spans(reader, again, grain))


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


def environments(reader: Reader, before: EnvironmentsAnswer | None, clock: Clock) -> EnvironmentsAnswer:
    """All environments with their use, the broken lines and the code that defines them."""
    use = machine.environment_use(reader, clock())
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


def logs(reader: Reader, before: LogsAnswer | None, home: Home, source: str, wanted: EventFilter) -> LogsAnswer:
    """One log of a home: ``EVENTS``, or a file. Reads what was added; the same listing if nothing was."""
    files = names(home.logs)
    if source == EVENTS:
        return _events(reader, before, wanted, files)
    if source not in files:  # so a name cannot lead out of the folder
        return LogsAnswer(Listing(()), files)
    end = tail(home.logs / source, before.tail if before else None)
    if before is not None and end is before.tail:
        return LogsAnswer(before.listing, files, tail=end)
    return LogsAnswer(Listing.of({line.id: line for line in end.lines if fits(line, wanted)}), files, tail=end)


def _events(reader: Reader, before: LogsAnswer | None, wanted: EventFilter, files: tuple[str, ...]) -> LogsAnswer:
    oldest, last = machine.event_bounds(reader)
    known = before if before is not None and before.oldest == oldest else None
    found = machine.event_ids(reader, wanted, known.last if known else 0)
    if found:
        last = max(last, found[-1])  # an event came between the two queries
    if known is None:
        return LogsAnswer(Listing(found, _event_lines), files, oldest, last)
    listing = Listing(array("q", known.listing.ids) + found, _event_lines) if found else known.listing
    return LogsAnswer(listing, files, oldest, last)


def _event_lines(reader: Reader, ids: Sequence[int]) -> Mapping[int, LogLine]:
    return {
        row.id: LogLine(row.id, row.level, row.message, row.created, row.task, row.kind)
        for row in machine.event_rows(reader, ids).values()
    }


LATE = 20
"""Steps after which a step is complete: evaluations run next to later steps."""
Steps = tuple[StepSummary, ...]


def rollout_steps(reader: Reader, before: Steps | None, learner: Learner) -> Steps:
    """Steps and evaluations of a task or one of its policies, oldest first; groups without a step come last.

    Reads the last known steps and newer ones; all, if steps were lost.
    """
    known = before or ()
    row = reader.task(learner.task)
    since = max(0, max((step.step for step in known if step.step is not None), default=0) - LATE)
    if row is None or learners(row).get(learner, row).step < since:
        since = 0
    newer = episodes.rollout_steps(reader, learner.task, since, learner.policy or None)
    return (*(step for step in known if step.step is not None and step.step < since), *newer)
