"""The process behind a handle, on any machine, and the process on this machine.

A child has a stream of bytes each way, ends once, and leaves last words in a log on the engine's machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from .ending import last_line
from .forked import ForkedProcess, Template

NOTHING: Mapping[str, str] = MappingProxyType({})


class Child(Protocol):
    """One worker process."""

    @property
    def pid(self) -> int:
        """Its process id on its machine; 0 if unknown yet."""

    @property
    def node(self) -> str:
        """Ray's id of its node; empty for the engine's machine."""

    @property
    def returncode(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs, or if it is lost."""

    @property
    def reader(self) -> asyncio.StreamReader:
        """Its output. It is at its end soon after the process has ended."""

    def write(self, data: bytes) -> None:
        """Send bytes, at once and in order; an ended process gets none."""

    def close(self) -> None:
        """Close the connection, which ends the process."""

    def kill(self) -> None:
        """End it at once; an ended one is fine."""

    async def wait(self) -> None:
        """Return when it has ended, or is lost."""

    def last_words(self) -> str:
        """The last line of its log since it started, or why it is lost; else empty."""


class LocalChild:
    """A child of this process, over a socketpair. Make one with ``start``."""

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


async def run_host(
    name: str, theirs: socket.socket, cores: tuple[int, ...], nice: int, environment: Mapping[str, str], output: int
) -> asyncio.subprocess.Process:
    """Start ``workers.host`` as a child of this process, with its end of a socketpair and its output."""
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
    """End a process at once; not by ``Process.kill``, which polls first and so takes asyncio's exit status away."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
