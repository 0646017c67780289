"""How much of a process's time an episode may be charged with: its own, and nobody else's.

An episode's own time is the processor time that its code took, and the time that it waited for what it called. The
second cannot be seen directly. It is bounded by the time in which this process neither computed nor waited for a core,
and in which no other episode kept the loop: ``Meter``. So time that siblings, the interpreter's lock or a busy machine
took is never charged; where they take much, an episode's waiting counts for less than it was.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, Protocol

from .delays import added, delay_of, delays_and_programs, waits_for_core

TICK = 0.5
"""Seconds between two looks at the process while episodes are under way."""
PROGRAMS = 0.125
"""Share of a time that programs computed from which all of it counts as computing: how long a program waited for a core
is not known once it has ended."""

STARTED = 0.02
"""The same where the question is whether a process waits for others: a program that only does so computes less."""


@dataclass(frozen=True)
class Reading:
    """The process at one moment."""

    wall: float
    """Monotonic seconds."""
    processor: float
    """Processor seconds of all its threads so far."""
    delays: dict[int, float] = field(default_factory=dict)
    """Seconds that each thread has waited for a core so far, those of what it started included."""
    programs: float = 0.0
    """Processor seconds of programs that it started and waited for."""
    running: float = 0.0
    """Processor seconds of those that run."""


def read_process() -> Reading:
    """This process now."""
    times, (waits, running) = os.times(), delays_and_programs()
    programs = times.children_user + times.children_system
    return Reading(time.monotonic(), time.process_time(), waits, programs, running)


def idle_between(before: Reading, after: Reading) -> float:
    """Seconds between two readings in which nothing of the process computed or waited for a core; at least that."""
    wall = after.wall - before.wall
    return max(0.0, wall - (after.processor - before.processor) - added(before.delays, after.delays))


def quiet_between(before: Reading, after: Reading) -> float:
    """Seconds between two readings in which neither the process nor a program of it computed or waited for a core.

    0 where programs computed, and where the system does not say who waits for a core.
    """
    programs = after.programs + after.running - before.programs - before.running
    if not after.delays or programs > STARTED * (after.wall - before.wall):
        return 0.0
    return idle_between(before, after)


def spent_between(before: Reading, after: Reading) -> tuple[float, float]:
    """Seconds between two readings that a process computed, with its programs, and that it waited for others.

    Those in which it waited for a core are in neither.
    """
    wall, programs = after.wall - before.wall, after.programs - before.programs
    if programs > PROGRAMS * wall:
        return wall, 0.0
    waited = max(0.0, idle_between(before, after) - programs)
    return min(wall - waited, after.processor - before.processor + programs), waited


Verdict = Literal["", "own", "wall"]
"""Whether an episode's time is up: not yet, its own is, or so much passed that it ends in any case."""


class Limit(Protocol):
    """What bounds the own time of an episode."""

    def verdict(self, more: float) -> Verdict:
        """Whether it is used up, given that so many processor seconds are not yet in the usage."""


_threads_change = threading.Lock()


class Usage:
    """What one episode has used: on the loop, and in threads that run for it."""

    __slots__ = ("_ended", "_threads", "blocked", "limit", "on_loop")

    def __init__(self) -> None:
        self.on_loop = 0.0
        """Processor seconds of its steps on the loop that have ended."""
        self.blocked = 0.0
        """Seconds in which its steps kept the loop without computing."""
        self.limit: Limit | None = None
        self._threads: dict[int, tuple[int | None, float]] = {}
        """Threads that run for it: clock and processor seconds at the beginning, by a number for each."""
        self._ended = 0.0
        """Processor seconds of threads that have ended."""

    @property
    def threads(self) -> int:
        """How many threads run for it."""
        return len(self._threads)

    @property
    def processor(self) -> float:
        """Processor seconds so far, but for the step that is under way."""
        running = 0.0
        if self._threads:
            with _threads_change:
                running = sum(_clock_of(clock) - began for clock, began in self._threads.values() if clock is not None)
        return self.on_loop + self._ended + running

    def enter_thread(self) -> None:
        """From now on, charge what this thread computes, until it calls ``leave_thread``."""
        me = threading.get_ident()
        clock = time.pthread_getcpuclockid(me) if hasattr(time, "pthread_getcpuclockid") else None
        with _threads_change:
            self._threads[me] = clock, time.thread_time()

    def leave_thread(self) -> None:
        """This thread goes on for somebody else, or ends."""
        with _threads_change:
            _, began = self._threads.pop(threading.get_ident())
            self._ended += time.thread_time() - began


def _clock_of(clock: int) -> float:
    try:
        return time.clock_gettime(clock)
    except OSError:  # the thread has just ended
        return 0.0


CURRENT: ContextVar[Usage | None] = ContextVar("marlaas_usage", default=None)
"""Whose code is running; tasks and threads of an episode inherit it."""


class Meter:
    """What all episodes of a process share: its idle time, and who keeps the loop."""

    def __init__(self, read: Callable[[], Reading] = read_process) -> None:
        self.blocked = 0.0
        """Seconds in which steps of any episode kept the loop without computing."""
        self._asleep = self._delayed = 0.0
        """Seconds of that in which they did not wait for a core either, and for which the loop's thread had waited for
        one by the end of the last of them."""
        self.step: tuple[Usage, float, float] | None = None
        """Whose step is under way on the loop, with the loop's processor seconds and the time at its beginning."""
        self.ended = 0.0
        """Processor seconds of the loop's thread when the last step ended."""
        self._read = read
        self._lock = threading.Lock()
        self._last = read()
        self._known = (self._last.wall, 0.0, 0.0)
        """When the process was last looked at, its idle seconds by then, and the idle share of the time before."""
        self._quiet = 0.0, 0.0
        """Its quiet seconds by then, and the quiet share of the time before."""

    def kept(self, seconds: float) -> None:
        """A step of the thread that calls has kept the loop for so long without computing."""
        self.blocked += seconds
        delayed = delay_of(threading.get_native_id())
        self._asleep += max(0.0, seconds - (delayed - self._delayed))
        self._delayed = delayed

    def asleep(self, now: float, thread: int, computed: float) -> float:
        """Seconds so far in which steps kept the loop, and neither computed nor waited for a core.

        ``thread``: the native id of the loop's, ``computed``: its processor seconds so far. Any thread may ask.
        """
        step = self.step
        if step is None or waits_for_core(thread):
            return self._asleep
        _, began, wall = step
        return self._asleep + max(0.0, now - wall - (computed - began) - (delay_of(thread) - self._delayed))

    def look(self, now: float) -> None:
        """Look at the process, at most once a tick; any thread may call this."""
        if now - self._known[0] < TICK or not self._lock.acquire(blocking=False):
            return
        try:
            reading = self._read()
            idle, quiet = idle_between(self._last, reading), quiet_between(self._last, reading)
            lasted = reading.wall - self._last.wall
            self._quiet = self._quiet[0] + quiet, quiet / lasted if lasted > 0 else 0.0
            self._known = (reading.wall, self._known[1] + idle, idle / lasted if lasted > 0 else 0.0)
            self._last = reading
        finally:
            self._lock.release()

    def free(self, now: float) -> float:
        """Seconds so far in which the process was idle and nobody kept the loop: since the last look as before it."""
        wall, seconds, share = self._known
        return seconds + (now - wall) * share - self.blocked

    def quiet(self, now: float) -> float:
        """Seconds so far in which neither the process nor what it started computed or wanted to: likewise."""
        seconds, share = self._quiet
        return seconds + (now - self._known[0]) * share


METER = Meter()
"""That of this process."""
