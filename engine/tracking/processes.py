"""One observer for each tracker that a home or a task names; started again if it dies."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable

from ..errors import StoreError
from ..home.paths import Home
from ..home.settings import TrackSettings
from ..store.queries.reader import Reader
from .observer import MISSING

Log = Callable[[str, str, str], None]
LOOK = 3.0
"""Seconds between looks for a tracker that a new task names."""
PAUSE, LONG_PAUSE = 5.0, 600.0
"""Seconds before a dead observer is started again; the longer one if its package is missing."""
FAREWELL = 10.0
"""Seconds that observers may send what is left when the engine ends."""


class Trackers:
    """Keeps observers running while the engine runs."""

    def __init__(self, home: Home, settings: TrackSettings, log: Log) -> None:
        """``log``: kind, sentence, level."""
        self._home, self._settings, self._log = home, settings, log
        self._running: dict[str, asyncio.Task[None]] = {}
        self._children: dict[str, asyncio.subprocess.Process] = {}

    async def run(self) -> None:
        """Never returns."""
        while True:
            with contextlib.suppress(StoreError):  # a locked database: the next look sees it
                for client in await asyncio.to_thread(self._wanted):
                    if client not in self._running:
                        self._running[client] = asyncio.create_task(self._keep(client), name=f"tracker {client}")
            await asyncio.sleep(LOOK)

    async def stop(self) -> None:
        """Observers take a last look."""
        children = [*self._children.values()]
        for child in children:
            if child.stdin is not None:
                child.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL):
                await asyncio.gather(*(child.wait() for child in children))
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _wanted(self) -> list[str]:
        with Reader(self._home.database) as reader:
            return sorted({*self._settings.to, *reader.trackers()} - {"none"})

    async def _keep(self, client: str) -> None:
        while True:
            code = 0
            try:
                code = await self._live(client)
            except (OSError, ValueError) as error:  # no process can be started, or a line is too long to be one
                self._log("track", f"The observer for {client} cannot run: {error}", "warning")
            await asyncio.sleep(LONG_PAUSE if code == MISSING else PAUSE)

    async def _live(self, client: str) -> int:
        words = (sys.executable, "-P", "-m", "marlaas.engine.tracking.observer", str(self._home.root), client)
        self._home.logs.mkdir(parents=True, exist_ok=True)
        with open(self._home.logs / f"track-{client}.log", "ab") as log:
            child = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                process_group=0,
            )
        self._children[client] = child
        try:
            assert child.stdout is not None
            async for line in child.stdout:
                self._log("track", line.decode("utf-8", "replace").strip(), "warning")
            return await child.wait()
        finally:
            del self._children[client]
            with contextlib.suppress(ProcessLookupError):
                child.kill()
