"""The content of a report: of tasks, or of a home since the last report."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import fsum
from typing import Any, TypeAlias

from marlaas.engine.spec.task import ONLY
from marlaas.engine.store.queries import episodes, learning, machine
from marlaas.engine.store.queries.episodes import StoredConversation
from marlaas.engine.store.queries.learning import History, ProgressRow, Track
from marlaas.engine.store.queries.machine import TaskUse
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import EngineRow, EvalRow, EventRow, TaskRow

from ..chart.draw import Curve, Point
from ..operations.commands import without_steps, written
from ..operations.results import NOTE, Scored, compared, difference_text, scored
from ..operations.settings_file import differences
from ..questions import evidence
from ..rollouts.reading import in_order as in_order_said
from ..text.format import ago, count, counted, duration, line, number, plain, score
from ..text.learning import Verdict, findings, gone_wrong, verdict
from ..text.metrics import BANDS, HELD_OUT, IMPORTANT, REWARD, in_order, newest_text, words
from ..text.scores import held_out, rests_on, with_error
from ..text.tasks import kind, limits, measured_on, names, newest_series, state_word, who

# Texts are foreign; the writer makes them safe for its format.


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    words: str


@dataclass(frozen=True)
class Table:
    """Rows under headers."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()
    """Headers of columns of numbers."""


@dataclass(frozen=True)
class Line:
    """A curve of a picture, with its name."""

    name: str
    curve: Curve


@dataclass(frozen=True)
class Chart:
    """A picture of curves by step."""

    name: str
    """The file's name without ending."""
    title: str
    words: str
    """For those who cannot see it."""
    lines: Sequence[Line]
    points: Sequence[Point] = ()
    """Of the newest series."""
    baseline: float | None = None
    """The constant-answer baseline."""
    unit: bool = False
    """True: the axis covers 0 to 1."""
    large: bool = False
    metric: str = ""
    """Decides how values are printed."""


@dataclass(frozen=True)
class Transcript:
    """One conversation."""

    head: str
    turns: Sequence[tuple[str, str]]
    """(speaker, text)."""


@dataclass(frozen=True)
class Code:
    """Preformatted text, folded if possible."""

    title: str
    text: str
    language: str = ""


Piece: TypeAlias = Text | Table | Chart | Transcript | Code


@dataclass(frozen=True)
class Section:
    """Pieces under a heading."""

    title: str
    pieces: Sequence[Piece]
    level: int = 2


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    lead: str
    """The line below the title."""
    sections: Sequence[Section]

    @property
    def charts(self) -> list[Chart]:
        return [piece for section in self.sections for piece in section.pieces if isinstance(piece, Chart)]


# Rollouts worth reading: of an evaluation the prompts with the largest gain and loss and one unsolved, by first and
# best version; both ends of the newest step's widest group; one failure.


@dataclass(frozen=True)
class Played:
    """A group with its rewards."""

    group: int
    instance: int
    step: int
    rewards: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fsum(self.rewards) / len(self.rewards)


@dataclass(frozen=True)
class Choice:
    """A rollout: the first of a group with this reward, or a conversation."""

    why: str
    group: int = 0
    reward: float = 0.0
    conversation: int | None = None


def chosen(measured: Sequence[Mapping[int, Played]], trained: Sequence[Played], failed: Sequence[int]) -> list[Choice]:
    """The rollouts worth reading, in order.

    ``measured``: groups of two evaluations by instance, earlier first, or nothing; ``trained``: of the newest step;
    ``failed``: conversations.
    """
    found = list(_changed(*measured)) if len(measured) == 2 else []
    widest = max(trained, key=lambda one: max(one.rewards) - min(one.rewards), default=None)
    if widest is not None:
        low, high = min(widest.rewards), max(widest.rewards)
        where = f"step {widest.step}, instance {widest.instance}"
        found.append(Choice(f"The best of the group with the widest rewards ({where})", widest.group, high))
        if low < high:
            found.append(Choice(f"The worst of the same group ({where})", widest.group, low))
    return found + [Choice("An episode that failed", conversation=id) for id in failed]


def _changed(first: Mapping[int, Played], best: Mapping[int, Played]) -> list[Choice]:
    gains = sorted((best[one].mean - first[one].mean, -one) for one in first.keys() & best.keys())
    if not gains:
        return []
    (worst, lost), (most, won) = gains[0], gains[-1]
    picks = [("Most was gained on prompt {}", -won)] if most > 0 else []
    picks += [("Most was lost on prompt {}", -lost)] if worst < 0 else []
    seen = {instance for _, instance in picks}
    low = min((one for one in best if one in first and one not in seen), key=lambda one: best[one].mean, default=None)
    if low is not None and best[low].mean < max(each.mean for each in best.values()):
        picks.append(("Prompt {} is not solved", low))
    return [
        Choice(f"{why.format(instance)}: at step {each.step}", each.group, _usual(each))
        for why, instance in picks
        for each in (first[instance], best[instance])
    ]


def _usual(played: Played) -> float:
    """The reward nearest to the mean."""
    return min(played.rewards, key=lambda reward: abs(reward - played.mean))


ALWAYS = (REWARD, *BANDS[REWARD])


@dataclass(frozen=True)
class PolicyFacts:
    """A task as one of its policies sees it."""

    name: str
    """Empty for the only policy."""
    row: TaskRow
    history: History
    evals: Sequence[EvalRow]
    """Of all series, suites and splits, oldest first."""
    scored: Scored
    newest: Mapping[str, float]
    """Of its newest step."""
    verdict: Verdict
    rollouts: Sequence[Transcript]


@dataclass(frozen=True)
class TaskFacts:
    """One task."""

    row: TaskRow
    policies: Sequence[PolicyFacts]
    config: Mapping[str, Any]
    """With every default."""
    source: str
    """As its author wrote it; empty if there is no file."""
    use: TaskUse | None
    """None if nothing is recorded."""
    warnings: Sequence[str]
    needs: Sequence[TaskRow]
    engine: EngineRow | None
    """The home's newest one."""


def facts_of(reader: Reader, row: TaskRow, policies: Sequence[tuple[str, TaskRow]]) -> TaskFacts:
    """Read all of a task. ``policies``: name, and the row as that policy sees it."""
    return TaskFacts(
        row,
        [_policy(reader, name, seen) for name, seen in policies],
        reader.task_config(row.id),
        reader.task_source(row.id),
        next((one for one in machine.tasks_used(reader, "") if one.id == row.id), None),
        reader.warnings(row.id),
        reader.needs(row.id),
        reader.engine(),
    )


def _policy(reader: Reader, name: str, row: TaskRow) -> PolicyFacts:
    own = name or None
    metrics = dict.fromkeys((*ALWAYS, *in_order(learning.metric_samples(reader, row.id, policy=own))))
    evals, config = reader.evals(row.id, own), reader.task_config(row.id)
    newest = next(iter(reader.steps(row.id, row.step - 1, own)), None)
    history = learning.history(reader, row.id, metrics, None, own)
    recent = learning.recent_means(reader, row.id, policy=own)
    versions = {words: next(reversed(reader.evals(row.id, words)), None) for words in config.get("versions", ())}
    rewards = history.tracks.get(REWARD, Track())
    return PolicyFacts(
        name,
        row,
        history,
        evals,
        scored(reader, f"{row.id} {name}".rstrip(), row.id, name),
        newest.metrics if newest else {},
        verdict(evidence(row, evals, rewards, recent, versions, config, name)),
        _rollouts(reader, row, own, evals),
    )


def _rollouts(reader: Reader, row: TaskRow, policy: str | None, evals: Sequence[EvalRow]) -> list[Transcript]:
    series = [one for one in newest_series(evals) if one.score is not None]
    measured: list[dict[int, Played]] = []
    if len(series) > 1:
        best = max(series, key=lambda one: (one.score or 0.0, -one.step))
        ends = (series[0], best if best is not series[0] else series[-1])
        measured = [{one.instance: one for one in _groups_of(reader, row, policy, "eval", each)} for each in ends]
    trained = list(_groups_of(reader, row, policy, "train")) if row.step else []
    failed = list(episodes.conversation_ids(reader, row.id, failures=True, policy=policy))[:1]
    said = [(choice.why, _said(reader, choice)) for choice in chosen(measured, trained, failed)]
    return [Transcript(_head(why, episode[0]), list(_turns(episode))) for why, episode in said if episode]


def _groups_of(
    reader: Reader, row: TaskRow, policy: str | None, split: str, evaluation: EvalRow | None = None
) -> Iterator[Played]:
    """Groups of an evaluation, or of the newest step."""
    step = evaluation.step if evaluation else row.step
    for group in episodes.group_rows(reader, episodes.group_ids(reader, row.id, split, step, policy=policy)).values():
        own = evaluation is None or (not group.suite and group.environment_version == evaluation.environment_version)
        if own and group.rewards:
            yield Played(group.id, group.instance, step, tuple(group.rewards))


def _said(reader: Reader, choice: Choice) -> list[StoredConversation]:
    """The chosen episode, the named conversation first; empty if it is gone."""
    if choice.conversation is not None:
        return episodes.episode(reader, choice.conversation)
    ids = episodes.conversation_ids(reader, 0, group=choice.group)
    rows = episodes.conversation_rows(reader, ids)
    own = [id for id in ids if id in rows and (rows[id].group, rows[id].reward) == (choice.group, choice.reward)]
    return episodes.episode(reader, own[0]) if own else []


# The most important first: course, curves, scores, rollouts, cost; the task file last.

SMALL = tuple(name for name in IMPORTANT if name not in (REWARD, HELD_OUT, "seconds"))
"""Metrics with a picture of their own."""
MOST_CURVES = 4
"""Of a picture that compares."""
MOST_SCORES = 40
"""Of a list; some in between are left out."""
LONGEST_TURN = 20_000
"""Characters."""
NAMED = ("tenant", "name", "environment")


def told(tasks: Sequence[TaskFacts], now: float) -> Document:
    """The report of one task, or of several with a comparison. ``now`` is Unix time."""
    when = f"{_moment(now)} UTC"
    if len(tasks) == 1:
        row = tasks[0].row
        lead = f"Task {row.id} of {line(row.tenant)}, on the environment {line(row.environment)}. Written {when}."
        return Document(line(row.name), lead, list(_task(tasks[0], 2)))
    names = ", ".join(f"{each.row.id} {line(each.row.name)}" for each in tasks)
    sections = [_overview(tasks)]
    for each in tasks:
        sections.append(Section(f"Task {each.row.id}: {line(each.row.name)}", ()))
        sections += _task(each, 3)
    return Document(f"{len(tasks)} tasks", f"{names}. Written {when}.", sections)


def _overview(tasks: Sequence[TaskFacts]) -> Section:
    faces = [(task, policy) for task in tasks for policy in task.policies]
    first = faces[0][1].scored
    headers = ("Task", "Name", "State", "Step", "Reward", "Held-out", "Best", "Baseline", f"Against {first.label}")
    rows = [
        (
            policy.scored.label,
            line(task.row.name),
            state_word(policy.row.state),
            f"{policy.row.step}/{policy.row.steps}",
            score(policy.row.reward),
            with_error(policy.row.score, policy.row.basis),
            score(policy.row.best),
            score(policy.row.floor),
            "" if policy.scored is first else difference_text(compared(policy.scored, first)),
        )
        for task, policy in faces
    ]
    pieces: list[Piece] = [Table(headers, rows, headers[3:8])]
    if any(compared(policy.scored, first).difference for _, policy in faces[1:]):
        pieces.append(Text(NOTE.format(first=first.label)))
    ranked = sorted(faces, key=lambda face: -math.inf if face[1].row.best is None else face[1].row.best, reverse=True)
    drawn = [face for face in faces if face in ranked[:MOST_CURVES]]
    lines = [
        Line(f"{policy.scored.label} {line(task.row.name, 40)}", _curve(policy, REWARD, place))
        for place, (task, policy) in enumerate(drawn)
    ]
    if any(each.curve.steps for each in lines):
        which = f", of the {MOST_CURVES} with the best scores" if len(drawn) < len(faces) else ""
        about = f"The mean reward of each step's episodes{which}."
        pieces.append(Chart("rewards", "Reward by step", about, lines, unit=True, metric=REWARD))
    apart = differences([dict(task.config) for task in tasks], False)
    if apart.keys() - set(NAMED):
        columns = ("Key", *(str(task.row.id) for task in tasks))
        cells = [(key, *(_value(one) for one in values)) for key, values in apart.items() if key not in NAMED]
        pieces.append(Table(columns, cells))
    return Section("How they compare", pieces)


def _task(task: TaskFacts, level: int) -> Iterator[Section]:
    several = len(task.policies) > 1
    yield Section("How it went", list(_summary(task)), level)
    for policy in task.policies:
        of = f" of {line(policy.name)}" if several else ""
        for title, pieces in (
            ("Curves", list(_charts(task.row.id, policy))),
            ("Scores", list(_scores(policy))),
            ("Rollouts worth reading", policy.rollouts),
        ):
            if pieces:
                yield Section(f"{title}{of}", pieces, level)
    if any(policy.newest for policy in task.policies):
        yield Section("The newest step", [_newest(task.policies)], level)
    yield Section("What it cost", [_cost(task)], level)
    source = [Code("As its author wrote it", plain(task.source), "toml")] if task.source else []
    with_defaults = Code("With every default", written(without_steps(dict(task.config))), "toml")
    yield Section("The task file", [*source, with_defaults], level)


def _summary(task: TaskFacts) -> Iterator[Piece]:
    for policy in task.policies:
        said = policy.verdict.words
        if said:
            yield Text(f"{line(policy.name)}: {said}" if len(task.policies) > 1 else said)
    for finding in findings(task.row):
        yield Text(f"{finding.headline}: {finding.evidence} {finding.advice}")
    for warning in task.warnings:
        yield Text(f"Warning: {line(warning)}")
    row, train, engine = task.row, task.config.get("train", {}), task.engine
    groups = f"{train.get('groups_per_step', '?')} a step, of {train.get('group_size')} episodes"
    rows = [
        ("State", state_word(row.state) + (f": {line(row.reason)}" if row.reason else "")),
        ("Sweep", line(row.family)),
        ("Base", line(engine.shown_base) if engine else ""),
        ("Sampler", line(engine.sampler) if engine and not engine.precision else ""),
        ("Precision", line(engine.precision) if engine else ""),
        ("Steps", f"{row.step} of {row.steps}"),
        *((f"Policy {line(each.name)}", f"{kind(each)}; acts as {names(each.agents)}") for each in row.policies),
        ("Loss", line(str(train.get("loss", "")))),
        *(
            (name, _value(train[key]) if key in train else "")
            for name, key in (("Learning rate", "learning_rate"), ("Rank", "rank"))
        ),
        ("Groups", groups if "group_size" in train else ""),
        ("Longest reply", limits(task.config)),
        ("Seed", _value(train.get("seed")) if "seed" in train else ""),
        ("Depends on", ", ".join(f"{one.id} {line(one.name)}" for one in task.needs)),
        ("Submitted", f"{_moment(row.created)} UTC"),
        ("marlaas", line(engine.version) if engine else ""),
    ]
    yield Table(("", ""), [(name, value) for name, value in rows if value])


def _charts(task: int, policy: PolicyFacts) -> Iterator[Chart]:
    prefix = "-".join(filter(None, (str(task), "".join(c for c in policy.name if c.isalnum()))))
    curve = _curve(policy, REWARD)
    points = [Point(row.step, row.score, row.stderr) for row in newest_series(policy.evals) if row.score is not None]
    if curve.steps or points:
        yield Chart(
            f"{prefix}-reward",
            "Reward and held-out score by step",
            "The mean reward of each step's episodes with the band from its lowest to its highest; held-out scores as"
            " points with their standard errors.",
            [Line(REWARD, curve)] if curve.steps else [],
            points,
            policy.row.floor,
            unit=True,
            large=True,
            metric=REWARD,
        )
    for name in SMALL:
        one = _curve(policy, name)
        if len(one.steps) > 1 and any(one.values):
            own = words(name)
            yield Chart(f"{prefix}-{name}", own.title, own.meaning, [Line(own.title, one)], metric=name)


def _curve(policy: PolicyFacts, name: str, place: int = 0) -> Curve:
    track = policy.history.tracks.get(name, Track())
    low, high = (policy.history.tracks.get(edge, Track()) for edge in BANDS.get(name, ("", "")))
    banded = low.steps == track.steps == high.steps and not place
    edges = (low.values, high.values) if banded else (array("d"), array("d"))
    return Curve(track.steps, track.values, edges[0], edges[1], place=place)


def _scores(policy: PolicyFacts) -> Iterator[Piece]:
    if not policy.evals:
        return
    newest = newest_series(policy.evals)
    best = max((row for row in newest if row.score is not None), key=lambda row: (row.score, -row.step), default=None)
    stride = math.ceil(len(policy.evals) / MOST_SCORES)
    rows = [
        (
            str(row.step),
            measured_on(row) or HELD_OUT,
            held_out(row.score, None) if row.score is not None else "no score",
            score(row.stderr) if row.score is not None else "",
            rests_on(row),
            "best" if row is best else "" if row in newest or measured_on(row) else "earlier series",
        )
        for place, row in enumerate(policy.evals)
        if place % stride == 0 or row is policy.evals[-1] or row is best  # about ``MOST_SCORES``, evenly
    ]
    headers = ("Step", "Measured on", "Score", "Standard error", "Rests on", "")
    yield Table(headers, rows, ("Step", "Score", "Standard error"))
    if len({row.series for row in policy.evals if not measured_on(row)}) > 1:
        yield Text(
            "Scores of an earlier series do not compare with the newest: other prompts, or graded by other code."
        )


def _newest(policies: Sequence[PolicyFacts]) -> Table:
    """A column for each policy."""
    own = [policy for policy in policies if policy.newest]
    every = in_order({name for policy in own for name in policy.newest if words(name).meaning})
    columns = [f"{line(policy.name)}, step" if len(policies) > 1 else "Step" for policy in own]
    headers = ("Metric", *(f"{name} {policy.row.step}" for name, policy in zip(columns, own, strict=True)), "Meaning")
    rows = [
        (
            words(name).title,
            *(newest_text(name, policy.newest) if name in policy.newest else "" for policy in own),
            words(name).meaning,
        )
        for name in every
    ]
    return Table(headers, rows)


def _head(why: str, said: StoredConversation) -> str:
    parts = (f"{line(name, 30)} {number(value)}" for name, value in list(said.scores.items())[:8])
    speaker, version = _speaker(said), f"version {said.version}"
    named = said.policy not in ("", ONLY)  # its name has the version behind it
    shown = [f"{why}: reward {score(said.reward)}", speaker, "" if named and speaker else version, *parts]
    if said.failure:
        shown.append(line(said.failure, 300))
    if said.cut:
        shown.append("cut off by the length limit")
    return " · ".join(filter(None, shown))


def _speaker(said: StoredConversation) -> str:
    found, agent = who(said.agent, said.policy, said.version, said.speaker, said.spoke), line(said.agent, 20)
    return found.removeprefix(f"{agent}: ") if found.startswith(f"{agent}: {agent} v") else found


def _turns(episode: Sequence[StoredConversation]) -> Iterator[tuple[str, str]]:
    for said in in_order_said(episode):
        text = plain(said.turn.text[:LONGEST_TURN]) or "(nothing)"
        more = len(said.turn.text) - LONGEST_TURN
        whose = f"{_speaker(episode[said.conversation]) or 'another agent'}, " if len(episode) > 1 else ""
        yield f"{whose}{line(said.turn.role, 20)}", text + (f"\n… {more:,} more characters" if more > 0 else "")


def _cost(task: TaskFacts) -> Piece:
    row, use = task.row, task.use
    rows = [
        ("Running time", duration(row.seconds)),
        ("From the queue to the end", duration(row.finished - row.created) if row.finished else "not ended"),
        ("Tokens trained on", count(row.tokens)),
    ]
    if use is not None:
        rows += [
            ("Tokens read, sampled and trained on", count(use.tokens)),
            ("Sampling", duration(use.rollout)),
            ("Training", duration(use.training)),
            ("Episodes with their environments, side by side", duration(use.environment)),
        ]
    return Table(("", ""), rows)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "-" if value is None else line(str(value), 60)


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


MOST = 40
"""Newest lines of the log."""


@dataclass(frozen=True)
class HomeFacts:
    """All that a home's report is made of."""

    home: str
    since: float
    """Unix time, as ``now``."""
    now: float
    tasks: Sequence[TaskRow] = ()
    progress: Sequence[ProgressRow] = ()
    events: Sequence[EventRow] = ()
    """Oldest first."""


def told_of_home(facts: HomeFacts) -> Document:
    """The report."""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(facts.since))
    lead = f"Since {when}, {ago(facts.since, facts.now)}: {_sum(facts)}."
    sections = [
        Section(title, pieces)
        for title, pieces in (("Tasks", list(_tasks(facts))), ("What went wrong", list(_wrong(facts))))
        if pieces
    ]
    return Document(f"What happened in {line(facts.home)}", lead, sections)


def _sum(facts: HomeFacts) -> str:
    if not facts.progress and not facts.events:
        return "nothing"
    ended = sum(task.finished is not None and task.finished >= facts.since for task in facts.tasks)
    steps = sum(row.steps for row in facts.progress)
    found = [counted(steps, "step"), f"{counted(ended, 'task')} ended"]
    running = sum(task.state == "running" for task in facts.tasks)
    return ", ".join([*found, f"{running} running now"])


def _tasks(facts: HomeFacts) -> Iterator[Piece]:
    """Tasks that moved, urgent ones first."""
    rows = {task.id: task for task in facts.tasks}
    moved = [(rows[one.task], one) for one in facts.progress if one.task in rows]
    known = {task.id for task, _ in moved}
    stopped = [
        task
        for task in facts.tasks
        if task.id not in known and task.finished is not None and task.finished >= facts.since
    ]
    moved.sort(key=lambda pair: (not gone_wrong(pair[0]), pair[0].state not in ("failed", "paused", "blocked")))
    cells = [
        (
            f"{task.id} {one.policy}" if len(task.trained) > 1 else str(task.id),
            line(task.tenant, 20),
            line(task.name, 40),
            state_word(task.state),
            f"+{one.steps} to {task.step}/{task.steps}",
            _change(one.reward_before, one.reward),
            _change(one.score_before, one.score),
        )
        for task, one in moved
    ]
    cells += [
        (str(task.id), line(task.tenant, 20), line(task.name, 40), state_word(task.state), "", "", score(task.score))
        for task in stopped
    ]
    if cells:
        headers = ("Task", "Tenant", "Name", "State", "Steps", "Reward", "Held-out")
        yield Table(headers, cells, headers[4:])
    for task in {task.id: task for task in (*(task for task, _ in moved), *stopped)}.values():
        said = [task.reason] if task.reason and task.state in ("failed", "paused", "blocked") else []
        said += [trouble] if (trouble := gone_wrong(task)) else []
        for sentence in said:
            yield Text(f"{task.id} {line(task.name, 40)}: {line(sentence, 300)}")


def _change(before: float | None, now: float | None) -> str:
    if now is None:
        return "-"
    return score(now) if before is None else f"{score(before)} → {score(now)}"


def _wrong(facts: HomeFacts) -> Iterator[Piece]:
    """Equal warnings once, with their number."""
    alike: dict[tuple[int | None, str], list[EventRow]] = {}
    for event in facts.events:
        alike.setdefault((event.task, event.message), []).append(event)
    newest = sorted(alike.values(), key=lambda same: same[-1].created)[-MOST:]
    if newest:
        rows = [
            (
                time.strftime("%m-%d %H:%M", time.localtime(same[-1].created)),
                "" if same[-1].task is None else str(same[-1].task),
                f"{line(same[-1].message, 240)}{f' ({len(same)} times)' if len(same) > 1 else ''}",
            )
            for same in newest
        ]
        yield Table(("When", "Task", "What"), rows)
    if len(alike) > MOST:
        yield Text(f"{len(alike) - MOST} earlier ones are in `marlaas logs --level warning`.")
