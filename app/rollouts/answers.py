"""What was asked and answered, in the cells of a list: the prompt, and the distinct replies with their counts.

All text in a row of the store is foreign; what comes out of here is safe. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from marlaas.engine.store import MemberSummary

from ..words.format import cells, clip, clip_start, line, score
from ..words.policies import PLAIN

RIGHT, WRONG, FAILED, UNPAID = "✓", "✗", "!", "·"
NOTHING = "(nothing)"
SHORTEST = 14
"""Cells below which a distinct reply is counted among the others instead of being shown."""
WORDY = 20
"""Cells from which on the others are called so, and not only counted."""
GAP = "  "
MOST = 200
"""Cells beyond which nobody asks how long a prompt is."""

Piece = tuple[str, str]
"""(safe text, style)."""


def mark(status: str, reward: float | None) -> Piece:
    """How an episode ended: right (a reward of 1 or more), wrong (0 or less), failed, or the reward between."""
    if status not in ("ok", "skip"):
        return FAILED, "$text-error"
    if reward is None or not math.isfinite(reward):
        return UNPAID, "$text-muted"
    if reward >= 1:
        return RIGHT, "$text-success"
    return (WRONG, "$text-error") if reward <= 0 else (score(reward), "$text-warning")


@dataclass(frozen=True)
class Answer:
    """A distinct reply of a group: what was said, how it was paid, and how often."""

    mark: Piece
    text: str
    """Safe, on one line."""
    count: int = 1
    quiet: bool = False
    """Whether the text is ours: there was no reply, or nothing in it."""
    name: str = ""
    """The agent that said it, where several replied; safe."""
    distinct: int = 0
    """The number of the reply among the distinct ones of the group."""

    @property
    def said(self) -> str:
        """The text, behind the agent's name where there is one."""
        return f"{self.name}: {self.text}" if self.name else self.text

    @property
    def ending(self) -> str:
        """The count, where it says something."""
        return f" ×{self.count}" if self.count > 1 else ""

    @property
    def width(self) -> int:
        """Cells of the whole."""
        return cells(self.mark[0]) + 1 + cells(self.said) + cells(self.ending)


def answer(status: str, reward: float | None, reply: str, replies: int) -> Answer:
    """A conversation's last reply, with its mark; of one that failed, how it ended."""
    marked, said = mark(status, reward), line(reply)
    if marked[0] == FAILED:
        return Answer(marked, f"{line(status, 12)}{': ' if said else ''}{said}", quiet=not said)
    return Answer(marked, said or (NOTHING if replies else "(no reply)"), quiet=not said)


def each_answer(members: Sequence[MemberSummary]) -> list[Answer]:
    """The last reply of each member; named where several agents replied."""
    several = len({member.agent for member in members if member.replies}) > 1
    found = []
    for member in members:
        one = answer(member.status, member.reward, member.reply, member.replies)
        name = line(member.agent, 12) if several and member.agent not in PLAIN else ""
        found.append(replace(one, name=name, distinct=member.distinct))
    return found


@lru_cache(512)  # drawn again and again while somebody scrolls
def answers(members: tuple[MemberSummary, ...]) -> list[Answer]:
    """The distinct last replies of a group's members, the most frequent first."""
    return _counted(each_answer(members))


def _counted(found: Sequence[Answer]) -> list[Answer]:
    """Equal ones as one, the most frequent first."""
    counts: dict[Answer, int] = {}
    for one in found:
        alone = replace(one, count=1)
        counts[alone] = counts.get(alone, 0) + one.count
    return sorted((replace(one, count=number) for one, number in counts.items()), key=lambda one: -one.count)


def answers_within(found: Sequence[Answer], room: int, gap: str = GAP) -> list[Piece]:
    """As many replies as fit into ``room`` cells, the others as a number; ``gap``: two cells between two of them.

    Agents are named where all replies fit with the names: what was said goes before who said it.
    """
    if not _all_fit(found, room):
        found = _counted([replace(one, name="") for one in found])
    shown = _shown(found, room)
    rest = f"{gap}{_others(len(found) - len(shown), room)}" if len(shown) < len(found) else ""
    widths = shares([one.width for one in shown], room - len(rest) - len(gap) * (len(shown) - 1))
    pieces: list[Piece] = []
    for place, (one, width) in enumerate(zip(shown, widths, strict=True)):
        text = middle(one.said, max(1, width - (one.width - cells(one.said))))
        pieces += [(gap if place else "", ""), one.mark, (f" {text}", "$text-muted" if one.quiet else "")]
        pieces.append((one.ending, "$text-muted"))
    return [*pieces, (rest, "$text-muted")]


def _others(number: int, room: int) -> str:
    """How many other replies there are, in words where these leave room for a reply."""
    return f"+{number}" if room < WORDY else f"+{number} other{'' if number == 1 else 's'}"


def _all_fit(found: Sequence[Answer], room: int) -> bool:
    return sum(one.width for one in found) + len(GAP) * (len(found) - 1) <= room


def _shown(found: Sequence[Answer], room: int) -> Sequence[Answer]:
    """The replies for which there is room: all in full, or as many as get ``SHORTEST`` cells; at least one."""
    if _all_fit(found, room):
        return found
    count, used = 1, min(found[0].width, SHORTEST)
    for one in found[1:]:
        used += len(GAP) + min(one.width, SHORTEST)
        if used + len(GAP) + len(_others(len(found) - 1, room)) > room:
            break
        count += 1
    return found[:count]


def middle(text: str, width: int) -> str:
    """Cut to ``width`` cells by leaving out what is between the beginning and the end, where answers stand."""
    if cells(text) <= width:
        return text
    begin = clip(text, width // 3 + 1)[:-1] if width >= SHORTEST // 2 else ""
    return begin + clip_start(text, width - cells(begin))


def shares(wanted: Sequence[int], room: int) -> list[int]:
    """``room`` divided among those who want so much of it: who wants less than an equal part leaves the rest."""
    given, left = [0] * len(wanted), max(0, room)
    for place, number in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        given[number] = min(wanted[number], left // (len(wanted) - place))
        left -= given[number]
    return given


@dataclass
class Prompts:
    """The prompts of a list: what nearly all of them begin with is left out where a whole prompt does not fit."""

    shared: str | None = None
    """What the prompts seen so far begin with; None before there were two different ones."""
    longest: int = 0
    """Cells of the longest of them, as far as a list can show it."""
    _first: str = ""

    def see(self, prompts: Iterable[str]) -> bool:
        """Take note of further prompts; returns whether that changes how prompts are shown."""
        before = self.shared, self.longest
        for text in filter(None, map(_flat, prompts)):
            self.longest = max(self.longest, min(MOST, cells(text)))
            self._first = self._first or text
            if self.shared is not None:
                self.shared = _beginning(self.shared, text)
            elif text != self._first:
                self.shared = _beginning(self._first, text)
        return (self.shared, self.longest) != before

    def within(self, prompt: str, room: int) -> str:
        """A prompt in at most ``room`` cells: whole, or what is its own, with as much of the rest before it as fits."""
        text = _flat(prompt)
        own = self.shared.rfind(" ") + 1 if self.shared else 0
        if cells(text) <= room or own <= 1:
            return clip(text, room)
        return clip_start(text, room) if cells(text[own:]) < room else clip(f"…{text[own:]}", room)


@lru_cache(1024)
def _flat(prompt: str) -> str:
    return line(prompt)


def _beginning(one: str, other: str) -> str:
    """What two texts begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return one[: next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))]
