"""The host of a scoring process: it has one request at a time, of whichever version the engine says.

The engine sends ``load``, then ``score`` or ``rank``, and ``forget`` for a version that has ended. The host answers
``ready`` once, then ``loaded ranked end``. What a version leaves running behind its answer, a thread or a task, could
disturb the next one: the answer says so, and the engine then gives this process to no other version.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from pathlib import Path
from types import FrameType

from .blame import Blame
from .channel import Channel, Record
from .children import Reaper, keep_codes
from .kept import Kept, Surroundings
from .lateness import Lateness
from .limits import full
from .pulse import Pulse
from .scoring import ScoringRun
from .steps import charge_tasks
from .threads import ASIDE, EpisodeThreads, Stopped


class ScoringHost:
    """One process's state."""

    def __init__(self, pulse: socket.socket) -> None:
        """``pulse``: the connection on which the engine asks whether this process is alive."""
        self.blame = Blame(Path(os.devnull))
        """Of the version that is there."""
        self._kept: dict[int, Kept] = {}
        self._there: Kept | None = None
        self._loading = False
        self._run: ScoringRun | None = None
        self._closed = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(EpisodeThreads())
        charge_tasks(loop)
        keep_codes()
        self._lateness = Lateness(loop, self._busy)
        self._pulse = Pulse(pulse, self._lateness.take, self._busy, Reaper(self._numbers).tick)

    async def serve(self, channel: Channel) -> None:
        """Work until the channel closes."""
        self._channel = channel
        self._pulse.start()
        signal.signal(signal.SIGUSR1, self._interrupt)
        self._base = Surroundings.here()
        self._threads, self._tasks = set(threading.enumerate()), asyncio.all_tasks()
        channel.send({"op": "ready"})
        await self._closed.wait()

    def receive(self, message: Record) -> None:
        """Handle a message of the engine, which is trusted."""
        match message["op"]:
            case "load":
                self._load(message)
            case "forget":
                forgotten = self._kept.pop(message["version"], None)
                if forgotten is not None and forgotten is self._there:
                    self._switch(None)
            case "score" | "rank":
                kept = self._kept[message["version"]]
                self._switch(kept)
                self._run = ScoringRun(self, message, kept.environments[message["environment"]])
                self._lateness.watch()

    def closed(self, _reason: str) -> None:
        """The engine is gone, or done with this process."""
        self._closed.set()

    def scored(self, run: ScoringRun, record: Record) -> None:
        """See ``scoring.Host``."""
        self._run = None
        self._answer(record | {"left": self._left(run.busy, run.task)})

    def _load(self, message: Record) -> None:
        path, scratch = Path(message["path"]), Path(message["scratch"])
        kept = Kept(path, scratch, message["log"], self._base)
        try:
            self._switch(kept)
            self._loading = True
            try:
                kept.load()
            finally:
                self._loading = False
        except BaseException as error:  # SystemExit at import is a broken plugin too
            failure = kept.blame.of(error)
            if isinstance(error, Stopped):
                failure["message"] = "importing the plugin takes too long"
            end: Record = {"op": "end", "status": "error", "failure": failure}
            if isinstance(error, MemoryError) and full():
                end["full"] = True
            self._switch(None)
        else:
            self._kept[message["version"]] = kept
            end = {"op": "loaded"}
        self._answer(end | {"episode": message["episode"], "left": self._left(False, None)})

    def _answer(self, record: Record) -> None:
        self._channel.send(record)

    def _switch(self, kept: Kept | None) -> None:
        """Have this version there, or none, in place of the one before."""
        if kept is self._there:
            return
        if self._there is not None:
            self._there.leave()
        self._there = kept
        if kept is None:
            self._base.restore()
        else:
            self.blame = kept.blame
            kept.enter()

    def _left(self, busy: bool, done: asyncio.Task[None] | None) -> bool:
        """Whether something goes on that was not there when the process began."""
        threads = {one for one in threading.enumerate() if not one.name.startswith(ASIDE)}
        return busy or not threads <= self._threads or not asyncio.all_tasks() <= self._tasks | {done}

    def _busy(self) -> bool:
        return self._loading or self._run is not None

    def _numbers(self) -> set[int]:
        run = self._run
        return {run.number} if run is not None else set()

    def _interrupt(self, _signal: int, frame: FrameType | None) -> None:
        """Interrupt what keeps the loop, at the line where it is: an import or a function whose time is up."""
        if not self.blame.inside(frame):
            return
        if self._loading:
            raise Stopped
        if verdict := self._pulse.verdict():
            raise Stopped(verdict)
