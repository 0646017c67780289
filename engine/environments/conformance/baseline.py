"""Check: rewards cannot be had without reading the prompt.

Each constant answer is given to many instances; the best of their mean scores is the constant-answer baseline. A policy
that does not score higher has learned nothing but that answer. Where agents play against each other it says nothing:
one of them wins whatever all of them say.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import permutations, product

from .finding import Finding, Level
from .pace import Pace
from .plays import Played, play
from .replies import CONSTANTS, Canned
from .subject import Subject

CHECK = "baseline"
HIGH = 0.5
"""Mean score from which a constant answer is worth a warning: rewards are mostly 0 to 1."""
BROKEN = 0.9
"""Mean score of a constant answer from which the environment teaches nothing."""
ALIKE = 0.05
CONTESTS = 4
"""Instances on which agents say different things."""
FEW = 16
"""Instances below which a result may be chance."""
_SCALE = 1.0
"""Largest reward up to which a mean score is taken as a share of what can be earned."""


@dataclass(frozen=True)
class Constant:
    """The mean score of one constant answer over instances."""

    reply: Canned
    mean: float
    instances: int


async def look(
    subject: Subject, indices: Sequence[int], without: Collection[Canned], pace: Pace, share: float
) -> list[Played]:
    """Give every constant answer, but those ``without`` a reward, to one instance after the other."""
    plan = product(indices, [reply for reply in CONSTANTS if reply not in without])
    return [await play(subject, index, reply, pace) async for index, reply in pace.take(plan, share)]


async def contests(subject: Subject, indices: Sequence[int], pace: Pace, share: float) -> list[Played]:
    """Play agents against each other that say different things: where all say the same a game may always be drawn."""
    plan = product(indices[:CONTESTS], permutations(CONSTANTS[:4], 2))
    return [await play(subject, index, one, pace, other) async for index, (one, other) in pace.take(plan, share)]


def constants(played: Sequence[Played]) -> list[Constant]:
    """The means by answer, best first; of two that are as good, the one that comes first in ``CONSTANTS``."""
    found = []
    for reply in CONSTANTS:
        scores = [one.score for one in played if one.reply == reply and one.score is not None]
        if scores:
            found.append(Constant(reply, math.fsum(scores) / len(scores), len(scores)))
    return sorted(found, key=lambda constant: -constant.mean)


def zero_sum(played: Sequence[Played]) -> float | None:
    """The sum of several agents' rewards, where it is the same in all episodes though the rewards change, or None."""
    rewards = {tuple(one.rewards.values()) for one in played if one.rewards}
    totals = [math.fsum(some) for some in rewards]
    same = all(math.isclose(total, totals[0], abs_tol=1e-9) for total in totals)
    return totals[0] if same and len(rewards) > 1 and any(max(some) > min(some) for some in rewards) else None


def judge(played: Sequence[Played], ranked: bool = False, contested: Sequence[Played] = ()) -> list[Finding]:
    """One finding about the best constant answer.

    ``ranked``: whether a ranking replaces these rewards in training. ``contested``: episodes in which several agents
    said different things.
    """
    found = constants(played)
    if not found:
        return []
    if (total := zero_sum([*played, *contested])) is not None:
        text = (
            f"What one agent wins another loses: their rewards sum to {total:.3g} whatever is said, so one answer from"
        )
        text += " all of them tells nothing. A task's score does, against an opponent under [eval] agents."
        return [Finding(CHECK, "note", text)]
    best, name = found[0], found[0].reply.label
    if len(found) > 1 and all(one.score == 0 for one in played if one.score is not None):
        return [Finding(CHECK, "note", f"No constant answer earns anything: {len(found)} were tried.")]
    many = f"{best.instances} instance{'' if best.instances == 1 else 's'}"
    text = f"{name[0].upper()}{name[1:]} scores {best.mean:.2f} on average over {many}"
    if best.mean < HIGH or best.instances < FEW:
        return [Finding(CHECK, "note", f"{text}: the best of {len(found)} constant answers.")]
    as_good = sum(constant.mean >= best.mean - ALIKE for constant in found) - 1
    others = f" {as_good} of {len(found) - 1} other constant answers do as well." if as_good else ""
    largest = max(abs(one.score) for one in played if one.score is not None)
    level: Level = "error" if best.mean >= BROKEN and largest <= _SCALE and not ranked else "warning"
    where = " In training the group's ranking counts instead." if ranked else ""
    return [Finding(CHECK, level, f"{text}: rewards can be had without reading the prompt.{others}{where}")]
