"""The engine's side of a template: starts it, has it fork workers, and learns of their ends."""

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
from typing import Any

from ..errors import WorkerDied
from .ending import last_line, sentence
from .orders import LONGEST, Born, Ended, Order

NAME = "template"


class ForkedProcess:
    """A worker forked by a template, with the part of ``asyncio.subprocess.Process`` that a handle needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def end(self, code: int) -> None:
        if self.returncode is None:
            self.returncode = code
            self._ended.set()


class Template:
    """A running template. Make one with ``start``; all methods belong to its event loop."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        threads: int,
        connection: socket.socket,
        log_path: Path,
        log_start: int,
    ) -> None:
        """``log_start`` is the length of the log before it began."""
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
        """Start one that imports ``modules`` for workers of this many ``threads``.

        Its output is appended to ``log_path``. Raises ``WorkerDied`` if it ends before it is ready.
        """
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
        """Have it become a worker with the descriptor ``connection``, as ``host.main`` takes it, and its ``log``."""
        if not self.alive:
            raise self._death()
        born: asyncio.Future[ForkedProcess] = self._loop.create_future()
        self._orders.append(born)
        order = Order(name, cores, nice, {**os.environ, **environment})
        try:
            socket.send_fds(self._connection, [pickle.dumps(order)], [connection, log])
        except OSError:
            self._close()
        return await born

    async def stop(self) -> None:
        self._close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    def _receive(self) -> None:
        try:
            frame = self._connection.recv(LONGEST)
        except BlockingIOError:
            return
        except OSError:
            frame = b""
        if not frame:
            self._close()
            return
        self._hear(pickle.loads(frame))

    def _hear(self, message: Any) -> None:
        if message is None and not self._ready.done():
            self._ready.set_result(None)
        elif isinstance(message, Born):
            worker = self._workers[message.pid] = ForkedProcess(message.pid)
            born = self._orders.popleft()
            if born.done():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(message.pid, signal.SIGKILL)
            else:
                born.set_result(worker)
        elif isinstance(message, Ended) and message.pid in self._workers:
            self._workers.pop(message.pid).end(message.code)

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
        said = last_line(self._log_path, self._log_start)
        return WorkerDied(*sentence(NAME, self._process.returncode, True, said))
