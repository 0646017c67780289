"""A group in a few characters: a bar for each member's reward, their mean and spread, and its staleness. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from marlaas.engine.store import GroupSummary, MemberSummary

from ..words.format import BARS, score
from .answers import FAILED, UNPAID

MOST = 16
"""Members that are shown; the others are counted."""


def numbers(group: GroupSummary) -> str:
    """Mean and spread of the rewards."""
    return score(mean(group.rewards)) + (f" ±{score(spread(group.rewards))}" if len(group.rewards) > 1 else "")


def age(group: GroupSummary) -> str:
    """The staleness of a group in versions; empty where it was not trained on."""
    return "" if group.staleness is None else f"{group.staleness} old" if group.staleness else "fresh"


def mean(rewards: Sequence[float]) -> float | None:
    """The mean; None where there are no rewards."""
    return math.fsum(rewards) / len(rewards) if rewards else None


def spread(rewards: Sequence[float]) -> float | None:
    """The standard deviation over a group, as its advantages use it."""
    middle = mean(rewards)
    return None if middle is None else math.sqrt(math.fsum((r - middle) ** 2 for r in rewards) / len(rewards))


def marks(members: Sequence[MemberSummary]) -> list[tuple[str, str]]:
    """A bar for each member: the higher, the larger its reward, on a scale of 0 to 1 or of the group's rewards."""
    rewards = [m.reward for m in members if m.reward is not None and math.isfinite(m.reward)]
    low, high = min([0.0, *rewards]), max([1.0, *rewards])
    found = []
    for member in members[:MOST]:
        if member.status not in ("ok", "skip"):
            found.append((FAILED, "$text-error"))
        elif member.reward is None or not math.isfinite(member.reward):
            found.append((UNPAID, "$text-muted"))
        else:
            place = int((member.reward - low) / (high - low) * len(BARS))
            found.append((BARS[min(len(BARS) - 1, place)], "$text-success" if member.reward > low else "$text-muted"))
    return found if len(members) <= MOST else [*found, (f"+{len(members) - MOST}", "$text-muted")]
