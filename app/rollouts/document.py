"""Long text in lines of any width, wrapped only as far as somebody looks.

A line is (block, start, stop), in blocks of safe text with styled stretches. A line of 100 kB costs no more than the
screen that shows its beginning. Knows no widget.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ..words.format import cells

LONGEST = 8
"""Characters for each cell of a line, at most: marks without a width could else pile up in one without end."""


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
    """In order and without overlap."""

    @cached_property
    def starts(self) -> list[int]:
        """Where the stretches start."""
        return [stretch.start for stretch in self.stretches]

    def styled(self, start: int, stop: int) -> list[Stretch]:
        """The stretches of a part of the block, counted from the part's beginning."""
        first = max(0, bisect_right(self.starts, start) - 1)
        last = bisect_left(self.starts, stop)
        return [
            Stretch(max(0, s.start - start), min(stop, s.stop) - start, s.style)
            for s in self.stretches[first:last]
            if s.stop > start
        ]


@dataclass(frozen=True)
class Line:
    """The characters of a block that fit into one line."""

    block: int
    start: int
    stop: int


@dataclass
class Layout:
    """Blocks in lines of ``width`` cells, as many as were asked for so far."""

    blocks: Sequence[Block]
    width: int
    lines: list[Line] = field(default_factory=list)
    whole: bool = False
    """Whether all lines have been wrapped."""

    def __post_init__(self) -> None:
        self._more = self._wrap()

    def reach(self, count: int) -> None:
        """Wrap until there are so many lines, or all."""
        while len(self.lines) < count and not self.whole:
            line = next(self._more, None)
            if line is None:
                self.whole = True
            else:
                self.lines.append(line)

    def line_of(self, block: int, offset: int) -> int:
        """The number of the line that holds a character of a block."""
        while not self.whole and (not self.lines or (self.lines[-1].block, self.lines[-1].stop) <= (block, offset)):
            self.reach(len(self.lines) + 100)
        found = bisect_right(self.lines, (block, offset), key=lambda line: (line.block, line.start))
        return max(0, found - 1)

    def _wrap(self) -> Iterator[Line]:
        for number, block in enumerate(self.blocks):
            for start, stop in wrapped(block.text, self.width):
                yield Line(number, start, stop)


def wrapped(text: str, width: int) -> Iterator[tuple[int, int]]:
    """Where the lines of ``text`` begin and end; they are broken after a space where there is one."""
    start = 0
    while start <= len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
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
    """The end of the characters from ``start`` on that fill a line; at least one character fits."""
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
    """Where a word occurs in a text, whatever the case."""
    return [found.span() for found in re.finditer(re.escape(needle), text, re.IGNORECASE)] if needle else []
