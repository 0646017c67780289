"""The groups of a step: the instance, what each member was paid, how far they lie apart, how stale they were."""

from __future__ import annotations

import math
from collections.abc import Sequence

from textual.content import Content

from marlaas.engine.store.rollout_rows import EVAL, GroupSummary, MemberSummary

from ...format import BARS, line, pad, score
from ..virtual_list import VirtualList

FAILED, UNPAID = "✗", "·"
_MARKS = 16
"""Members that are shown; others are counted."""
_WITH_VERSION = 48
"""Cells from which on there is room for the environment's version."""


class GroupList(VirtualList[GroupSummary | str]):
    """Groups in the order of their numbers; a row that is text stands for all of them."""

    def row_text(self, row: GroupSummary | str, width: int) -> Content:
        """One group."""
        if isinstance(row, str):
            return Content.styled(row, "$text-muted")
        label = f"prompt {row.number}" if row.split == EVAL else f"{row.number}"
        age = "" if row.staleness is None else f"{row.staleness} old" if row.staleness else "fresh"
        numbers = f"{score(mean(row.rewards))}" + (f" ±{score(spread(row.rewards))}" if len(row.rewards) > 1 else "")
        version = f" {line(row.environment_version, 8)}" if width >= _WITH_VERSION else ""
        return Content.assemble(
            (pad(label, 9 if row.split == EVAL else 6), ""),
            (pad(f"i{row.instance}", 6), "$text-muted"),
            *((mark, style) for mark, style in marks(row.members)),
            " " * max(0, 8 - len(row.members)),
            pad(numbers, 11, right=True),
            (pad(age, 7, right=True), "$text-muted"),
            (version, "$text-muted"),
        )


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
    for member in members[:_MARKS]:
        if member.status not in ("ok", "skip"):
            found.append((FAILED, "$text-error"))
        elif member.reward is None or not math.isfinite(member.reward):
            found.append((UNPAID, "$text-muted"))
        else:
            place = int((member.reward - low) / (high - low) * len(BARS))
            found.append((BARS[min(len(BARS) - 1, place)], "$text-success" if member.reward > low else "$text-muted"))
    return found if len(members) <= _MARKS else [*found, (f"+{len(members) - _MARKS}", "$text-muted")]
