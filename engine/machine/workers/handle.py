"""A worker as the engine sees it: started, called, dead."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar, cast

from ...devices.limits import STATUS
from ...errors import OutOfMemory, WorkerDied
from .child import NOTHING, Child, LocalChild, Template, sentence
from .wire import PING, Answer, Call, Failed, Message, Outbox, Streamed, pack, read, rebuild_error

# An answer to a cancelled caller is dropped; the worker still finishes the call.

T = TypeVar("T")

BEAT = 5.0
MISSED = 6
"""Checks in a row without an answer after which a worker counts as hung. Checks are counted, not seconds, so that a
delayed engine blames nobody."""
GRACE = 5.0


class WorkerHandle:
    """A running worker. Made by a ``Launcher``; all methods belong to its event loop."""

    def __init__(self, name: str, child: Child, log_path: Path) -> None:
        self.name = name
        self.log_path = log_path
        self.died = asyncio.Event()
        self._child = child
        self._loop = asyncio.get_running_loop()  # kept: asking for it is a system call in Python 3.11
        self._outbox = Outbox(child.write, self._refuse)
        self._listener: asyncio.Task[None] | None = None
        self._stopping = False
        self._hung = False
        self._watch: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._streams: dict[int, Callable[[Any], None]] = {}
        self._numbers = itertools.count(1)

    @classmethod
    async def begin(cls, child: Child, name: str, factory: str, kwargs: dict[str, Any], log_path: Path) -> WorkerHandle:
        """Have a started child build its object, and wait until it takes calls; for launchers.

        A child that cannot is ended. Raises as ``Launcher.start`` does.
        """
        handle = cls(name, child, log_path)
        try:
            await handle._start(Call(0, factory, (kwargs,)))
        except BaseException:
            await asyncio.shield(handle.stop(grace=0))
            raise
        return handle

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def node(self) -> str:
        return self._child.node

    @property
    def alive(self) -> bool:
        return not self.died.is_set()

    def call(self, method: str, *args: Any, stream_to: Callable[[Any], None] | None = None) -> asyncio.Future[Any]:
        """Run an async method of the worker's object, or of a part of it (``part.method``): a future of its value.

        It is sent at once, awaited or not. The future raises the method's error (``MarlaasError`` and ``ValueError`` as
        themselves, others as ``CallFailed``), or ``WorkerDied``. Values that the method passes to its argument
        ``stream_to`` arrive here, until the future is done.
        """
        answer: asyncio.Future[Any] = self._loop.create_future()
        if not self.alive:
            answer.set_exception(self.death())
            return answer
        number = next(self._numbers)
        self._waiting[number] = answer
        if stream_to is not None:
            self._streams[number] = stream_to
        self._outbox.send(Call(number, method, args, stream_to is not None))
        return answer

    def post(self, method: str, *args: Any, haste: bool = False) -> None:
        """Run an async method without an answer; its errors go to the worker's log.

        It begins before any later call, and soon without one; with ``haste``, at once. A dead worker is no error.
        """
        if self.alive:
            self._outbox.send(Call(None, method, args), haste=haste)

    def proxy(self, protocol: Callable[..., T], posted: Collection[str] = (), part: str = "") -> T:
        """An object typed as ``protocol`` (a Protocol class) with calls to this worker as methods.

        Those named in ``posted`` return None at once, without an answer. A worker that serves several protocols has an
        attribute for each: ``part`` is its name.
        """
        prefix = part and f"{part}."

        def method(name: str) -> Callable[..., Any]:
            async def post(*args: Any) -> None:
                self.post(prefix + name, *args)

            return post if name in posted else partial(self.call, prefix + name)

        names = [name for name in dir(protocol) if not name.startswith("_")]
        return cast(T, SimpleNamespace(**{name: method(name) for name in names}))

    async def stop(self, grace: float = GRACE) -> None:
        """Close the connection, which ends the child; kill it after ``grace`` seconds."""
        self._stopping = True
        if self._watch is not None:
            self._watch.cancel()
        self._child.close()
        try:
            async with asyncio.timeout(grace):
                await self._child.wait()
        except TimeoutError:
            self._child.kill()
            await self._child.wait()
        if self._listener is not None:
            await self._listener
        self.died.set()

    async def _start(self, start: Call) -> None:
        self._child.write(pack(start))
        first = await read(self._child.reader)
        if first and isinstance(first[0], Failed):
            raise rebuild_error(first[0], self.name)
        if first != (Answer(0, None),):
            await self._child.wait()
            raise self.death(starting=True)
        self._listener = asyncio.create_task(self._listen(self._child.reader), name=f"worker {self.name}")
        self._watch = asyncio.create_task(self._look_after(), name=f"watch over {self.name}")

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while messages := await read(reader):
            for message in messages:
                if not isinstance(message, Call):
                    self._receive(message)
        if not self._stopping:
            self._child.kill()
        await self._child.wait()
        self.died.set()
        if self._watch is not None:
            self._watch.cancel()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self.death())
        self._waiting.clear()
        self._streams.clear()
        self._child.close()

    async def _look_after(self) -> None:
        asked, missed = self._ping(), 0
        while missed < MISSED:
            await asyncio.sleep(BEAT)
            if asked.done():
                asked, missed = self._ping(), 0
            else:
                missed += 1
        self._hung = True
        self._child.kill()

    def _ping(self) -> asyncio.Future[Any]:
        asked = self.call(PING)
        asked.add_done_callback(lambda asked: asked.cancelled() or asked.exception())  # its death is no news
        return asked

    def _receive(self, message: Answer | Failed | Streamed) -> None:
        streamed = isinstance(message, Streamed)
        answer = self._waiting.get(message.id) if streamed else self._waiting.pop(message.id, None)
        stream_to = self._streams.get(message.id) if streamed else self._streams.pop(message.id, None)
        if answer is None or answer.done():
            return
        if isinstance(message, Answer):
            answer.set_result(message.value)
        elif isinstance(message, Failed):
            answer.set_exception(rebuild_error(message, self.name))
        elif stream_to is not None:
            try:
                stream_to(message.value)
            except Exception as error:
                self._loop.call_exception_handler({"message": "a streamed value was not taken", "exception": error})

    def _refuse(self, message: Message, error: Exception) -> None:
        assert isinstance(message, Call)
        if message.id is None:
            self._loop.call_exception_handler({"message": f"{message.method} was not posted", "exception": error})
            return
        self._streams.pop(message.id, None)
        answer = self._waiting.pop(message.id, None)
        if answer is not None and not answer.done():
            answer.set_exception(error)

    def death(self, starting: bool = False) -> WorkerDied:
        """The error for the worker's end: ``OutOfMemory`` if memory was short."""
        if self._hung:
            return WorkerDied(
                f"Worker {self.name} answered nothing for {BEAT * MISSED:.0f} s and was ended.",
                "The machine may be short of memory, or something stopped the process.",
            )
        code = self._child.returncode
        text = sentence(self.name, code, starting, self._child.last_words())
        return (OutOfMemory if code == STATUS else WorkerDied)(*text)


# ``tests/engine/machine/workers/contract.py`` holds the tests that each launcher passes.


class Launcher(Protocol):
    """Starts workers on one machine. It never restarts one: that is the engine's decision."""

    async def start(
        self,
        name: str,
        factory: str,
        kwargs: dict[str, Any],
        cores: tuple[int, ...] = (),
        *,
        log_path: Path,
        environment: Mapping[str, str] = NOTHING,
        nice: int = 0,
        template: Template | None = None,
    ) -> WorkerHandle:
        """Start a child that builds ``factory`` (``"module:Class"``) with ``kwargs``, and wait until it takes calls.

        ``cores`` pins it, one thread each; empty leaves it free. It runs with the variables of ``environment``, at
        niceness ``nice``, 0 to 19. Its output is appended to ``log_path`` on the engine's machine. A ``template`` of
        that machine forks it. Raises the constructor's ``MarlaasError`` or ``ValueError``, ``CallFailed`` for any other
        exception, and ``WorkerDied`` with the last line of the log.
        """


class LocalLauncher:
    """Starts children of this process."""

    async def start(
        self,
        name: str,
        factory: str,
        kwargs: dict[str, Any],
        cores: tuple[int, ...] = (),
        *,
        log_path: Path,
        environment: Mapping[str, str] = NOTHING,
        nice: int = 0,
        template: Template | None = None,
    ) -> WorkerHandle:
        child = await LocalChild.start(
            name, cores, log_path=log_path, environment=environment, nice=nice, template=template
        )
        return await WorkerHandle.begin(child, name, factory, kwargs, log_path)
