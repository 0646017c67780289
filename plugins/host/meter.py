"""An episode's own time and limit, and the thread that watches the process.

Own time: processor time of steps and threads, and seconds of waiting for anything but the model. From these seconds, a
look every half second takes off what the process and its children may have spent on computing or waiting for a core,
and what steps of other episodes held the loop. So siblings, the interpreter's lock and a busy machine are not charged,
except for a core that a child process waited for after the last look before its end.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import inspect
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
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from contextvars import Context, ContextVar, copy_context
from time import monotonic, thread_time
from types import TracebackType
from typing import Any, Literal

from ..environment import Environment
from ..sandbox_supervisor import children, wall_limit
from .channel import Record
from .limits import stacks

TICK = 0.5
STEP = 2e-5
"""Processor seconds charged per step: an episode may only repeat steps."""
LONG = 0.05
"""Seconds until a running step counts as holding the loop."""
STUBBORN = 2.0
"""Processor seconds of a step that survives interrupts at every tick."""
HELD = 5.0
"""Processor seconds without the watching thread, in compiled code."""
_MOST_PROCESSES = 1000
"""At one tick: endless multiplication must not hold it up."""

Verdict = Literal["", "own", "wall"]
"""Not up, its own is, or the wall limit has passed."""

LIMITS: set[OwnTime] = set()
"""Only the loop adds to it."""
_threads_change = threading.Lock()


class OwnTime:
    """The seconds that one episode has used, and its limit."""

    def __init__(self, seconds: float, expire: Callable[[bool], None]) -> None:
        self.on_loop = 0.0
        """Processor seconds of its ended steps on the loop."""
        self.held = 0.0
        """Seconds in which its ended steps held the loop without computing."""
        self._threads: dict[int, tuple[int | None, float]] = {}
        """Its running threads: clock and processor seconds at the beginning."""
        self._ended = self._waited = self._wall = 0.0
        self._since = monotonic()
        self._asks = 0
        self._always = False
        self.renew(seconds, expire)

    def renew(self, seconds: float, expire: Callable[[bool], None], always: bool = False) -> None:
        """``expire`` is called on the loop, with True for the wall limit: the episode may not be to blame.

        ``always``: time counts during asks as well.
        """
        wall = self.wall
        self._since = monotonic()  # first, because the watchdog reads both
        self._wall, self._always, self._loop = wall, always, asyncio.get_running_loop()
        self._looked = wall, self.held
        """``wall`` and held seconds when the watchdog looked last."""
        self._allowed, self._until, self._expire = self.seconds + seconds, wall + wall_limit(seconds), expire
        LIMITS.add(self)

    @property
    def wall(self) -> float:
        """Seconds outside of asks."""
        paused = self._asks > 0 and not self._always
        return self._wall + (0.0 if paused else monotonic() - self._since)

    @property
    def threads(self) -> int:
        return len(self._threads)

    @property
    def seconds(self) -> float:
        """Without the step in progress."""
        with _threads_change:
            running = sum(_clock(clock) - began for clock, began in self._threads.values() if clock is not None)
            return self.on_loop + self._ended + self._waited + running

    @contextmanager
    def in_thread(self) -> Iterator[None]:
        """Charge this thread's computing during the block."""
        me = threading.get_ident()
        with _threads_change:
            self._threads[me] = _clock_of(me), thread_time()
        try:
            yield
        finally:
            with _threads_change:
                self._ended += thread_time() - self._threads.pop(me)[1]

    def pause(self) -> None:
        self._asks += 1
        if self._asks == 1 and not self._always:
            self._wall += monotonic() - self._since

    def resume(self) -> None:
        if self._asks == 1 and not self._always:  # first, because the watchdog reads both
            self._since = monotonic()
        self._asks -= 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def stop(self) -> None:
        LIMITS.discard(self)

    def wait(self, held: float, taken: float, all_held: float) -> None:
        """Charge the seconds of waiting since the last call: a lower bound.

        ``held``: as the attribute, with the step in progress. The rest is of the whole process since the last call:
        ``taken``, seconds of computing or waiting for a core; ``all_held``, seconds in which steps held the loop
        without computing.
        """
        (wall, before), self._looked = self._looked, (self.wall, held)
        siblings = max(0.0, all_held - (held - before))
        self._waited += max(0.0, self._looked[0] - wall - taken - siblings)

    def verdict(self, more: float = 0.0) -> Verdict:
        """``more``: processor seconds of a step in progress. Any thread may ask."""
        if self.seconds + more >= self._allowed:
            return "own"
        return "wall" if self.wall >= self._until else ""

    def end(self) -> None:
        """Called by the watchdog; the loop decides, because it may have given more time meanwhile."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self in LIMITS and (verdict := self.verdict()):
            self.stop()
            self._expire(verdict == "wall")


def _clock_of(thread: int) -> int | None:
    return time.pthread_getcpuclockid(thread) if hasattr(time, "pthread_getcpuclockid") else None


def _clock(clock: int | None) -> float:
    """0: the system has none, or the thread has just ended."""
    try:
        return time.clock_gettime(clock) if clock is not None else 0.0
    except OSError:
        return 0.0


CURRENT: ContextVar[OwnTime | None] = ContextVar("marlaas_own_time", default=None)
"""Inherited by tasks and threads."""


class _Running:
    """The step in progress, with processor seconds and time at its start."""

    step: tuple[OwnTime, float, float] | None = None
    held: float = 0.0
    """Seconds in which ended steps held the loop without computing."""


class Steps(Coroutine[Any, Any, Any]):
    """A coroutine with charged steps."""

    __slots__ = ("_coroutine", "_own", "_send")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], own: OwnTime) -> None:
        self._coroutine = coroutine
        self._send = coroutine.send
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)

    def send(self, value: Any) -> Any:
        above, began, wall = _Running.step, thread_time(), monotonic()
        _Running.step = self._own, began, wall
        try:
            return self._send(value)
        finally:
            lasted, computed = monotonic() - wall, thread_time() - began
            _Running.step = above
            self._own.on_loop += computed + STEP
            if lasted > computed:
                self._own.held += lasted - computed
                _Running.held += lasted - computed

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


def charged(coroutine: Coroutine[Any, Any, Any], own: OwnTime) -> asyncio.Task[Any]:
    """Start a task; steps of its child tasks are charged, too."""
    context = copy_context()
    context.run(CURRENT.set, own)
    return asyncio.Task(Steps(coroutine, own), loop=asyncio.get_running_loop(), context=context)


def charge_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Charge episodes for tasks they start."""
    loop.set_task_factory(_task)


def _task(
    loop: asyncio.AbstractEventLoop, coroutine: Any, context: Context | None = None, **options: Any
) -> asyncio.Task[Any]:
    own = CURRENT.get() if context is None else context.get(CURRENT)
    if own is not None and not isinstance(coroutine, Steps) and asyncio.iscoroutine(coroutine):
        coroutine = Steps(coroutine, own)
    return asyncio.Task(coroutine, loop=loop, context=context, **options)


def read_delays() -> dict[int, float]:
    """Seconds that all threads, children's included, waited for a core; empty: unknown."""
    waiting, delays, seen = [os.getpid()] if sys.platform == "linux" else [], {}, 0
    while waiting and seen < _MOST_PROCESSES:
        pid, seen = waiting.pop(), seen + 1
        waiting += children(pid)
        with suppress(OSError, ValueError, IndexError):  # it has ended, or the kernel keeps no such figures
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/schedstat", "rb", buffering=0) as file:
                    delays[int(thread)] = int(file.read().split()[1]) / 1e9
    return delays


class Watchdog:
    """Charges idle time, ends what has no time left, and answers the engine.

    An answer: seconds since the last one in which steps held the loop without computing, and True if a step does not
    end.
    """

    def __init__(self, connection: socket.socket, ticked: Callable[[bool], None] = lambda held: None) -> None:
        """``ticked`` gets True if a step holds the loop."""
        self._connection = connection
        self._ticked = ticked
        self._main = threading.current_thread()
        self._clock = _clock_of(threading.get_ident())
        self._last = time.process_time(), read_delays(), _Running.held
        self._beat: Record = {"stubborn": False, "held": 0.0}
        self._ran = 0.0
        """The process's processor seconds when this thread last ran."""

    def start(self) -> None:
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    @property
    def held(self) -> bool:
        return time.process_time() - self._ran > HELD

    def verdict(self, beyond: float = 0.0) -> Verdict:
        """On the running step's episode, ``beyond`` its time by more seconds. Any thread may ask."""
        step = _Running.step
        if step is None or self._clock is None:
            return ""
        return step[0].verdict(_clock(self._clock) - step[1] - beyond)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        due, busy = 0.0, True
        while True:
            ready = poll.poll(1000 * TICK if busy else None)
            now, self._ran = monotonic(), time.process_time()
            try:
                if ready or now >= due:
                    due, busy = now + TICK, bool(LIMITS)
                    self.tick(now)
                if ready and not self._answer():
                    return
                busy = busy or bool(ready)
            except Exception:  # no memory, above all: the next tick may have some
                traceback.print_exc()

    def tick(self, now: float) -> None:
        limits = [(limit, limit.held) for limit in list(LIMITS)]
        all_held, step = _Running.held, _Running.step  # the step last: it may end now
        own, running = (step[0], now - step[2]) if step is not None else (None, 0.0)
        holding = (
            max(0.0, running - _clock(self._clock) + step[1]) if step is not None and self._clock is not None else 0.0
        )
        processor, delays, held_before = self._last
        self._last = time.process_time(), read_delays(), all_held + holding
        delayed = math.fsum(max(0.0, after - delays.get(thread, 0.0)) for thread, after in self._last[1].items())
        taken, held = self._last[0] - processor + delayed, self._last[2] - held_before
        self._beat["held"] += max(0.0, held)
        for limit, ended in limits:
            limit.wait(ended + (holding if limit is own else 0.0), taken, held)
            if limit is not own and limit.verdict():
                limit.end()
        self._beat["stubborn"] = False
        if self.verdict():
            self._beat["stubborn"] = self.verdict(STUBBORN) == "own"
            signal.pthread_kill(self._main.ident or 0, signal.SIGUSR1)
        self._ticked(running > LONG)

    def _answer(self) -> bool:
        try:
            if not self._connection.recv(4096):
                return False
            beat, self._beat = self._beat, {"stubborn": False, "held": 0.0}
            self._connection.sendall(json.dumps(beat).encode() + b"\n")
        except OSError:
            return False
        return True


LEFT_AFTER = 30.0
"""Seconds after its episode's end: on a busy machine a thread may run late."""
HOGGED = "compiled code that the episode called let nothing else run for seconds"
"""Text of ``Stopped`` before the episode's time is up."""
_MOST_WAITING = 1024
"""More threads than episodes, so that none waits for another."""
_GRACE = 1.0
_CLOSING = 2.0


class Stopped(BaseException):
    """Ends an episode; no ``except Exception`` of a plugin catches it."""


_starting = threading.RLock()
"""Held while a thread starts, and while one is asked to end.

Up to Python 3.11 a new thread counts as its starter until it runs. Ended then, it would leave the starter waiting with
the lock of every ``ThreadPoolExecutor``.
"""
_start = threading.Thread.start
_ended: dict[OwnTime, float] = {}


def _start_alone(self: threading.Thread) -> None:
    with _starting:
        _start(self)


def stop(thread: threading.Thread) -> None:
    """Raise ``Stopped`` in a thread at its next line of Python."""
    with _starting:
        if thread.is_alive() and thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Stopped))


def ended(own: OwnTime) -> None:
    """Its threads should end, too."""
    own.stop()
    if own.threads:
        _ended[own] = time.monotonic()


def left_behind() -> int:
    """Number of threads of long ended episodes."""
    for own in [own for own in _ended if not own.threads]:
        del _ended[own]
    since = time.monotonic() - LEFT_AFTER
    return sum(own.threads for own, when in _ended.items() if when < since)


class EpisodeThreads(ThreadPoolExecutor):
    """``asyncio.to_thread``'s, charged to the calling episode."""

    def __init__(self) -> None:
        super().__init__(_MOST_WAITING, "aside")

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        own = CURRENT.get()

        def run() -> Any:
            with own.in_thread() if own is not None else nullcontext():
                return fn(*args, **kwargs)

        stacks(+1)
        future = super().submit(run)
        future.add_done_callback(lambda _: stacks(-1))
        return future


async def in_thread(call: Callable[[], Any]) -> Any:
    """Cancelling raises ``Stopped`` in the thread.

    From then on, all threads of this process start one after another.
    """
    threading.Thread.start = _start_alone  # type: ignore[method-assign]
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    own, context = CURRENT.get(), copy_context()

    def finish(result: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)

    def run() -> None:
        result: Any = None
        error: BaseException | None = None
        with own.in_thread() if own is not None else nullcontext():
            try:
                result = context.run(call)
            except StopIteration as raised:  # a future refuses it
                error = RuntimeError(repr(raised))
            except BaseException as raised:
                error = raised
        stacks(-1)
        loop.call_soon_threadsafe(finish, result, error)

    thread = threading.Thread(target=run, name="episode", daemon=True)
    stacks(+1)
    try:
        thread.start()
    except RuntimeError:  # no thread can be had
        stacks(-1)
        raise
    try:
        return await done
    except asyncio.CancelledError:
        stop(thread)
        raise


class Late(Exception):
    """A set-up took longer than the environment's time limit."""

    def __init__(self, message: str = "", overloaded: bool = False) -> None:
        """``overloaded``: the set-up may not be to blame."""
        super().__init__(message)
        self.overloaded = overloaded


class Instances:
    """One instance per class form environment.

    A failed set-up is repeated with the next episode.
    """

    def __init__(self) -> None:
        self._making: dict[str, asyncio.Task[Any]] = {}

    async def player(self, environment: Environment) -> Callable[..., Any]:
        """Raises what the set-up raised, or ``Late``."""
        making = self._making.get(environment.name)
        if making is None:
            making = self._making[environment.name] = asyncio.create_task(_timed(environment))
        made = await asyncio.shield(making)
        if isinstance(made, _Failed):
            if self._making.get(environment.name) is making:
                del self._making[environment.name]
            raise made.error.with_traceback(made.trace)
        return functools.partial(environment.function, made)

    async def close(self) -> None:
        """Errors go to the plugin's log."""
        made = [making.result() for making in self._making.values() if making.done()]
        closing = [asyncio.create_task(_closed(instance.close)) for instance in made if hasattr(instance, "close")]
        if closing:
            await asyncio.wait(closing, timeout=_CLOSING)


class _Failed:
    """A ``SystemExit`` raised in a task would end the loop."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.trace = error, error.__traceback__


async def _timed(environment: Environment) -> Any:
    late: asyncio.Future[bool] = asyncio.get_running_loop().create_future()  # True: the wall limit
    own = OwnTime(environment.timeout, late.set_result)
    making = charged(_made(environment), own)
    await asyncio.wait((making, late), return_when=asyncio.FIRST_COMPLETED)
    overloaded = late.done() and late.result()
    if not making.done():
        making.cancel()
        await asyncio.wait((making,), timeout=_GRACE)
    elif not (isinstance(made := making.result(), _Failed) and isinstance(made.error, Stopped)):
        own.stop()
        return made
    ended(own)
    late_error = Late(f"the set-up of {environment.name} took longer than {environment.timeout:g} s", overloaded)
    if making.done() and isinstance(made := making.result(), _Failed):
        late_error.overloaded |= made.error.args == ("wall",)
        late_error.__traceback__ = made.trace  # where it stood
    return _Failed(late_error)


async def _made(environment: Environment) -> Any:
    try:
        if environment.form is None:
            raise LookupError(f"{environment.name} is a function, there is nothing to set up")
        instance = await in_thread(environment.form)
        if hasattr(instance, "setup"):
            await _done(instance.setup)
        return instance
    except BaseException as error:
        return _Failed(error)


async def _closed(close: Callable[[], Any]) -> None:
    try:
        await _done(close)
    except BaseException:  # the process ends either way
        traceback.print_exc()


async def _done(method: Callable[[], Any]) -> Any:
    return await (method() if inspect.iscoroutinefunction(method) else in_thread(method))
