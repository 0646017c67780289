"""Compares recorded and replayed rewards: one verdict for each reward, and a summary. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..environments import EpisodeOutcome
from ..store import RecordedEpisode, RecordedGroup

Kind = Literal["unchanged", "changed", "not comparable", "failing"]


@dataclass(frozen=True)
class Replayed:
    """A recorded episode with its replay."""

    recorded: RecordedEpisode
    outcome: EpisodeOutcome | None
    """None where the replay had to end before the episode did."""
    difference: str = ""
    """How the replay told the policy something else, so that rewards cannot be compared; empty where it did not."""


@dataclass(frozen=True)
class Verdict:
    """The comparison of one agent's rewards in one episode."""

    kind: Kind
    step: int | None
    group: int
    member: int
    agent: str
    old: float | None
    new: float | None
    """None where the replay gives no reward."""
    reason: str


@dataclass(frozen=True)
class Summary:
    """Counts of verdicts, and mean rewards before and after."""

    rewards: int
    unchanged: int
    changed: int
    not_comparable: int
    failing: int
    mean_before: float | None
    """Mean over the unchanged and changed rewards that exist both before and after; None where there are none."""
    mean_after: float | None


def verdicts(group: RecordedGroup, replayed: Sequence[Replayed]) -> list[Verdict]:
    """One verdict for each agent that spoke in each episode."""
    found = []
    for one in replayed:
        rewards: Mapping[str, float] = one.outcome.rewards if one.outcome is not None else {}
        for agent in one.recorded.agents or rewards or ("",):
            recorded = one.recorded.agents.get(agent)
            old, step = (recorded.reward, recorded.step) if recorded is not None else (None, group.step)
            new = rewards.get(agent)
            kind, reason = _judged(one, old, new)
            found.append(Verdict(kind, step, group.number, one.recorded.member, agent, old, new, reason))
    return found


def summarise(found: Sequence[Verdict]) -> Summary:
    """Count verdicts and average their rewards."""
    kinds = [verdict.kind for verdict in found]
    comparable = [
        (verdict.old, verdict.new)
        for verdict in found
        if verdict.kind in ("unchanged", "changed") and verdict.old is not None and verdict.new is not None
    ]
    return Summary(
        rewards=len(found),
        unchanged=kinds.count("unchanged"),
        changed=kinds.count("changed"),
        not_comparable=kinds.count("not comparable"),
        failing=kinds.count("failing"),
        mean_before=_mean([old for old, _ in comparable]),
        mean_after=_mean([new for _, new in comparable]),
    )


def _judged(one: Replayed, old: float | None, new: float | None) -> tuple[Kind, str]:
    if one.difference or one.outcome is None:
        return "not comparable", one.difference
    if one.outcome.status in ("error", "timeout"):
        return "failing", _failure(one.outcome)
    if old == new:
        return "unchanged", ""
    return "changed", _why(one.recorded, one.outcome, old)


def _why(recorded: RecordedEpisode, outcome: EpisodeOutcome, old: float | None) -> str:
    """Why the reward changed, as far as that is known."""
    if outcome.status != "ok":
        return f"the episode ends as {outcome.status}"
    if old is None:
        return f"it had no reward: {recorded.failure or recorded.status}"
    if outcome.invalid:
        return f"invalid: {outcome.invalid}"
    names = dict.fromkeys((*recorded.parts, *outcome.parts))
    before_after = ((name, recorded.parts.get(name), outcome.parts.get(name)) for name in names)
    return ", ".join(f"{name} {_number(old)} → {_number(new)}" for name, old, new in before_after if old != new)


def _failure(outcome: EpisodeOutcome) -> str:
    if outcome.failure is None:
        return outcome.status
    place = f" ({outcome.failure.file}:{outcome.failure.line})" if outcome.failure.file else ""
    return f"{outcome.failure.message}{place}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
