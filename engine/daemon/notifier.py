"""Runs the command under ``[notify]`` for events of tasks: one JSON line on its standard input for each, in turn.

It runs in its own process group, without a shell and for a limited time. A failure is logged once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import shlex
import signal
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO

from ..errors import StoreError
from ..home import Home
from ..store import Reader

LIMIT = 30.0
FAREWELL = 5.0
MOST = 1000
"""Most queued events: a slow command must not fill the memory."""
EXCERPT = 2000

Log = Callable[[str, str, str], None]


class Notifier:
    """Runs one home's command, if there is one."""

    def __init__(self, command: str, home: Home, log: Log, limit: float = LIMIT) -> None:
        self._words = shlex.split(command)
        self._home = home
        self._log = log
        self._limit = limit
        self._events: asyncio.Queue[tuple[str, int]] = asyncio.Queue(MOST)
        self._failing = False
        self._work: asyncio.Task[None] | None = None

    def tell(self, event: str, task: int) -> None:
        """Queue an event: *done*, *failed*, *stalled* or *finding*. Never waits."""
        if not self._words:
            return
        if self._work is None:
            self._work = asyncio.ensure_future(self._run())
        try:
            self._events.put_nowait((event, task))
        except asyncio.QueueFull:
            self._failed(f"more than {MOST} events wait for it")

    async def delivered(self) -> None:
        await self._events.join()

    async def stop(self) -> None:
        if self._work is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL):
                await self.delivered()
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            event, task = await self._events.get()
            try:
                line = await asyncio.to_thread(described, self._home, event, task)
                problem = await self._deliver(line)
            except (OSError, ValueError, RuntimeError, StoreError) as error:
                problem = str(error)
            finally:
                self._events.task_done()
            if problem:
                self._failed(problem)
            else:
                self._failing = False

    async def _deliver(self, line: bytes) -> str:
        """Run the command with a line on its standard input; returns the error, or empty.

        Its remaining processes are ended. Standard error goes to a file, because a pipe ends only with its last holder.
        """
        program = str(Path(self._words[0]).expanduser())
        with tempfile.TemporaryFile() as errors:
            process = await asyncio.create_subprocess_exec(
                program, *self._words[1:], stdin=PIPE, stdout=DEVNULL, stderr=errors, start_new_session=True
            )
            try:
                async with asyncio.timeout(self._limit):
                    await process.communicate(line)
            except TimeoutError:
                return f"it took longer than {self._limit:g} s and was ended"
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            if not process.returncode:
                return ""
            words = _last_line(errors)
            return f"it ended with code {process.returncode}{f': {words}' if words else ''}"

    def _failed(self, problem: str) -> None:
        if not self._failing:
            text = f"The command under [notify] failed: {problem}. This is not said again until it works."
            self._log("notify", text, "warning")
        self._failing = True


def _last_line(errors: IO[bytes]) -> str:
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - EXCERPT))
    lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def described(home: Home, event: str, task: int) -> bytes:
    """The JSON line of an event: its kind, the home, and the task's row; numbers that are not finite are null.

    Raises ``StoreError``.
    """
    with Reader(home.database) as reader:
        row = reader.task(task)
    fields = asdict(row) if row else {"id": task}
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in fields.items()}
    return json.dumps({"event": event, "home": str(home.root), **finite}).encode() + b"\n"
