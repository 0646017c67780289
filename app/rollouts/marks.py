"""A group in a few signs: a bar for each member's reward, their mean and spread, and how stale it was. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from marlaas.engine.store import GroupSummary, MemberSummary

from ..words.format import BARS, score

FAILED, UNPAID = "✗", "·"
MOST = 16
"""Members that are shown; others are counted."""


def numbers(group: GroupSummary) -> str:
    """Mean and spread of the rewards."""
    return score(mean(group.rewards)) + (f" ±{score(spread(group.rewards))}" if len(group.rewards) > 1 else "")


def age(group: GroupSummary) -> str:
    """How many versions old it was when it was trained on; nothing where it was not."""
    return "" if group.staleness is None else f"{group.staleness} old" if group.staleness else "fresh"


def mean(rewards: Sequence[float]) -> float | None:
    """None where there are none."""
    return math.fsum(rewards) / len(rewards) if rewards else None


def spread(rewards: Sequence[float]) -> float | None:
    """Standard deviation over a group, as its advantages know it."""
    middle = mean(rewards)
    return None if middle is None else math.sqrt(math.fsum((r - middle) ** 2 for r in rewards) / len(rewards))


def marks(members: Sequence[MemberSummary]) -> list[tuple[str, str]]:
    """A mark for each member: the higher the bar, the more it was paid, of 0 to 1 or of what the group was paid."""
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
