"""Check: rewards are of a usable size, and the same reply earns the same reward."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ..protocol import EpisodeOutcome
from .finding import Finding
from .pace import Pace
from .plays import Played, play
from .subject import Subject

CHECK = "rewards"
LARGE = 100.0
AGAIN = 8
"""Episodes that are played a second time."""
_Scored = tuple[Played, float, EpisodeOutcome | None]


async def look(subject: Subject, played: Sequence[Played], pace: Pace, share: float) -> list[tuple[Played, Played]]:
    """Play some episodes again with the same replies; returns pairs."""
    chosen = [one for one in played if one.score is not None][:: max(1, len(played) // AGAIN)]
    return [(one, await play(subject, one.index, one.reply, pace)) async for one in pace.take(chosen, share)]


def judge(played: Sequence[Played], repeated: Sequence[tuple[Played, Played]], ranked: bool = False) -> list[Finding]:
    """What canned replies earned, whether they earn it again, and whether it pays to be unreadable.

    ``ranked``: whether a ranking replaces these rewards in training.
    """
    scores = [reward for one in played for reward in one.rewards.values()]
    if not scores:
        return []
    low, high = min(scores), max(scores)
    text = (
        f"Canned replies earned {low:.3g} to {high:.3g}, {statistics.fmean(scores):.3g} on average"
        f" (standard deviation {statistics.pstdev(scores):.2g})."
    )
    large = max(abs(low), abs(high)) > LARGE
    advice = " Rewards of such a size make steps of that size: bring them to the order of 1." if large else ""
    findings = [Finding(CHECK, "warning" if large else "note", text + advice)]
    if not ranked:
        findings += _nonsense(played)
    changed = [(one, again) for one, again in repeated if again.rewards and again.rewards != one.rewards]
    if changed:
        one, again = changed[0]
        findings.append(
            Finding(
                CHECK,
                "warning",
                f"The same replies earn another reward the second time ({len(changed)} of {len(repeated)} episodes):"
                f" {one.reply.label} at train instance {one.index} earns {_spoken(one)}, then {_spoken(again)}."
                " Draw what is random from ep.rng or ep.noise.",
            )
        )
    return findings


def _nonsense(played: Sequence[Played]) -> list[Finding]:
    """A warning where an invalid reply earns more than one that was read, to the same instance."""
    scored = [(one, one.score, one.outcome) for one in played if one.score is not None]
    read = {one.index: (one, score) for one, score, outcome in _worst_last(scored) if outcome and not outcome.invalid}
    for one, score, outcome in scored:
        other, least = read.get(one.index, (one, score))
        if outcome is not None and outcome.invalid and score > least:
            text = f"It pays to be unreadable: at train instance {one.index} {one.reply.label} is invalid and earns"
            text += f" {score:.3g}, {other.reply.label} is not and earns {least:.3g}. Give Invalid a reward= below all."
            return [Finding(CHECK, "warning", text)]
    return []


def _worst_last(scored: list[_Scored]) -> list[_Scored]:
    return sorted(scored, key=lambda found: -found[1])


def _spoken(one: Played) -> str:
    """A reward, or those of several agents."""
    if len(one.rewards) == 1:
        return f"{one.score:.3g}"
    return ", ".join(f"{reward:.3g} ({agent})" for agent, reward in one.rewards.items())
