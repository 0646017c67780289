"""An episode's own time (computing and waiting), its time limit, and how steps are charged.

Own time is the processor time of its code, and the time that it waited for its own calls. The second is bounded by the
time in which this process neither computed nor waited for a core, and no other episode held the loop: ``Meter``. So the
time of siblings, the interpreter's lock or a busy machine is never charged.
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from time import monotonic, thread_time
from types import FrameType, TracebackType
from typing import Any, Literal

from ..sandbox_supervisor import children, wall_limit
from .channel import Record

TICK = 0.5
"""Seconds between two looks at the process while episodes are in progress."""
SOONEST = 0.05
"""Seconds between two looks at an episode that has used almost all of its time."""
PROGRAMS = 0.02
"""Share of a time computed by programs from which the process counts as not waiting: one that waits for others computes
less.
"""
_BLOCKED = 0.005
"""Seconds that a step may take beyond its processor time before it counts as having held the loop."""
_BETWEEN = 1e-4
"""Most processor seconds that a step is charged for the loop's work before it. An episode that does nothing but repeat
steps takes the loop's time, and hardly any of its own. Other work of the loop there is charged to nobody.
"""
_MOST_PROCESSES = 1000
"""Child processes counted at one look: endless multiplication must not hold up the look."""

Verdict = Literal["", "own", "wall"]
"""Verdict on an episode's time: not up, its own is, or the wall limit has passed."""


@dataclass(frozen=True)
class Reading:
    """The process at one moment."""

    wall: float
    """Monotonic seconds."""
    processor: float
    """Processor seconds of all its threads so far."""
    delays: dict[int, float] = field(default_factory=dict)
    """Seconds that each thread, also of child processes, has waited for a core so far; only on Linux."""
    programs: float = 0.0
    """Processor seconds of its child processes."""


def read_process() -> Reading:
    """This process now."""
    times, own, waits = os.times(), os.getpid(), {}
    programs = times.children_user + times.children_system
    waiting, seen = [own] if sys.platform == "linux" else [], 0
    while waiting and seen < _MOST_PROCESSES:
        pid, seen = waiting.pop(), seen + 1
        waiting += children(pid)
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/schedstat", "rb", buffering=0) as file:
                    computed, waited, *_ = file.read().split()
                waits[int(thread)] = int(waited) / 1e9
                programs += int(computed) / 1e9 if pid != own else 0.0
        except (OSError, ValueError):  # it has ended, or the kernel keeps no such figures
            continue
    return Reading(monotonic(), time.process_time(), waits, programs)


def delay_of(thread: int) -> float:
    """Seconds that a thread of this process, by its native id, has waited for a core so far; 0 if unknown.

    A wait in progress counts only once the thread has run.
    """
    try:
        with open(f"/proc/self/task/{thread}/schedstat", "rb", buffering=0) as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def idle_between(before: Reading, after: Reading) -> float:
    """Lower bound of the seconds between two readings in which the process neither computed nor waited for a core."""
    delayed = sum(max(0.0, waited - before.delays.get(thread, 0.0)) for thread, waited in after.delays.items())
    return max(0.0, after.wall - before.wall - (after.processor - before.processor) - delayed)


_threads_change = threading.Lock()


class Usage:
    """Resources that one episode has used: on the loop, and in its threads."""

    __slots__ = ("_ended", "_threads", "blocked", "limit", "on_loop")

    def __init__(self) -> None:
        self.on_loop = 0.0
        """Processor seconds of its ended steps on the loop."""
        self.blocked = 0.0
        """Seconds in which its steps held the loop without computing."""
        self.limit: Clock | None = None
        self._threads: dict[int, tuple[int | None, float]] = {}
        """Its running threads: clock and processor seconds at the beginning, by a number for each."""
        self._ended = 0.0

    @property
    def threads(self) -> int:
        return len(self._threads)

    @property
    def processor(self) -> float:
        """Processor seconds so far, without the step in progress."""
        running = 0.0
        if self._threads:
            with _threads_change:
                running = sum(_clock_of(clock) - began for clock, began in self._threads.values() if clock is not None)
        return self.on_loop + self._ended + running

    def enter_thread(self) -> None:
        """From now on, charge this thread's computing, until it calls ``leave_thread``."""
        me = threading.get_ident()
        with _threads_change:
            self._threads[me] = thread_clock(me), thread_time()

    def leave_thread(self) -> None:
        with _threads_change:
            _, began = self._threads.pop(threading.get_ident())
            self._ended += thread_time() - began


def thread_clock(ident: int) -> int | None:
    """The clock of a thread's processor time; None if the system has none."""
    return time.pthread_getcpuclockid(ident) if hasattr(time, "pthread_getcpuclockid") else None


def _clock_of(clock: int) -> float:
    try:
        return time.clock_gettime(clock)
    except OSError:  # the thread has just ended
        return 0.0


CURRENT: ContextVar[Usage | None] = ContextVar("marlaas_usage", default=None)
"""The usage of the running code; tasks and threads of an episode inherit it."""


class Meter:
    """State shared by all episodes of a process: its idle time, and the step that holds the loop."""

    def __init__(self, read: Callable[[], Reading] = read_process) -> None:
        self.blocked = 0.0
        """Seconds in which steps of any episode held the loop without computing."""
        self.step: tuple[Usage, float, float] | None = None
        """The step in progress: its usage, the loop's processor seconds and the time at its beginning."""
        self.ended = 0.0
        self._read = read
        self._lock = threading.Lock()
        self._last = read()
        self._known = (self._last.wall, 0.0, 0.0)
        """Time of the last look, idle seconds by then, and the idle share of the time before."""

    def look(self, now: float) -> None:
        if now - self._known[0] < TICK or not self._lock.acquire(blocking=False):
            return
        try:
            reading = self._read()
            idle, lasted = idle_between(self._last, reading), reading.wall - self._last.wall
            self._known = (reading.wall, self._known[1] + idle, idle / lasted if lasted > 0 else 0.0)
            self._last = reading
        finally:
            self._lock.release()

    def free(self, now: float) -> float:
        """Seconds so far in which the process was idle and no step held the loop; extrapolated since the last look."""
        wall, seconds, share = self._known
        return seconds + (now - wall) * share - self.blocked


METER = Meter()


class Clock:
    """The time limit of one episode. Calls ``expire`` after ``seconds`` of its own time, or at the wall limit.

    Processor time counts always; waiting does not count during an ask.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        seconds: float,
        expire: Callable[[bool], None],
        usage: Usage,
        meter: Meter = METER,
        time: Callable[[], float] = monotonic,
    ) -> None:
        """``expire`` gets True for the wall limit: then the episode may not be to blame."""
        self._time = time
        self._loop = loop
        self._seconds = seconds
        self._expire = expire
        self._usage = usage
        self._meter = meter
        self._computed = usage.processor
        self._waited = self._wall = 0.0
        """Seconds of waiting, and of any kind, in the spans before the last ask."""
        self._asks = 0
        now = time()
        meter.look(now)
        self._begin(now)
        self._timer: asyncio.TimerHandle | None = loop.call_later(seconds, self._look)

    def pause(self) -> None:
        self._asks += 1
        if self._asks == 1:
            waited, wall = self._span(self._time())
            self._waited += waited
            self._wall += wall

    def resume(self) -> None:
        self._asks -= 1
        if self._asks == 0:
            self._begin(self._time())

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def own(self, now: float, more: float = 0.0) -> float:
        """Seconds of its own by ``now``, with ``more`` processor seconds of a step in progress."""
        waited = 0.0 if self._asks else self._span(now)[0]
        return self._usage.processor - self._computed + more + self._waited + waited

    def verdict(self, more: float) -> Verdict:
        """The verdict, with ``more`` processor seconds that are not yet in the usage; any thread may ask."""
        now = self._time()
        if self.own(now, more) >= self._seconds:
            return "own"
        wall = self._wall + (0.0 if self._asks else now - self._since)
        return "wall" if wall >= wall_limit(self._seconds) else ""

    def _begin(self, now: float) -> None:
        self._since = now
        self._free = self._meter.free(now) + self._usage.blocked

    def _span(self, now: float) -> tuple[float, float]:
        wall = now - self._since
        free = self._meter.free(now) + self._usage.blocked - self._free
        return min(wall, max(0.0, free)), wall

    def _look(self) -> None:
        now = self._time()
        self._meter.look(now)
        if verdict := self.verdict(0.0):
            self._expire(verdict == "wall")
        else:
            self._timer = self._loop.call_later(max(SOONEST, self._seconds - self.own(now)), self._look)


class Steps(Coroutine[Any, Any, Any]):
    """A coroutine that charges its steps: their computing on the loop, and the time that they hold it."""

    __slots__ = ("_coroutine", "_meter", "_send", "_usage")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], usage: Usage, meter: Meter = METER) -> None:
        self._coroutine = coroutine
        self._send = coroutine.send
        self._usage = usage
        self._meter = meter

    def __getattr__(self, name: str) -> Any:
        """Readers of a task's coroutine see the inner one: frame, name, state."""
        return getattr(self._coroutine, name)

    def send(self, value: Any) -> Any:
        meter, usage, wall, began = self._meter, self._usage, monotonic(), thread_time()
        above, meter.step = meter.step, (usage, began, wall)
        try:
            return self._send(value)
        finally:  # not in a separate function: it runs for every step of every episode
            ended = thread_time()
            computed, between = ended - began, began - meter.ended
            meter.step, meter.ended = above, ended
            usage.on_loop += computed + (between if 0.0 < between < _BETWEEN else _BETWEEN)
            blocked = monotonic() - wall - computed
            if blocked > _BLOCKED:
                usage.blocked += blocked
                meter.blocked += blocked

    def throw(self, kind: Any, value: Any = None, trace: TracebackType | None = None) -> Any:
        self._send = functools.partial(self._thrown, kind if value is None else value)
        return self.send(None)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Any:
        return self._coroutine.__await__()

    def _thrown(self, error: Any, _value: None) -> Any:
        self._send = self._coroutine.send
        return self._coroutine.throw(error)


def charged(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], usage: Usage) -> asyncio.Task[Any]:
    """Start a task; its steps, and those of its child tasks, are charged to ``usage``."""
    context = copy_context()
    context.run(CURRENT.set, usage)
    return asyncio.Task(Steps(coroutine, usage), loop=loop, context=context)


def charge_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """From now on, an episode is charged for the tasks it starts."""
    loop.set_task_factory(_task)


def _task(
    loop: asyncio.AbstractEventLoop, coroutine: Any, context: Context | None = None, **options: Any
) -> asyncio.Task[Any]:
    usage = CURRENT.get() if context is None else context.get(CURRENT)
    if usage is not None and not isinstance(coroutine, Steps) and asyncio.iscoroutine(coroutine):
        coroutine = Steps(coroutine, usage)
    return asyncio.Task(coroutine, loop=loop, context=context, **options)


# A thread that answers for the interpreter: that it runs, the delay of its loop, and the lines that hold it.
#
# At each tick it also checks the step that holds the loop: one without time left is interrupted.
#
# The engine sends one byte for each request: ``?`` asks for an answer, ``+`` begins to watch the lines that hold the
# loop, and ``-`` ends that; the answer has the result.

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
