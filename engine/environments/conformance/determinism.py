"""Check: an instance is the same each time, in every process and for every member of a group.

The advantage of an answer is its reward minus that of other answers to the same prompt; and a run that goes on draws
its instances anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marlaas.plugins.messages import Ask

from ..plugin import said
from ..protocol import EpisodeOutcome
from .draws import Draw, draw
from .finding import Finding
from .pace import Pace
from .subject import Subject

CHECK = "determinism"
INSTANCES = 5
"""Instances of each split that are drawn again."""
_SHOWN = 24
_BEFORE = 8

_AGAIN = (
    "changes when it is drawn again",
    "Draw from ep.rng alone, not from the module random, the time, or what earlier episodes left behind.",
)
_ELSEWHERE = (
    "changes in another process",
    "Draw from ep.rng alone: a process may begin with any instance, and forgets what the one before it knew.",
)
_NEIGHBOUR = (
    "differs between the members of a group",
    "Draw the task from ep.rng, which they share; ep.noise is for what happens after the first prompt.",
)


@dataclass(frozen=True)
class Repeats:
    """One instance, drawn four times."""

    first: Draw
    again: Draw
    """In the same process."""
    elsewhere: Draw
    """In a fresh process, and in another order."""
    neighbour: Draw
    """In the fresh process, by another member of the group."""


async def look(subject: Subject, seen: Sequence[Draw], pace: Pace, share: float) -> list[Repeats]:
    """Draw some instances that had a first prompt again; the subject then has a fresh process."""
    chosen = [one for split in ("train", "eval") for one in _some(seen, split)]
    again = [await draw(subject, one.split, one.index, pace) async for one in pace.take(chosen, share)]
    await subject.renew()
    repeats = []
    async for first, second in pace.take(reversed(list(zip(chosen, again, strict=False))), share):
        elsewhere = await draw(subject, first.split, first.index, pace)
        neighbour = await draw(subject, first.split, first.index, pace, member=1)
        repeats.append(Repeats(first, second, elsewhere, neighbour))
    return repeats[::-1]


def judge(repeats: Sequence[Repeats]) -> list[Finding]:
    """One error for each way in which instances change."""
    findings = []
    told: set[int] = set()  # what changes in one process changes in the next, and is reported once
    for (what, cure), pairs in (
        (_AGAIN, [(one.first, one.again) for one in repeats]),
        (_ELSEWHERE, [(one.first, one.elsewhere) for one in repeats]),
        (_NEIGHBOUR, [(one.elsewhere, one.neighbour) for one in repeats]),
    ):
        changed = [place for place, (one, other) in enumerate(pairs) if place not in told and _differ(one, other)]
        told.update(changed)
        if changed:
            one, other = pairs[changed[0]]
            findings.append(
                Finding(
                    CHECK,
                    "error",
                    f"The first prompt of {one.place} {what}: {_contrast(one, other)}."
                    f" {len(changed)} of {len(repeats)} instances do that. {cure}",
                )
            )
    if repeats and not findings:
        text = f"{len(repeats)} instances had the same first prompt again, in another process, and for another member."
        findings.append(Finding(CHECK, "note", text))
    return findings


def _some(seen: Sequence[Draw], split: str) -> list[Draw]:
    return [one for one in seen if one.split == split and one.prompt is not None][:INSTANCES]


def _differ(one: Draw, other: Draw) -> bool:
    return isinstance(one.reached, Ask) and one.reached != other.reached


def _contrast(one: Draw, other: Draw) -> str:
    """Both texts around the place where they begin to differ."""
    if isinstance(other.reached, EpisodeOutcome):
        failure = other.reached.failure
        return f"it has none then ({said(failure) if failure else other.reached.status})"
    first, second = _text(one), _text(other)
    if first == second:
        return "its tools, limits or agent differ"
    pairs = zip(first, second, strict=False)
    same = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
    start = max(0, same - _BEFORE)
    dots = "…" if start else ""
    return f"{dots + first[start : start + _SHOWN]!r}, then {dots + second[start : start + _SHOWN]!r}"


def _text(one: Draw) -> str:
    ask = one.reached
    return "\n".join(message.content for message in ask.messages) if isinstance(ask, Ask) else ""
