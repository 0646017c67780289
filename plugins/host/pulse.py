"""A thread that answers for the interpreter: that it runs, the delay of its loop, and the lines that hold it.

At each tick it also checks the step that holds the loop: one without time left is interrupted.

The engine sends one byte for each request: ``?`` asks for an answer, ``+`` begins to watch the lines that hold the
loop, and ``-`` ends that; the answer has the result.
"""

from __future__ import annotations

import asyncio
import json
import math
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from types import FrameType
from typing import Any

from .channel import Record
from .meter import METER, PROGRAMS, TICK, Meter, Verdict, delay_of, read_process, thread_clock

STUBBORN = 2.0
"""Processor seconds, beyond its episode's time, of a step that continues although it is interrupted at every tick."""
HELD = 5.0
"""Processor seconds in which this thread never ran: compiled code holds the interpreter."""
INTERVAL = 0.004
"""Seconds between two looks at the loop's stack: a block of 50 ms is seen a dozen times."""
MOST_PLACES = 20
EVERY = 0.1

Place = tuple[str, int, int]
"""See ``Blame.place``."""


class Lateness:
    """The largest delay of a loop in seconds, by a timer that runs while anything is in progress."""

    def __init__(self, loop: asyncio.AbstractEventLoop, playing: Callable[[], bool]) -> None:
        """``playing``: True if anything is in progress; the timer stops otherwise."""
        self._loop = loop
        self._playing = playing
        self._due: float | None = None
        self._most = 0.0

    def watch(self) -> None:
        if self._due is None:
            self._due = self._loop.time() + EVERY
            self._loop.call_at(self._due, self._called)

    def take(self) -> float:
        """The largest delay since the last call, a due call of the timer included; any thread may ask."""
        most, self._most = self.most, 0.0
        return most

    @property
    def most(self) -> float:
        due = self._due
        return max(self._most, 0.0 if due is None else self._loop.time() - due)

    def _called(self) -> None:
        self._most, self._due = self.most, None
        if self._playing():
            self.watch()


class Pulse:
    """The thread and its state."""

    def __init__(
        self,
        connection: socket.socket,
        late: Callable[[], float],
        playing: Callable[[], bool],
        tidy: Callable[[], bool],
        place: Callable[[FrameType | None], Place | None],
        meter: Meter = METER,
    ) -> None:
        """``late``: largest delay of the loop since the last call; ``playing``: True if anything runs; ``tidy`` is
        called at each tick, and returns True to be called again even without work; ``place``: see ``Blame.place``.
        """
        self._connection = connection
        self._late = late
        self._playing = playing
        self._tidy = tidy
        self._place = place
        self._meter = meter
        self._main = threading.current_thread()
        self._clock = thread_clock(threading.get_ident())
        self._ran = 0.0
        """The process's processor seconds when this thread last ran."""
        self._stubborn = False
        self._places: defaultdict[Place, float] | None = None
        """Seconds in which the loop was held, by place, during a watch."""
        self._looked = 0.0, 0.0
        """Time of the last look, and the seconds that the loop's thread had waited for a core by then."""
        self._before = read_process(), 0.0
        """The process at the last answer, and the seconds that steps had held its loop."""

    def start(self) -> None:
        threading.Thread(target=self._run, name="pulse", daemon=True).start()

    @property
    def held(self) -> bool:
        return time.process_time() - self._ran > HELD

    def verdict(self, beyond: float = 0.0) -> Verdict:
        """The verdict on the running step's episode, ``beyond`` its time by more processor seconds.

        Any thread may ask.
        """
        step = self._meter.step
        if step is None or self._clock is None:
            return ""
        usage, began, _ = step
        limit = usage.limit
        return limit.verdict(time.clock_gettime(self._clock) - began - beyond) if limit is not None else ""

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        again, due = True, 0.0
        while True:
            watching = self._places is not None
            ready = poll.poll(1000 * INTERVAL if watching else 1000 * TICK if again else None)
            self._ran, now = time.process_time(), time.monotonic()
            try:
                self._look(now)
                if ready or now >= due:
                    due, untidy = now + TICK, self._tick(now)
                    if ready and not self._answer(now):
                        return
                    again = bool(ready) or untidy or self._playing()
            except Exception:  # no memory, above all: the next tick may have some
                traceback.print_exc()

    def _tick(self, now: float) -> bool:
        self._meter.look(now)
        untidy = self._tidy()
        self._stubborn = False
        if self.verdict():
            self._stubborn = self.verdict(STUBBORN) == "own"
            signal.pthread_kill(self._main.ident or 0, signal.SIGUSR1)
        return untidy

    def _look(self, now: float) -> None:
        """Charge the time since the last look to the plugin's place that holds the loop, if any.

        Time of waiting for a core is the machine's, and left out.
        """
        if self._places is not None:
            place = self._place(sys._current_frames().get(self._main.ident or 0))
            (looked, waited), self._looked = self._looked, (now, delay_of(self._main.native_id or 0))
            if place is not None:
                self._places[place] += max(0.0, now - looked - (self._looked[1] - waited))

    def _answer(self, now: float) -> bool:
        try:
            if not (wishes := self._connection.recv(4096)):
                return False
            beat: dict[str, Any] = {"late": self._late(), "stubborn": self._stubborn, "asleep": self._asleep(now)}
            if b"+" in wishes:
                self._places, self._looked = defaultdict(float), (now, delay_of(self._main.native_id or 0))
            if b"-" in wishes:
                places, self._places = self._places, None
                beat["watched"] = busiest(places or {})
            self._connection.sendall(json.dumps(beat).encode() + b"\n")
        except OSError:
            return False
        return True

    def _asleep(self, now: float) -> float:
        """Seconds since the last call in which code held the loop, and waited for neither a core nor a program."""
        reading, kept, step = read_process(), self._meter.blocked, self._meter.step
        if step is not None and self._clock is not None:
            _, began, wall = step
            kept += max(0.0, now - wall - (time.clock_gettime(self._clock) - began))
        (before, kept_before), self._before = self._before, (reading, kept)
        main = self._main.native_id or 0
        delayed = reading.delays.get(main, 0.0) - before.delays.get(main, 0.0)
        if not reading.delays or reading.programs - before.programs > PROGRAMS * (reading.wall - before.wall):
            return 0.0
        return max(0.0, kept - kept_before - delayed)


def busiest(places: dict[Place, float]) -> list[Record]:
    """The functions that held the loop longest, each with its longest line."""
    functions: defaultdict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)
    for (file, function, line), seconds in places.items():
        functions[file, function].append((seconds, line))
    summed = [(math.fsum(s for s, _ in lines), file, max(lines)[1]) for (file, _), lines in functions.items()]
    longest = sorted(summed, key=lambda place: -place[0])[:MOST_PLACES]
    return [{"file": file, "line": line, "seconds": seconds} for seconds, file, line in longest]
