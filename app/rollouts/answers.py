"""Replies of a model as rows of a list and as wrapped lines."""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from marlaas.engine.store.queries.episodes import GroupSummary, MemberSummary, StoredConversation

from ..text.format import BARS, cells, clip, clip_start, line, pad, score
from ..text.tasks import PLAIN

LONGEST = 8
"""Characters of a cell: marks without a width could pile up without end."""


@dataclass(frozen=True)
class Stretch:
    """Characters ``start`` to ``stop`` in a style."""

    start: int
    stop: int
    style: str


@dataclass(frozen=True)
class Block:
    """Text with newlines, safe to show."""

    text: str
    style: str = ""
    stretches: Sequence[Stretch] = ()
    """In order, without overlap."""

    @cached_property
    def starts(self) -> list[int]:
        return [stretch.start for stretch in self.stretches]

    def styled(self, start: int, stop: int) -> list[Stretch]:
        """The stretches of a part, counted from its beginning."""
        first = max(0, bisect_right(self.starts, start) - 1)
        last = bisect_left(self.starts, stop)
        return [
            Stretch(max(0, s.start - start), min(stop, s.stop) - start, s.style)
            for s in self.stretches[first:last]
            if s.stop > start
        ]


class Line(NamedTuple):
    """Characters of a block that fit into a line."""

    block: int
    start: int
    stop: int


def lines_of(blocks: Sequence[Block], width: int) -> list[Line]:
    """Blocks in lines of ``width`` cells; slow for long texts."""
    return [Line(number, *ends) for number, block in enumerate(blocks) for ends in wrapped(block.text, width)]


def wrapped(text: str, width: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of each line, broken after spaces if possible."""
    start = 0
    while start <= len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        if end - start <= width and text[start:end].isascii():  # a megabyte may be short lines
            yield start, end
        else:
            yield from _broken(text, start, end, max(1, width))
        start = end + 1


def _broken(text: str, start: int, end: int, width: int) -> Iterator[tuple[int, int]]:
    while True:
        stop = _fitting(text, start, end, width)
        if stop >= end:
            yield start, end
            return
        space = text.rfind(" ", start, stop + 1)
        if space > start:
            yield start, space
            start = space + 1
        else:
            yield start, stop
            start = stop


def _fitting(text: str, start: int, end: int, width: int) -> int:
    """The end of the characters that fill a line; at least one fits."""
    window = text[start : min(end, start + LONGEST * width)]
    if window[: width + 1].isascii():
        return start + min(width, len(window))
    used = 0
    for place, character in enumerate(window):
        used += cells(character)
        if used > width and place:
            return start + place
    return start + len(window)


def occurrences(text: str, needle: str) -> list[tuple[int, int]]:
    """(start, stop) of each occurrence, ignoring case."""
    return [found.span() for found in re.finditer(re.escape(needle), text, re.IGNORECASE)] if needle else []


MOST_MARKS = 16
"""Shown members."""


def numbers(group: GroupSummary) -> str:
    """Mean ± spread of the rewards."""
    return score(mean(group.rewards)) + (f" ±{score(spread(group.rewards))}" if len(group.rewards) > 1 else "")


def age(group: GroupSummary) -> str:
    """Staleness in versions; empty if not trained on."""
    return "" if group.staleness is None else f"{group.staleness} old" if group.staleness else "fresh"


def mean(rewards: Sequence[float]) -> float | None:
    """None without rewards."""
    return math.fsum(rewards) / len(rewards) if rewards else None


def spread(rewards: Sequence[float]) -> float | None:
    """The standard deviation over a group, as advantages use it."""
    middle = mean(rewards)
    return None if middle is None else math.sqrt(math.fsum((r - middle) ** 2 for r in rewards) / len(rewards))


def marks(members: Sequence[MemberSummary]) -> list[tuple[str, str]]:
    """A bar for each member's reward, on a scale of 0 to 1 or the group's range."""
    rewards = [m.reward for m in members if m.reward is not None and math.isfinite(m.reward)]
    low, high = min([0.0, *rewards]), max([1.0, *rewards])
    found = []
    for member in members[:MOST_MARKS]:
        if member.status not in ("ok", "skip"):
            found.append((FAILED, "$text-error"))
        elif member.reward is None or not math.isfinite(member.reward):
            found.append((UNPAID, "$text-muted"))
        else:
            place = int((member.reward - low) / (high - low) * len(BARS))
            found.append((BARS[min(len(BARS) - 1, place)], "$text-success" if member.reward > low else "$text-muted"))
    return found if len(members) <= MOST_MARKS else [*found, (f"+{len(members) - MOST_MARKS}", "$text-muted")]


# Rows of the store are foreign text; what is returned is safe.

RIGHT, WRONG, FAILED, UNPAID = "✓", "✗", "!", "·"
NOTHING = "(nothing)"
SHORTEST = 14
"""Cells below which a reply is counted instead of shown."""
WORDY = 20
"""Cells from which "others" is spelled out."""
GAP = "  "
MOST_ASKED = 200
"""Cells beyond which a prompt's length does not matter."""

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
    """A distinct reply of a group."""

    mark: Piece
    text: str
    """Safe, one line."""
    count: int = 1
    quiet: bool = False
    """True if the text is ours: no or an empty reply."""
    name: str = ""
    """The agent, if several replied; safe."""
    distinct: int = 0
    """Its number among the group's distinct replies."""

    @property
    def said(self) -> str:
        """The text after the agent's name."""
        return f"{self.name}: {self.text}" if self.name else self.text

    @property
    def ending(self) -> str:
        return f" ×{self.count}" if self.count > 1 else ""

    @property
    def width(self) -> int:
        """Cells."""
        return cells(self.mark[0]) + 1 + cells(self.said) + cells(self.ending)


def answer(status: str, reward: float | None, reply: str, replies: int) -> Answer:
    """The last reply with its mark; of a failure, its status."""
    marked, said = mark(status, reward), line(reply)
    if marked[0] == FAILED:
        return Answer(marked, f"{line(status, 12)}{': ' if said else ''}{said}", quiet=not said)
    return Answer(marked, said or (NOTHING if replies else "(no reply)"), quiet=not said)


def by_answer(members: Sequence[MemberSummary]) -> dict[Answer, list[MemberSummary]]:
    """The members who gave each distinct last reply, the most frequent first; named if several agents replied."""
    several = len({member.agent for member in members if member.replies}) > 1
    groups: dict[Answer, list[MemberSummary]] = {}
    for member in members:
        reply = answer(member.status, member.reward, member.reply, member.replies)
        name = line(member.agent, 12) if several and member.agent not in PLAIN else ""
        groups.setdefault(replace(reply, name=name, distinct=member.distinct), []).append(member)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


@lru_cache(512)  # drawn again and again while somebody scrolls
def answers(members: tuple[MemberSummary, ...]) -> list[Answer]:
    """Distinct last replies with their counts, the most frequent first."""
    return [replace(reply, count=len(of)) for reply, of in by_answer(members).items()]


def answers_within(found: Sequence[Answer], room: int, gap: str = GAP) -> list[Piece]:
    """As many replies as fit into ``room`` cells, the others as a number.

    Agents are named if all replies fit with their names.
    """
    if not _all_fit(found, room):
        counts = Counter[Answer]()
        for one in found:
            counts[replace(one, name="", count=1)] += one.count
        found = [replace(one, count=count) for one, count in counts.most_common()]
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
    """The number of others, in words if there is room."""
    return f"+{number}" if room < WORDY else f"+{number} other{'' if number == 1 else 's'}"


def _all_fit(found: Sequence[Answer], room: int) -> bool:
    return sum(one.width for one in found) + len(GAP) * (len(found) - 1) <= room


def _shown(found: Sequence[Answer], room: int) -> Sequence[Answer]:
    """All replies in full, or as many as get ``SHORTEST`` cells; at least one."""
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
    """Cut out the middle: an answer stands at the beginning or the end."""
    if cells(text) <= width:
        return text
    begin = clip(text, width // 3 + 1)[:-1] if width >= SHORTEST // 2 else ""
    return begin + clip_start(text, width - cells(begin))


def shares(wanted: Sequence[int], room: int) -> list[int]:
    """Divide ``room`` equally; what one does not need goes to the others."""
    given, left = [0] * len(wanted), max(0, room)
    for place, number in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        given[number] = min(wanted[number], left // (len(wanted) - place))
        left -= given[number]
    return given


@dataclass
class Prompts:
    """Prompts of a list without their common beginning, if a whole prompt does not fit."""

    shared: str | None = None
    """The common beginning; None before two different prompts."""
    longest: int = 0
    """Cells."""
    _first: str = ""

    def see(self, prompts: Iterable[str]) -> bool:
        """Add prompts; True if that changes how prompts are shown."""
        before = self.shared, self.longest
        for text in filter(None, map(_flat, prompts)):
            self.longest = max(self.longest, min(MOST_ASKED, cells(text)))
            self._first = self._first or text
            if self.shared is not None:
                self.shared = _beginning(self.shared, text)
            elif text != self._first:
                self.shared = _beginning(self._first, text)
        return (self.shared, self.longest) != before

    def within(self, prompt: str, room: int) -> str:
        """A prompt in ``room`` cells, its own part first."""
        text = _flat(prompt)
        own = self.shared.rfind(" ") + 1 if self.shared else 0
        if cells(text) <= room or own <= 1:
            return clip(text, room)
        return clip_start(text, room) if cells(text[own:]) < room else clip(f"…{text[own:]}", room)


@lru_cache(1024)
def _flat(prompt: str) -> str:
    return line(prompt)


def _beginning(one: str, other: str) -> str:
    """The common beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return one[: next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))]


MOST_REPLIES = 32
"""Shown distinct replies."""
HERE, ELSEWHERE = "▸ ", "  "


def group_replies(group: GroupSummary, shown: StoredConversation) -> list[Block]:
    """Blocks below a conversation: each distinct reply of its group with rewards and count; none for a lone
    conversation."""
    if len(group.members) < 2:
        return []
    found = list(by_answer(group.members).items())
    distinct = f"{len(found)} different" if len(found) > 1 else "all the same"
    title = f"The {len(group.members)} last replies of group {group.number}, {distinct} · mean reward {numbers(group)}"
    left = len(found) - MOST_REPLIES
    more = [Block(f"{ELSEWHERE}and {left} other{'' if left == 1 else 's'}", "$text-muted")] if left > 0 else []
    rewards = [_rewards(of) for _, of in found[:MOST_REPLIES]]
    wide, own = max(map(cells, rewards)), (shown.member, shown.agent)
    lines = []
    for (reply, of), reward in zip(found, rewards, strict=False):
        sign, style = reply.mark
        sign = sign if sign in (RIGHT, WRONG, FAILED, UNPAID) else " "
        begin = HERE if own in [(member.member, member.agent) for member in of] else ELSEWHERE
        paid = f"{begin}{sign} {pad(reward, wide, right=True)} {pad(f'×{len(of)}', 4)} "
        quiet = [Stretch(len(paid), len(paid) + len(reply.said), "$text-muted")] if reply.quiet else []
        lines.append(Block(f"{paid}{reply.said}", "", [Stretch(len(begin), len(paid), style), *quiet]))
    return [Block(""), Block(title, "$text-accent"), *lines, *more]


def _rewards(members: Sequence[MemberSummary]) -> str:
    """One reward, or lowest to highest."""
    known = [each.reward for each in members if each.reward is not None and math.isfinite(each.reward)]
    low, high = score(min(known, default=None)), score(max(known, default=None))
    return low if low == high else f"{low} to {high}"
