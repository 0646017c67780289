"""One version of one plugin, kept served for as long as somebody needs it.

Flows in: a snapshot to serve and episodes to play on it. Flows out: their outcomes. When the process dies it is started
again, later each time; a version that keeps dying rests in quarantine. Which version is the newest is not known here.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from ..types import Failure
from .child import BrokenPlugin, Child
from .launch import Folders
from .probe import probe
from .protocol import Answer, EpisodeOutcome, EpisodeSpec, EventKind
from .wire import Described

IMPORT_PATIENCE = 30.0
"""Seconds that importing a plugin may take."""
_FIRST_PAUSE = 0.05
_WINDOW = 60.0
_MOST_DEATHS = 3
"""Deaths within the window after which a version rests for as long as the window."""

Told = Callable[[EventKind, str, Failure | None], None]


class Serving:
    """A version: its process if one is alive, its leases, and its record of deaths."""

    def __init__(self, version: str, path: Path, folders: Folders, tell: Told) -> None:
        self.version = version
        self.environments: dict[str, Described] = {}
        self.leases = 0
        self.retired = False
        """No new groups: the process ends with its last lease and episode."""
        self._path = path
        self._folders = folders
        self._tell = tell
        self._child: Child | None = None
        self._deaths: deque[float] = deque(maxlen=_MOST_DEATHS)
        self._last_failure = Failure("")
        self._starting: asyncio.Task[Child] | None = None
        self._ending: set[asyncio.Task[None]] = set()

    async def prove(self) -> None:
        """Start a process and play up to the first ask of every environment; ``BrokenPlugin`` if anything fails."""
        try:
            while True:
                child = await self._child_alive()
                try:
                    return await probe(child)
                except BrokenPlugin:
                    if child.dead is None:
                        raise  # else it is tried again, until quarantine ends that
        except BaseException:
            await self.stop("it was found broken")
            raise

    async def warm(self) -> None:
        """Start the process if it is down; ``BrokenPlugin`` if that fails."""
        await self._child_alive()

    @property
    def quarantine(self) -> Failure | None:
        """Why this version rests, while it does."""
        if len(self._deaths) < _MOST_DEATHS or self._deaths[0] < self._deaths[-1] - _WINDOW:
            return None
        if time.monotonic() - self._deaths[-1] > _WINDOW:
            return None
        last = self._last_failure
        message = f"it died {_MOST_DEATHS} times within {_WINDOW:g} s and rests; the last time: {last.message}"
        return Failure(message, last.file, last.line, last.traceback)

    @property
    def pid(self) -> int | None:
        """The process, while one is alive."""
        return self._child.pid if self._child is not None else None

    async def play(self, environment: str, spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        """Play one episode on the process of this version, starting it where it is down."""
        try:
            child = await self._child_alive()
        except BrokenPlugin as error:
            return EpisodeOutcome("error", failure=error.failure)
        try:
            return await child.play(environment, spec, answer)
        finally:
            self.stop_if_done()

    def release(self) -> None:
        """A lease ends."""
        self.leases -= 1
        self.stop_if_done()

    def idled(self) -> None:
        """See ``child.Owner``."""
        self.stop_if_done()

    def stop_if_done(self) -> None:
        """End the process of a retired version once nobody plays on it."""
        if self.retired and not self.leases and self._child is not None and self._child.idle:
            self._end(self._child, "its version was replaced")

    async def settle(self) -> None:
        """Wait until the processes that were told to end are gone."""
        await asyncio.gather(*self._ending)

    async def stop(self, reason: str) -> None:
        """End the process now and wait until it is gone."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        if self._child is not None:
            self._end(self._child, reason)
        await self.settle()

    async def _child_alive(self) -> Child:
        if self._child is not None:
            return self._child
        if self._starting is None or self._starting.done():
            self._starting = asyncio.get_running_loop().create_task(self._start())
            self._starting.add_done_callback(_retrieve)
        return await asyncio.shield(self._starting)

    async def _start(self) -> Child:
        while True:
            rest = self.quarantine
            if rest is not None:
                raise BrokenPlugin(rest)
            deaths = sum(time.monotonic() - death < _WINDOW for death in self._deaths)
            if deaths:
                await asyncio.sleep(_FIRST_PAUSE * 4 ** (deaths - 1))
            try:
                child = await Child.start(self._path, self._folders, self, IMPORT_PATIENCE)
            except BrokenPlugin as error:
                if not error.died:
                    raise
                self._bury(error.failure)
                continue
            self.environments = child.environments
            self._child = child
            if deaths:
                self._tell("restarted", self.version, None)
            return child

    def died(self, failure: Failure) -> None:
        """See ``child.Owner``."""
        dead, self._child = self._child, None
        if dead is not None:
            self._reap(dead)
        self._bury(failure)
        if self.quarantine is None and (self.leases or not self.retired):
            self._starting = asyncio.get_running_loop().create_task(self._start())
            self._starting.add_done_callback(_retrieve)

    def _bury(self, failure: Failure) -> None:
        self._deaths.append(time.monotonic())
        self._last_failure = failure
        rest = self.quarantine
        self._tell("quarantined" if rest else "died", self.version, rest or failure)

    def _end(self, child: Child, reason: str) -> None:
        self._child = None
        child.kill(reason)
        self._reap(child)

    def _reap(self, child: Child) -> None:
        task = asyncio.get_running_loop().create_task(child.wait())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def _retrieve(task: asyncio.Task[Child]) -> None:
    """Look at the error of a start that nobody waits for: the next one who needs the process meets it anew."""
    if not task.cancelled():
        task.exception()
