"""The queue as plain text, drawn before Textual loads: a second or more on a busy machine.

Lines stand as in the first view, so nothing jumps. Imports nothing that draws.
"""

from __future__ import annotations

import os
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

from marlaas.engine.errors import MarlaasError
from marlaas.engine.home.paths import Home
from marlaas.engine.store.rows import EngineRow

from ...lists.lines import (
    AROUND,
    Arrangement,
    Courses,
    QueueLine,
    arrange,
    cell_text,
    filling,
    layout,
    lower_part,
    read_course,
    second_line,
    title,
)
from ...reading import reading
from ...text.format import cells, clip
from ...text.tasks import liveness

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"


class FirstFrame:
    """A terminal with the first frame. Thread-safe."""

    def __init__(self, attributes: list[Any]) -> None:
        self.attributes = attributes
        """How the terminal was before."""
        self.taken = False
        """Whether the application has gone on with it, and leaves it by itself."""
        self._lock = threading.Lock()
        self._shown = False
        self._waiting: list[Callable[[], None]] = []

    def then(self, do: Callable[[], None]) -> None:
        """Run ``do`` once the application shows: whoever sees a task may press enter at once."""
        with self._lock:
            if not self._shown:
                self._waiting.append(do)
                return
        do()

    def shown(self) -> None:
        with self._lock:
            self._shown = True
            for do in self._waiting:
                do()


@contextmanager
def first_frame(home: Home, demo: bool, readonly: bool) -> Iterator[FirstFrame | None]:
    """Draw the first frame, restore the terminal at the end; None if impossible.

    Keeps pressed keys for the application.
    """
    screen = sys.__stderr__  # where Textual draws
    try:
        size = os.get_terminal_size(screen.fileno() if screen else -1)
        if not size.columns:
            raise OSError("the terminal does not know its size")
        frame = "\r\n".join(lines_of(home, title_of(demo, readonly), size.columns, size.lines, time.time()))
        before = termios.tcgetattr(sys.__stdin__.fileno() if sys.__stdin__ else -1)
    except (OSError, termios.error, MarlaasError):  # the application explains what is wrong
        yield None
        return
    assert screen and sys.__stdin__
    first = FirstFrame(before)
    keyboard, quiet = sys.__stdin__.fileno(), list(before)
    quiet[0] &= ~termios.ICRNL  # else enter comes as ctrl+j
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    try:
        termios.tcsetattr(keyboard, termios.TCSANOW, quiet)
        screen.write(f"{ENTER}\x1b[2J\x1b[H\x1b[?25l{frame}")
        screen.flush()
        yield first
    finally:
        if not first.taken:
            screen.write(f"{LEAVE}\x1b[?25h")
            screen.flush()
        termios.tcsetattr(keyboard, termios.TCSANOW, before)


def title_of(demo: bool, readonly: bool) -> str:
    """The application's title."""
    return f"marlaas{' demo' if demo else ''}{', read-only' if readonly else ''}"


def lines_of(home: Home, name: str, width: int, height: int, now: float) -> list[str]:
    """The upper part of the first view, without colours. Raises ``MarlaasError`` for an unreadable home."""
    with reading(home) as reader:
        tasks = reader.tasks() if reader is not None else []
        engine = reader.engine() if reader is not None else None
        alive = liveness(engine, now).alive
        shown = _in_sight(arrange(tasks, Arrangement()), height)
        in_sight = {task.id: task for line in shown for task in line.tasks}
        courses = {number: read_course(reader, task) for number, task in in_sight.items() if reader is not None}
    return [_first(name, engine, width, now), "", *_table(shown, courses, alive, width)][: height - 1]


def _first(name: str, engine: EngineRow | None, width: int, now: float) -> str:
    said = "opening …" if engine is None else f"opening …  engine: {liveness(engine, now).text}"
    text = clip(f" {name}", width)
    return text + " " * max(1, width - cells(text) - cells(said) - 1) + said


def _in_sight(lines: Sequence[QueueLine], height: int) -> list[QueueLine]:
    ends = list(accumulate(2 if second_line(line) else 1 for line in lines))
    room = lower_part(height, 1 + max(ends, default=0))
    left = (height - AROUND if room is None else room[0]) - 1
    return [line for line, end in zip(lines, ends, strict=True) if end <= left]


def _table(shown: Sequence[QueueLine], courses: Courses, alive: bool, width: int) -> list[str]:
    if not shown:
        return []
    columns = layout(width)
    drawn = ["".join(title(column) for column in columns)]
    for line in shown:
        drawn.append("".join(filling(column, cell_text(line, courses, alive, False, column)) for column in columns))
        if below := second_line(line):
            drawn.append(clip(below, sum(column.width + 1 for column in columns)))
    return [f" {text}".rstrip() for text in drawn]
