"""Answers for the interpreter, in a thread of its own: that it runs, and how late its loop is.

The loop may be kept by what an episode computes; this thread answers all the same, as long as Python code runs at all.
At each tick it also looks at the step that keeps the loop: one whose episode has used up its time is interrupted.

The engine sends one byte for each wish: ``?`` asks for an answer, ``+`` begins to look at what keeps the loop busy, and
``-`` ends that; what was seen is in the answer.
"""

from __future__ import annotations

import faulthandler
import json
import select
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from .meter import METER, TICK, Meter, Verdict
from .stacks import StackSampler

STUBBORN = 2.0
"""Processor seconds, beyond its episode's time, of a step that goes on although it is interrupted at every tick."""
HELD = 5.0
"""Processor seconds in which this thread never ran: compiled code keeps the interpreter for itself."""


class Pulse:
    """The thread, and what it knows."""

    def __init__(
        self,
        connection: socket.socket,
        late: Callable[[], float],
        playing: Callable[[], bool],
        tidy: Callable[[], bool],
        meter: Meter = METER,
        sampler: Callable[[], StackSampler] | None = None,
    ) -> None:
        """``late``: seconds by which the loop was late since the last call; ``playing``: whether anything is under way;
        ``tidy`` is called at each tick, and says whether it is to be called again although nothing is under way;
        ``sampler`` makes what looks at the loop, where that may be asked for."""
        self._connection = connection
        self._late = late
        self._playing = playing
        self._tidy = tidy
        self._meter = meter
        self._main = threading.get_ident()
        self._main_thread = threading.get_native_id()
        self._main_clock = time.pthread_getcpuclockid(self._main) if hasattr(time, "pthread_getcpuclockid") else None
        self._ran = 0.0
        """The process's processor seconds when this thread last ran."""
        self._stubborn = False
        self._make_sampler = sampler
        self._sampler: StackSampler | None = None
        """While a check looks at what keeps the loop busy."""
        self._before = 0.0, 0.0
        """At the last answer: seconds in which steps had kept the loop asleep, and in which the process was quiet."""

    def start(self) -> None:
        """Begin to answer; called in the thread of the loop. On SIGUSR2 a thread says where it is, even if compiled
        code keeps it from everything else."""
        faulthandler.register(signal.SIGUSR2, file=self._connection, all_threads=False)
        threading.Thread(target=self._run, name="pulse", daemon=True).start()

    @property
    def held(self) -> bool:
        """Whether compiled code has kept the interpreter for long."""
        return time.process_time() - self._ran > HELD

    def verdict(self, beyond: float = 0.0) -> Verdict:
        """Whether the episode whose step is under way has used up its time, and so many processor seconds ``beyond``
        it; any thread may ask."""
        step = self._meter.step
        if step is None or self._main_clock is None:
            return ""
        usage, began, _ = step
        limit = usage.limit
        return limit.verdict(time.clock_gettime(self._main_clock) - began - beyond) if limit is not None else ""

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        again = True
        while True:
            ready = poll.poll(1000 * TICK if again else None)
            self._ran = time.process_time()
            try:
                untidy = self._tick()
                if ready and not self._answer():
                    return
                again = bool(ready) or untidy or self._playing()
            except Exception:  # no memory, above all: the next tick may have some
                traceback.print_exc()

    def _tick(self) -> bool:
        """Look at everything; returns whether there is something to tidy up later."""
        self._meter.look(time.monotonic())
        untidy = self._tidy()
        if self.verdict():
            self._stubborn = self.verdict(STUBBORN) == "own"
            signal.pthread_kill(self._main, signal.SIGUSR1)
        else:
            self._stubborn = False
        return untidy

    def _answer(self) -> bool:
        """Answer what was asked meanwhile; returns whether the engine is still there."""
        try:
            if not (wishes := self._connection.recv(4096)):
                return False
            beat: dict[str, Any] = {"late": self._late(), "stubborn": self._stubborn, "asleep": self._asleep()}
            if b"+" in wishes and self._make_sampler is not None:
                self._sampler = self._make_sampler()
                self._sampler.start()
            if b"-" in wishes:
                sampler, self._sampler = self._sampler, None
                beat["watched"] = {"seconds": 0.0, "computed": 0.0} if sampler is None else sampler.stop()
            self._connection.sendall(json.dumps(beat).encode() + b"\n")
        except OSError:
            return False
        return True

    def _asleep(self) -> float:
        """Seconds since the last call in which a step kept the loop, and nothing here computed or waited for a core."""
        if self._main_clock is None:
            return 0.0
        now, before = time.monotonic(), self._before
        asleep = self._meter.asleep(now, self._main_thread, time.clock_gettime(self._main_clock))
        self._before = max(before[0], asleep), self._meter.quiet(now)
        return max(0.0, min(asleep - before[0], self._before[1] - before[1]))
