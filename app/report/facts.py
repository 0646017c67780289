"""All that a report says of a task, read from a home at one moment. Frozen values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marlaas.engine.store import EngineRow, EvalRow, History, StoredConversation, TaskRow, TaskUse, Track

from ..home.results.comparing import Scored, scored
from ..questions.evidence import evidence
from ..reading.home_reader import HomeReader
from ..words.metrics import BANDS, REWARD, in_order
from ..words.tasks import newest_series
from ..words.verdict import Verdict, verdict
from .worth_reading import Choice, Played, chosen

ALWAYS = (REWARD, *BANDS[REWARD])


@dataclass(frozen=True)
class ShownRollout:
    """A rollout that is worth reading, and why."""

    why: str
    episode: Sequence[StoredConversation]
    """All that was said in its episode, its own conversation first."""


@dataclass(frozen=True)
class PolicyFacts:
    """A task as one of its policies sees it."""

    name: str
    """Empty where the task has only one."""
    row: TaskRow
    history: History
    evals: Sequence[EvalRow]
    """Of all series, suites and splits, oldest first."""
    scored: Scored
    """The score that it is compared by."""
    newest: Mapping[str, float]
    """All metrics of its newest step."""
    verdict: Verdict
    """Whether it learns."""
    rollouts: Sequence[ShownRollout]


@dataclass(frozen=True)
class TaskFacts:
    """One task."""

    row: TaskRow
    policies: Sequence[PolicyFacts]
    config: Mapping[str, Any]
    """The whole task file, with every default."""
    source: str
    """The task file as its author wrote it; empty where it was made without one."""
    use: TaskUse | None
    """What it used; None where nothing is recorded."""
    warnings: Sequence[str]
    needs: Sequence[TaskRow]
    engine: EngineRow | None
    """The newest engine of the home."""


def facts_of(reader: HomeReader, row: TaskRow, policies: Sequence[tuple[str, TaskRow]]) -> TaskFacts:
    """Read all of a task. ``policies``: the name of each that is told of, and the row as that policy sees it."""
    use = next((one for one in reader.tasks_used("") if one.id == row.id), None)
    return TaskFacts(
        row,
        [_policy(reader, name, seen) for name, seen in policies],
        reader.task_config(row.id),
        reader.task_source(row.id),
        use,
        reader.warnings(row.id),
        reader.needs(row.id),
        reader.engine(),
    )


def _policy(reader: HomeReader, name: str, row: TaskRow) -> PolicyFacts:
    own = name or None
    samples = reader.metric_samples(row.id, policy=own)
    evals = reader.evals(row.id, own)
    newest = next(iter(reader.steps(row.id, row.step - 1, own)), None)
    history = reader.history(row.id, dict.fromkeys((*ALWAYS, *in_order(samples))), None, own)
    config, recent = reader.task_config(row.id), reader.recent_means(row.id, policy=own)
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


def _rollouts(reader: HomeReader, row: TaskRow, policy: str | None, evals: Sequence[EvalRow]) -> list[ShownRollout]:
    """What the first and the best evaluation said to the same prompts; extremes of the newest step; failures."""
    series = [one for one in newest_series(evals) if one.score is not None]
    measured: list[dict[int, Played]] = []
    if len(series) > 1:
        best = max(series, key=lambda one: (one.score or 0.0, -one.step))
        ends = [series[0], best] if best is not series[0] else [series[0], series[-1]]
        measured = [_instances(reader, row.id, policy, one) for one in ends]
    trained = _trained(reader, row, policy)
    failed = list(reader.conversation_ids(row.id, failures=True, policy=policy))[:1]
    shown = []
    for choice in chosen(measured, trained, failed):
        episode = _said(reader, choice)
        if episode:
            shown.append(ShownRollout(choice.why, episode))
    return shown


def _instances(reader: HomeReader, task: int, policy: str | None, evaluation: EvalRow) -> dict[int, Played]:
    ids = reader.group_ids(task, "eval", evaluation.step, policy=policy)
    groups = [
        group
        for group in reader.group_rows(ids).values()
        if not group.suite and group.environment_version == evaluation.environment_version
    ]
    return {
        group.instance: Played(group.id, group.instance, evaluation.step, tuple(group.rewards))
        for group in groups
        if group.rewards
    }


def _trained(reader: HomeReader, row: TaskRow, policy: str | None) -> list[Played]:
    ids = reader.group_ids(row.id, "train", row.step, policy=policy) if row.step else ()
    groups = reader.group_rows(ids).values()
    return [Played(one.id, one.instance, row.step, tuple(one.rewards)) for one in groups if one.rewards]


def _said(reader: HomeReader, choice: Choice) -> list[StoredConversation]:
    """The episode that a choice means, with the conversation first whose reward it names; empty where it is gone."""
    if choice.conversation is not None:
        return reader.episode(choice.conversation)
    ids = reader.conversation_ids(0, group=choice.group)
    paid = {id: one.reward for id, one in reader.conversation_rows(ids).items() if one.group == choice.group}
    found = [id for id in ids if paid.get(id) == choice.reward]
    return reader.episode(found[0]) if found else []
