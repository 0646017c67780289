"""A child on a node, as the engine's handle sees it: over the bridge, with its log on the engine's machine.

It ends once. Whatever comes first ends it: the child's exit, the loss of its node host, the bridge's death, or an order
to kill it that nobody answers, because the way there is dark. What comes later is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from ..errors import MarlaasError
from ..workers import WorkerHandle, last_line
from .relay import Begin, Born, Close, Data, Ended, Event, Kill, Printed

SILENCE = 5.0
"""Seconds after an order to kill from which on the child counts as ended."""


class RemoteChild:
    """Implements ``workers.child.Child``. All methods belong to the event loop of the bridge's handle."""

    def __init__(self, bridge: WorkerHandle, node: str, begin: Begin, log_path: Path) -> None:
        """Starts the child."""
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self.node = node
        self.pid = 0
        self.returncode: int | None = None
        self.reader = asyncio.StreamReader()
        self._bridge = bridge
        self._number = begin.child
        self._log_path = log_path
        self._log_start = log_path.stat().st_size if log_path.exists() else 0
        self._reason = ""
        self._ended = asyncio.Event()
        self._silence: asyncio.TimerHandle | None = None
        self._running = bridge.call("start", node, begin, stream_to=self._receive)
        self._running.add_done_callback(self._end)

    def write(self, data: bytes) -> None:
        """See ``Child``."""
        self._tell(Data(self._number, data))

    def close(self) -> None:
        """See ``Child``."""
        self._tell(Close(self._number))

    def kill(self) -> None:
        """See ``Child``."""
        self._tell(Kill(self._number))
        if not self._ended.is_set() and self._silence is None:
            self._silence = asyncio.get_running_loop().call_later(SILENCE, self._give_up)

    async def wait(self) -> None:
        """See ``Child``."""
        await self._ended.wait()

    def last_words(self) -> str:
        """See ``Child``."""
        return self._reason or last_line(self._log_path, self._log_start)

    def _tell(self, event: Data | Close | Kill) -> None:
        if not self._ended.is_set():
            self._bridge.post("tell", event, haste=True)

    def _receive(self, event: Event) -> None:
        if self._ended.is_set():
            return
        if isinstance(event, Data):
            self.reader.feed_data(event.data)
        elif isinstance(event, Born):
            self.pid = event.pid
        elif isinstance(event, Printed):
            with contextlib.suppress(OSError), open(self._log_path, "ab") as log:  # a full disk ends nobody
                log.write(event.data)

    def _end(self, running: asyncio.Future[Any]) -> None:
        if running.cancelled():
            ended = Ended(self._number, None, "the way to it has ended")
        elif (error := running.exception()) is not None:
            ended = Ended(self._number, None, error.message if isinstance(error, MarlaasError) else str(error))
        else:
            ended = running.result()
        self._settle(ended)

    def _give_up(self) -> None:
        self._settle(Ended(self._number, None, "its node answers nothing"))

    def _settle(self, ended: Ended) -> None:
        if self._ended.is_set():
            return
        if self._silence is not None:
            self._silence.cancel()
        self.returncode, self._reason = ended.status, ended.reason
        self.reader.feed_eof()
        self._ended.set()
