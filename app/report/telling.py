"""The content of a report: of tasks, of an exported version, or of a home since the last report."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import fsum
from typing import Any, TypeAlias

from marlaas.engine.store.queries import episodes, learning, machine
from marlaas.engine.store.queries.episodes import GroupSummary, StoredConversation
from marlaas.engine.store.queries.learning import History, ProgressRow, Track
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import EvalRow, EventRow, TaskRow, VersionRow

from ..chart.draw import Curve, Point
from ..lists.lines import Learner
from ..operations.commands import without_steps, written
from ..operations.results import NOTE, Scored, compared, difference_text, scored
from ..operations.settings_file import difference_rows, value_cell
from ..questions import learning_answer
from ..rollouts.exporting import episode_text
from ..text.format import ago, count, counted, duration, excerpt, line, plain, score
from ..text.learning import findings, gone_wrong, verdict
from ..text.metrics import BANDS, HELD_OUT, IMPORTANT, REWARD, in_order, newest_text, words
from ..text.scores import Difference, held_out, paired, rests_on, with_error
from ..text.tasks import kind, limits, measured_on, names, newest_series, state_word

# Texts are foreign; the writer makes them safe for its format.


@dataclass(frozen=True)
class Table:
    """Rows under headers."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()
    """Headers of columns of numbers."""


@dataclass(frozen=True)
class Chart:
    """A picture of curves by step."""

    name: str
    """The file's name without ending."""
    title: str
    words: str
    """For those who cannot see it."""
    lines: Sequence[tuple[str, Curve]]
    """Curves with their names."""
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
class Code:
    """Preformatted text."""

    title: str
    text: str
    language: str = "text"
    folded: bool = False
    """Where that is possible."""


Piece: TypeAlias = str | Table | Chart | Code
"""A text is a paragraph."""


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
class Choice:
    """A rollout: the first of a group with this reward."""

    why: str
    group: int
    reward: float


def chosen(measured: Sequence[Mapping[int, GroupSummary]], trained: Sequence[GroupSummary]) -> list[Choice]:
    """The rollouts worth reading, in order. All groups have rewards.

    ``measured``: groups of two evaluations by instance, earlier first, or nothing; ``trained``: of the newest step.
    """
    found = list(_changed(*measured)) if len(measured) == 2 else []
    widest = max(trained, key=lambda group: max(group.rewards) - min(group.rewards), default=None)
    if widest is not None:
        low, high = min(widest.rewards), max(widest.rewards)
        where = f"step {widest.step}, instance {widest.instance}"
        found.append(Choice(f"The best of the group with the widest rewards ({where})", widest.id, high))
        if low < high:
            found.append(Choice(f"The worst of the same group ({where})", widest.id, low))
    return found


def _changed(first: Mapping[int, GroupSummary], best: Mapping[int, GroupSummary]) -> list[Choice]:
    common = first.keys() & best.keys()
    gains = sorted((_mean(best[instance]) - _mean(first[instance]), -instance) for instance in common)
    if not gains:
        return []
    (worst, lost), (most, won) = gains[0], gains[-1]
    picks = [("Most was gained on prompt {}", -won)] if most > 0 else []
    picks += [("Most was lost on prompt {}", -lost)] if worst < 0 else []
    seen = {instance for _, instance in picks}
    rest = (instance for instance in best if instance in first and instance not in seen)
    low = min(rest, key=lambda each: _mean(best[each]), default=None)
    if low is not None and _mean(best[low]) < max(map(_mean, best.values())):
        picks.append(("Prompt {} is not solved", low))
    return [
        Choice(f"{why.format(instance)}: at step {each.step}", each.id, _usual(each))
        for why, instance in picks
        for each in (first[instance], best[instance])
    ]


def _mean(group: GroupSummary) -> float:
    return fsum(group.rewards) / len(group.rewards)


def _usual(group: GroupSummary) -> float:
    """The reward nearest to the mean."""
    return min(group.rewards, key=lambda reward: abs(reward - _mean(group)))


ALWAYS = (REWARD, *BANDS[REWARD])


@dataclass(frozen=True)
class Face:
    """A task as one of its policies sees it."""

    task: TaskRow
    name: str
    """Empty for the only policy."""
    row: TaskRow
    """With the policy's progress."""
    history: History
    evals: Sequence[EvalRow]
    """Of all series, suites and splits, oldest first."""
    scored: Scored
    newest: Mapping[str, float]
    """Of its newest step."""

    @property
    def policy(self) -> str | None:
        return self.name or None


def _face(reader: Reader, task: TaskRow, name: str, row: TaskRow) -> Face:
    own = name or None
    metrics = dict.fromkeys((*ALWAYS, *in_order(learning.metric_samples(reader, task.id, policy=own))))
    newest = next(iter(reader.steps(task.id, row.step - 1, own)), None)
    return Face(
        task,
        name,
        row,
        learning.history(reader, task.id, metrics, None, own),
        reader.evals(task.id, own),
        scored(reader, f"{task.id} {name}".rstrip(), task.id, name),
        newest.metrics if newest else {},
    )


def _verdict(reader: Reader, face: Face) -> str:
    own = [Learner(face.task.id, face.name)]
    return verdict(learning_answer(reader, None, REWARD, own, own, time.time).evidence(face.row)).words


def _rollouts(reader: Reader, face: Face) -> list[Code]:
    row, policy = face.row, face.policy
    series = [one for one in newest_series(face.evals) if one.score is not None]
    measured: list[dict[int, GroupSummary]] = []
    if len(series) > 1:
        best = max(series, key=lambda one: (one.score or 0.0, -one.step))
        ends = (series[0], best if best is not series[0] else series[-1])
        measured = [{one.instance: one for one in _groups_of(reader, row, policy, "eval", each)} for each in ends]
    trained = _groups_of(reader, row, policy, "train") if row.step else []
    said = [(choice.why, _said(reader, choice)) for choice in chosen(measured, trained)]
    for failed in list(episodes.conversation_ids(reader, row.id, failures=True, policy=policy))[:1]:
        said.append(("An episode that failed", episodes.episode(reader, failed)))
    return [Code(why, excerpt(episode_text(episode), LONGEST, LINES)) for why, episode in said if episode]


def _groups_of(
    reader: Reader, row: TaskRow, policy: str | None, split: str, evaluation: EvalRow | None = None
) -> list[GroupSummary]:
    """Groups with rewards, of an evaluation or of the newest step."""
    ids = episodes.group_ids(reader, row.id, split, evaluation.step if evaluation else row.step, policy=policy)
    groups = [group for group in episodes.group_rows(reader, ids).values() if group.rewards]
    if evaluation is None:
        return groups
    version = evaluation.environment_version
    return [group for group in groups if not group.suite and group.environment_version == version]


def _said(reader: Reader, choice: Choice) -> list[StoredConversation]:
    """The chosen episode; empty if it is gone."""
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
LONGEST, LINES = 20_000, 500
"""Characters and lines of an episode."""
VALUE = 60
"""Cells of a value of a task file."""


def report_of_tasks(
    reader: Reader, tasks: Sequence[tuple[TaskRow, Sequence[tuple[str, TaskRow]]]], now: float
) -> Document:
    """The report of one task, or of several with a comparison.

    ``tasks``: each with its policies, as name and the row as that policy sees it. ``now`` is Unix time.
    """
    seen = [(task, [_face(reader, task, name, row) for name, row in policies]) for task, policies in tasks]
    when = f"{_moment(now)} UTC"
    if len(seen) == 1:
        row = seen[0][0]
        lead = f"Task {row.id} of {line(row.tenant)}, on the environment {line(row.environment)}. Written {when}."
        return Document(line(row.name), lead, list(_task(reader, *seen[0], 2)))
    names = ", ".join(f"{task.id} {line(task.name)}" for task, _ in seen)
    sections = [_overview(reader, [task for task, _ in seen], [face for _, faces in seen for face in faces])]
    for task, faces in seen:
        sections.append(Section(f"Task {task.id}: {line(task.name)}", ()))
        sections += _task(reader, task, faces, 3)
    return Document(f"{len(seen)} tasks", f"{names}. Written {when}.", sections)


def _overview(reader: Reader, tasks: Sequence[TaskRow], faces: Sequence[Face]) -> Section:
    first = faces[0].scored
    headers = ("Task", "Name", "State", "Step", "Reward", "Held-out", "Best", "Baseline", f"Against {first.label}")
    rows = [
        (
            face.scored.label,
            line(face.task.name),
            state_word(face.row.state),
            f"{face.row.step}/{face.row.steps}",
            score(face.row.reward),
            with_error(face.row.score, face.row.basis),
            score(face.row.best),
            score(face.row.floor),
            "" if face.scored is first else difference_text(compared(face.scored, first)),
        )
        for face in faces
    ]
    pieces: list[Piece] = [Table(headers, rows, headers[3:8])]
    if any(isinstance(compared(face.scored, first), Difference) for face in faces[1:]):
        pieces.append(NOTE.format(first=first.label))
    ranked = sorted(faces, key=lambda face: -math.inf if face.row.best is None else face.row.best, reverse=True)
    drawn = [face for face in faces if face in ranked[:MOST_CURVES]]
    lines = [
        (f"{face.scored.label} {line(face.task.name, 40)}", _curve(face, REWARD, place))
        for place, face in enumerate(drawn)
    ]
    if any(curve.steps for _, curve in lines):
        which = f", of the {MOST_CURVES} with the best scores" if len(drawn) < len(faces) else ""
        about = f"The mean reward of each step's episodes{which}."
        pieces.append(Chart("rewards", "Reward by step", about, lines, unit=True, metric=REWARD))
    cells = difference_rows([reader.task_config(task.id) for task in tasks], VALUE)
    if cells:
        pieces.append(Table(("Key", *(str(task.id) for task in tasks)), cells))
    return Section("How they compare", pieces)


def _task(reader: Reader, task: TaskRow, faces: Sequence[Face], level: int) -> Iterator[Section]:
    yield Section("How it went", list(_summary(reader, task, faces)), level)
    for face in faces:
        of = f" of {line(face.name)}" if len(faces) > 1 else ""
        for title, pieces in (
            ("Curves", list(_charts(face))),
            ("Scores", list(_scores(face))),
            ("Rollouts worth reading", _rollouts(reader, face)),
        ):
            if pieces:
                yield Section(f"{title}{of}", pieces, level)
    if any(face.newest for face in faces):
        yield Section("The newest step", [_newest(faces)], level)
    yield Section("What it cost", [_cost(reader, task)], level)
    yield Section("The task file", _task_files(reader, task), level)


def _task_files(reader: Reader, task: TaskRow) -> list[Code]:
    source = reader.task_source(task.id)
    codes = [Code("As its author wrote it", plain(source), "toml", folded=True)] if source else []
    with_defaults = written(without_steps(reader.task_config(task.id)))
    return [*codes, Code("With every default", with_defaults, "toml", folded=True)]


def _summary(reader: Reader, row: TaskRow, faces: Sequence[Face]) -> Iterator[Piece]:
    for face in faces:
        if said := _verdict(reader, face):
            yield f"{line(face.name)}: {said}" if len(faces) > 1 else said
    for finding in findings(row):
        yield f"{finding.headline}: {finding.evidence} {finding.advice}"
    for warning in reader.warnings(row.id):
        yield f"Warning: {line(warning)}"
    config, engine = reader.task_config(row.id), reader.engine()
    train, policy = config.get("train", {}), {} if row.policies else config.get("policy", {})
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
        ("Learning rate", value_cell(train["learning_rate"], VALUE) if "learning_rate" in train else ""),
        ("Rank", value_cell(policy["rank"], VALUE) if "rank" in policy else ""),
        ("Layers", line(str(policy.get("targets", "")))),
        ("Groups", groups if "group_size" in train else ""),
        ("Longest reply", limits(config)),
        ("Seed", value_cell(train.get("seed"), VALUE) if "seed" in train else ""),
        ("Depends on", ", ".join(f"{one.id} {line(one.name)}" for one in reader.needs(row.id))),
        ("Submitted", f"{_moment(row.created)} UTC"),
        ("marlaas", line(engine.version) if engine else ""),
    ]
    yield Table(("", ""), [(name, value) for name, value in rows if value])


def _charts(face: Face) -> Iterator[Chart]:
    prefix = "-".join(filter(None, (str(face.task.id), "".join(c for c in face.name if c.isalnum()))))
    curve = _curve(face, REWARD)
    points = [Point(row.step, row.score, row.stderr) for row in newest_series(face.evals) if row.score is not None]
    if curve.steps or points:
        yield Chart(
            f"{prefix}-reward",
            "Reward and held-out score by step",
            "The mean reward of each step's episodes with the band from its lowest to its highest; held-out scores as"
            " points with their standard errors.",
            [(REWARD, curve)] if curve.steps else [],
            points,
            face.row.floor,
            unit=True,
            large=True,
            metric=REWARD,
        )
    for name in SMALL:
        one = _curve(face, name)
        if len(one.steps) > 1 and any(one.values):
            own = words(name)
            yield Chart(f"{prefix}-{name}", own.title, own.meaning, [(own.title, one)], metric=name)


def _curve(face: Face, name: str, place: int = 0) -> Curve:
    track = face.history.tracks.get(name, Track())
    low, high = (face.history.tracks.get(edge, Track()) for edge in BANDS.get(name, ("", "")))
    banded = low.steps == track.steps == high.steps and not place
    edges = (low.values, high.values) if banded else (array("d"), array("d"))
    return Curve(track.steps, track.values, edges[0], edges[1], place=place)


def _scores(face: Face) -> Iterator[Piece]:
    if not face.evals:
        return
    newest = newest_series(face.evals)
    best = max((row for row in newest if row.score is not None), key=lambda row: (row.score, -row.step), default=None)
    stride = math.ceil(len(face.evals) / MOST_SCORES)
    rows = [
        (
            str(row.step),
            measured_on(row) or HELD_OUT,
            held_out(row.score, None) if row.score is not None else "no score",
            score(row.stderr) if row.score is not None else "",
            rests_on(row),
            "best" if row is best else "" if row in newest or measured_on(row) else "earlier series",
        )
        for place, row in enumerate(face.evals)
        if place % stride == 0 or row is face.evals[-1] or row is best  # about ``MOST_SCORES``, evenly
    ]
    headers = ("Step", "Measured on", "Score", "Standard error", "Rests on", "")
    yield Table(headers, rows, ("Step", "Score", "Standard error"))
    if len({row.series for row in face.evals if not measured_on(row)}) > 1:
        yield "Scores of an earlier series do not compare with the newest: other prompts, or graded by other code."


def _newest(faces: Sequence[Face]) -> Table:
    """A column for each policy."""
    own = [face for face in faces if face.newest]
    every = in_order({name for face in own for name in face.newest if words(name).meaning})
    columns = [
        f"{line(face.name)}, step {face.row.step}" if len(faces) > 1 else f"Step {face.row.step}" for face in own
    ]
    headers = ("Metric", *columns, "Meaning")
    rows = [
        (
            words(name).title,
            *(newest_text(name, face.newest) if name in face.newest else "" for face in own),
            words(name).meaning,
        )
        for name in every
    ]
    return Table(headers, rows)


def _cost(reader: Reader, row: TaskRow) -> Piece:
    use = next((one for one in machine.tasks_used(reader, "") if one.id == row.id), None)
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


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


MOST_ROWS = 20
"""Of the rewards by step."""
ABOUT_GAINS = (
    "Differences are by prompt, with the interval (95 %) of a paired t test. A version that was chosen as the best on"
    " these very prompts has a score there that is too high."
)


def model_card(reader: Reader, version: VersionRow, about: Sequence[tuple[str, str]], use: Sequence[Code]) -> Document:
    """How a version was trained. ``about``: names and values of further facts; ``use``: lines that load it."""
    task = reader.task(version.task)
    assert task is not None  # its version is stored
    policy = next((each for each in task.policies if each.name == version.policy), None)
    face = _face(reader, task, version.policy, task.seen_by(policy)) if policy else _face(reader, task, "", task)
    config = reader.task_config(task.id)
    settings = config.get("train", {}) | adapter_settings(config, version.policy)
    rows = [
        ("Environment", line(task.environment)),
        ("The environment's version", line(face.history.environment_at(version.number))),
        ("Version", f"{version.number}, of a policy with {face.row.step} steps"),
        *((name.replace("_", " ").capitalize(), value_cell(settings.get(name), VALUE)) for name in SHOWN),
        *about,
    ]
    rewards = face.history.tracks.get(REWARD, Track())
    edges = [face.history.tracks.get(edge, Track()) for edge in BANDS[REWARD]]
    steps = [step for step in rewards.steps if step <= version.number]
    shown = [step for step in steps if not step % math.ceil(len(steps) / MOST_ROWS) or step in (steps[0], steps[-1])]
    curve = [(str(step), *(score(track.at(step)) for track in (rewards, *edges))) for step in shown]
    headers = ("Step", "Reward", "Lowest", "Highest")
    sections = [
        Section("Use", use),
        Section(
            "Training",
            [*filter(None, [_verdict(reader, face)]), Table(("", ""), [row for row in rows if row[1].strip("-")])],
        ),
        Section("Scores", list(_gains(reader, face, version.number))),
        Section("Reward by step", [Table(headers, curve, headers)] if curve else []),
        Section("The task file", _task_files(reader, task)[:1]),
    ]
    lead = f"Trained by reinforcement learning on the environment {line(task.environment)}, with marlaas."
    if config.get("kind", "train") != "train":
        lead = f"Trained on examples of {line(task.environment)}, with marlaas."
    return Document(line(task.name), lead, [section for section in sections if section.pieces])


def adapter_settings(config: Mapping[str, Any], policy: str) -> dict[str, Any]:
    """What the task's configuration sets for one policy."""
    own = config.get("policies", {}).get(policy) or config.get("policy", {})
    return {name: value for name, value in own.items() if value is not None}


SHOWN = ("loss", "learning_rate", "rank", "alpha", "groups_per_step", "group_size", "seed")


def _gains(reader: Reader, face: Face, step: int) -> Iterator[Piece]:
    """Scores before training and at ``step``, on each set of prompts."""
    rows = []
    for on in sorted({measured_on(row) for row in face.evals}):
        series = [row for row in newest_series(face.evals, on) if row.score is not None]
        before, after = (next((row for row in series if row.step == at), None) for at in (0, step))
        best = max(series, key=lambda row: (row.score, -row.step), default=None)
        gain = None
        if before and after and step:
            gain = paired(*(learning.prompt_scores(reader, face.task.id, row, face.policy) for row in (after, before)))
        rows.append(
            (
                on or HELD_OUT,
                *(held_out(row.score, row) if row else "" for row in (before, after)),
                difference_text(gain) if gain else "",
                f"{score(best.score)} at step {best.step}" if best else "",
            )
        )
    if rows:
        yield Table(("Measured on", "Before training", "This version", "Difference", "Best"), rows)
        yield ABOUT_GAINS


MOST = 40
"""Newest lines of the log."""


def report_of_home(
    home: str,
    since: float,
    now: float,
    tasks: Sequence[TaskRow],
    progress: Sequence[ProgressRow],
    events: Sequence[EventRow],
) -> Document:
    """What happened in a home from ``since`` to ``now``, in Unix time. ``events``: oldest first."""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(since))
    ended = [task for task in tasks if task.finished is not None and task.finished >= since]
    total = "nothing"
    if progress or events:
        steps, running = sum(row.steps for row in progress), sum(task.state == "running" for task in tasks)
        total = f"{counted(steps, 'step')}, {counted(len(ended), 'task')} ended, {running} running now"
    sections = [
        Section(title, pieces)
        for title, pieces in (
            ("Tasks", list(_moved(tasks, ended, progress))),
            ("What went wrong", list(_wrong(events))),
        )
        if pieces
    ]
    return Document(f"What happened in {line(home)}", f"Since {when}, {ago(since, now)}: {total}.", sections)


def _moved(tasks: Sequence[TaskRow], ended: Sequence[TaskRow], progress: Sequence[ProgressRow]) -> Iterator[Piece]:
    """Tasks that moved, urgent ones first."""
    rows = {task.id: task for task in tasks}
    moved = [(rows[one.task], one) for one in progress if one.task in rows]
    moved.sort(key=lambda pair: (not gone_wrong(pair[0]), pair[0].state not in ("failed", "paused", "blocked")))
    stopped = [task for task in ended if task.id not in {task.id for task, _ in moved}]
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
        reason = task.reason if task.state in ("failed", "paused", "blocked") else ""
        for sentence in filter(None, (reason, gone_wrong(task))):
            yield f"{task.id} {line(task.name, 40)}: {line(sentence, 300)}"


def _change(before: float | None, now: float | None) -> str:
    return score(now) if before is None or now is None else f"{score(before)} → {score(now)}"


def _wrong(events: Sequence[EventRow]) -> Iterator[Piece]:
    """Equal warnings once, with their number."""
    alike: dict[tuple[int | None, str], list[EventRow]] = {}
    for event in events:
        alike.setdefault((event.task, event.message), []).append(event)
    rows = [
        (
            time.strftime("%m-%d %H:%M", time.localtime(same[-1].created)),
            "" if same[-1].task is None else str(same[-1].task),
            f"{line(same[-1].message, 240)}{f' ({len(same)} times)' if len(same) > 1 else ''}",
        )
        for same in sorted(alike.values(), key=lambda same: same[-1].created)[-MOST:]
    ]
    if rows:
        yield Table(("When", "Task", "What"), rows)
    if len(alike) > MOST:
        yield f"{len(alike) - MOST} earlier ones are in `marlaas logs --level warning`."
