"""A worker for the engine: started, called, dead."""

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

# A cancelled caller's answer is dropped; the worker finishes the call.

T = TypeVar("T")

BEAT = 5.0
MISSED = 6
"""Unanswered checks in a row, not seconds, so that a delayed engine blames nobody."""
GRACE = 5.0


class WorkerHandle:
    """Made by a ``Launcher``; all methods belong to its event loop."""

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
        """Wait until a child takes calls, or end it. Raises as ``Launcher.start``."""
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
        """Run an async method of the object.

        Sent at once, awaited or not. The future raises ``MarlaasError`` and ``ValueError`` as themselves, others as
        ``CallFailed``, and ``WorkerDied``. ``stream_to`` gets earlier values.
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
        """Errors go to the worker's log; a dead worker is no error.

        It begins before later calls, soon; with ``haste``, at once.
        """
        if self.alive:
            self._outbox.send(Call(None, method, args), haste=haste)

    def proxy(self, protocol: Callable[..., T], posted: Collection[str] = ()) -> T:
        """Calls to this worker as a Protocol's methods; ``posted`` ones return None at once."""

        def method(name: str) -> Callable[..., Any]:
            async def post(*args: Any) -> None:
                self.post(name, *args)

            return post if name in posted else partial(self.call, name)

        names = [name for name in dir(protocol) if not name.startswith("_")]
        return cast(T, SimpleNamespace(**{name: method(name) for name in names}))

    async def stop(self, grace: float = GRACE) -> None:
        """Ends the child; kills it after ``grace`` seconds."""
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
        """``OutOfMemory`` if memory was short."""
        if self._hung:
            return WorkerDied(
                f"Worker {self.name} answered nothing for {BEAT * MISSED:.0f} s and was ended.",
                "The machine may be short of memory, or something stopped the process.",
            )
        code = self._child.returncode
        text = sentence(self.name, code, starting, self._child.last_words())
        return (OutOfMemory if code == STATUS else WorkerDied)(*text)


# Each launcher passes ``tests/engine/machine/workers/contract.py``.


class Launcher(Protocol):
    """Starts workers on one machine; it never restarts one."""

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
        """Start a child that builds ``factory`` (``"module:Class"``), and wait until it takes calls.

        ``cores``: one thread each; empty: free. ``nice``: 0 to 19. ``log_path`` is on the engine's machine. A
        ``template`` forks it. Raises ``MarlaasError`` or ``ValueError`` of the constructor, ``CallFailed`` for others,
        and ``WorkerDied``.
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
