"""A worker for the engine: started, called, dead; and its process.

A child has a stream of bytes each way, ends once, and logs on the engine's machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pickle
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, Protocol, TypeVar, cast

from ...devices.limits import STATUS
from ...errors import OutOfMemory, WorkerDied
from ...programs import signal_name
from .wire import PING, Answer, Call, Failed, Message, Outbox, Streamed, pack, read, rebuild_error

NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
LONGEST = 1 << 20
"""Bytes; an order holds an environment."""
TAIL = 4096

HINTS: dict[int, str] = {
    signal.SIGILL: "A library was built for another processor; install it again on this machine (`make install`).",
    signal.SIGKILL: "Something killed it, most often the kernel for want of memory.",
}


def last_line(log_path: Path, start: int = 0) -> str:
    """The last line with text after byte ``start``."""
    try:
        with open(log_path, "rb") as log:
            size = log.seek(0, 2)
            log.seek(max(start, size - TAIL))
            lines = log.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def sentence(name: str, code: int | None, starting: bool, line: str) -> tuple[str, str]:
    """``code``: exit status, negative for a signal; None: unknown."""
    what = f"Worker {name} " + ("could not start" if starting else "ended")
    if code is None:
        return (f"{what}: {line}" if line else what).rstrip(".") + ".", ""
    if code < 0:
        what += f" by signal {signal_name(-code)}"
    elif code == STATUS and not starting:
        what = f"Worker {name} ran out of memory"
    elif code > 0:
        what += f" with exit status {code}"
    if line:
        what += f": {line}"
    return what.rstrip(".") + ".", HINTS.get(-code, "")


def _cores_word(cores: tuple[int, ...]) -> str:
    """An argument of ``host.main``."""
    return ",".join(map(str, cores)) or "any"


async def run_host(
    name: str, theirs: socket.socket, cores: tuple[int, ...], nice: int, environment: Mapping[str, str], output: int
) -> asyncio.subprocess.Process:
    """Start ``machine.workers.host`` with its end of a socketpair."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", f"{__package__}.host", name, str(theirs.fileno())),
        *(str(os.getpid()), _cores_word(cores), str(nice)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=environment,
        pass_fds=(theirs.fileno(),),
        process_group=0,  # Ctrl-C goes to the foreground group; workers stay out of it
    )


def kill(process: asyncio.subprocess.Process | ForkedProcess) -> None:
    """``Process.kill`` polls, and so takes asyncio's exit status away."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


class ForkedProcess:
    """The used part of ``asyncio.subprocess.Process`` for a template's fork."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._end: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def returncode(self) -> int | None:
        return self._end.result() if self._end.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._end)

    def end(self, code: int) -> None:
        if not self._end.done():
            self._end.set_result(code)


class Template:
    """A running template. Use ``start``; all methods belong to its event loop."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        threads: int,
        connection: socket.socket,
        log_path: Path,
        log_start: int,
    ) -> None:
        self.threads = threads
        self._process = process
        self._connection = connection
        self._log_path, self._log_start = log_path, log_start
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._orders: deque[asyncio.Future[ForkedProcess]] = deque()
        self._workers: dict[int, ForkedProcess] = {}
        self._loop.add_reader(connection, self._receive)

    @classmethod
    async def start(
        cls, modules: Sequence[str], threads: int, environment: Mapping[str, str], log_path: Path
    ) -> Template:
        """For workers of this many ``threads``. Raises ``WorkerDied``."""
        log_path.parent.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = (sys.executable, "-P", "-m", f"{__package__}.template", str(theirs.fileno()), str(os.getpid()))
        with open(log_path, "ab") as log, theirs:
            log_start = log.tell()
            process = await asyncio.create_subprocess_exec(
                *command,
                str(threads),
                *modules,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | environment,
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )
        ours.setblocking(False)
        template = cls(process, threads, ours, log_path, log_start)
        try:
            await template._ready
        except WorkerDied:
            await process.wait()
            raise template._death() from None
        except BaseException:
            await asyncio.shield(template.stop())
            raise
        return template

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._connection.fileno() >= 0

    async def fork(
        self,
        name: str,
        connection: int,
        log: int,
        cores: tuple[int, ...],
        nice: int,
        environment: Mapping[str, str],
    ) -> ForkedProcess:
        """``connection`` and ``log`` are descriptors of the worker."""
        if not self.alive:
            raise self._death()
        born: asyncio.Future[ForkedProcess] = self._loop.create_future()
        self._orders.append(born)
        order = name, _cores_word(cores), nice, {**os.environ, **environment}
        try:
            socket.send_fds(self._connection, [pickle.dumps(order)], [connection, log])
        except OSError:
            self._close()
        return await born

    async def stop(self) -> None:
        self._close()
        kill(self._process)
        await self._process.wait()

    def _receive(self) -> None:
        try:
            frame = self._connection.recv(LONGEST)
        except BlockingIOError:
            return
        except OSError:
            frame = b""
        match pickle.loads(frame) if frame else ():
            case ():
                self._close()
            case None:
                self._ready.set_result(None)
            case pid, None:
                worker, born = ForkedProcess(pid), self._orders.popleft()
                self._workers[pid] = worker
                if born.done():
                    kill(worker)
                else:
                    born.set_result(worker)
            case pid, code:
                self._workers.pop(pid).end(code)

    def _close(self) -> None:
        if not self.alive:
            return
        self._loop.remove_reader(self._connection)
        self._connection.close()
        for worker in self._workers.values():
            worker.end(-signal.SIGKILL)
        self._workers.clear()
        if not self._ready.done():
            self._ready.set_exception(self._death())
        for born in self._orders:
            if not born.done():
                born.set_exception(self._death())
        self._orders.clear()

    def _death(self) -> WorkerDied:
        line = last_line(self._log_path, self._log_start)
        return WorkerDied(*sentence("template", self._process.returncode, True, line))


class Child(Protocol):
    """One worker process."""

    @property
    def pid(self) -> int:
        """On its machine; 0: unknown yet."""

    @property
    def node(self) -> str:
        """Ray's id; empty for the engine's machine."""

    @property
    def returncode(self) -> int | None:
        """Negative for a signal; None: it runs, or is lost."""

    @property
    def reader(self) -> asyncio.StreamReader:
        """Ends soon after the process."""

    def write(self, data: bytes) -> None:
        """At once and in order; an ended process gets none."""

    def close(self) -> None:
        """Close the connection: the process ends."""

    def kill(self) -> None:
        """An ended one is fine."""

    async def wait(self) -> None:
        """Returns when it has ended, or is lost."""

    def last_words(self) -> str:
        """The log's last line since its start, or why it is lost."""


class LocalChild:
    """A child over a socketpair, of ``LocalLauncher``."""

    node = ""

    def __init__(
        self,
        process: asyncio.subprocess.Process | ForkedProcess,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        log_path: Path,
        log_start: int,
    ) -> None:
        self.reader = reader
        self.write = writer.write
        self._process = process
        self._writer = writer
        self._log_path, self._log_start = log_path, log_start

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def close(self) -> None:
        self._writer.close()

    def kill(self) -> None:
        kill(self._process)

    async def wait(self) -> None:
        await self._process.wait()

    def last_words(self) -> str:
        return last_line(self._log_path, self._log_start)


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
            child.write(pack(Call(0, factory, (kwargs,))))
            first = await read(child.reader)
            if first and isinstance(first[0], Failed):
                raise rebuild_error(first[0], name)
            if first != (Answer(0, None),):
                await child.wait()
                raise handle.death(starting=True)
        except BaseException:
            await asyncio.shield(handle.stop(grace=0))
            raise
        handle._listener = asyncio.create_task(handle._listen(child.reader), name=f"worker {name}")
        handle._watch = asyncio.create_task(handle._look_after(), name=f"watch over {name}")
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
        environment: Mapping[str, str] = NO_VARIABLES,
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
        environment: Mapping[str, str] = NO_VARIABLES,
        nice: int = 0,
        template: Template | None = None,
    ) -> WorkerHandle:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        process: asyncio.subprocess.Process | ForkedProcess
        with open(log_path, "ab") as log, theirs, contextlib.ExitStack() as failing:
            failing.callback(ours.close)
            log_start = log.tell()
            if template is not None:
                process = await template.fork(name, theirs.fileno(), log.fileno(), cores, nice, environment)
            else:
                process = await run_host(name, theirs, cores, nice, os.environ | environment, log.fileno())
            failing.pop_all()
        reader, writer = await asyncio.open_connection(sock=ours)
        child = LocalChild(process, reader, writer, log_path, log_start)
        return await WorkerHandle.begin(child, name, factory, kwargs, log_path)
