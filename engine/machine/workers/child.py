"""The process behind a handle.

A child has a stream of bytes each way, ends once, and logs on the engine's machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from ...devices.limits import STATUS
from ...errors import WorkerDied
from ...programs import signal_name

NOTHING: Mapping[str, str] = MappingProxyType({})
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


async def run_host(
    name: str, theirs: socket.socket, cores: tuple[int, ...], nice: int, environment: Mapping[str, str], output: int
) -> asyncio.subprocess.Process:
    """Start ``machine.workers.host`` with its end of a socketpair."""
    cores_word = ",".join(map(str, cores)) or "any"
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", f"{__package__}.host", name, str(theirs.fileno())),
        *(str(os.getpid()), cores_word, str(nice)),
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
        self, name: str, connection: int, log: int, cores: str, nice: int, environment: Mapping[str, str]
    ) -> ForkedProcess:
        """Arguments as in ``host.main``, with ``log``."""
        if not self.alive:
            raise self._death()
        born: asyncio.Future[ForkedProcess] = self._loop.create_future()
        self._orders.append(born)
        order = name, cores, nice, {**os.environ, **environment}
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
        message = pickle.loads(frame) if frame else ()
        match message:
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
    """A child over a socketpair. Use ``start``."""

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

    @classmethod
    async def start(
        cls,
        name: str,
        cores: tuple[int, ...] = (),
        *,
        log_path: Path,
        environment: Mapping[str, str] = NOTHING,
        nice: int = 0,
        template: Template | None = None,
    ) -> LocalChild:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        cores_word = ",".join(map(str, cores)) or "any"
        process: asyncio.subprocess.Process | ForkedProcess
        with open(log_path, "ab") as log, theirs, contextlib.ExitStack() as failing:
            failing.callback(ours.close)
            log_start = log.tell()
            if template is not None:
                process = await template.fork(name, theirs.fileno(), log.fileno(), cores_word, nice, environment)
            else:
                process = await run_host(name, theirs, cores, nice, os.environ | environment, log.fileno())
            failing.pop_all()
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(process, reader, writer, log_path, log_start)

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
