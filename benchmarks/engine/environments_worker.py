"""One worker of a plugin without an engine: the least that can be at the other end of its wire.

Flows in: a plugin's path. Flows out: how many episodes a second the worker plays when nothing but it can be slow.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import perf_counter

from marlaas.engine.environments.process.launch import Folders, launch
from marlaas.engine.environments.process.wire import encode_reply, encode_start
from marlaas.engine.environments.protocol import EpisodeSpec
from marlaas.plugins.host.channel import Channel, Record
from marlaas.plugins.messages import Reply


class Driver:
    """Starts an episode for each that ends, and answers every ask with the same reply."""

    def __init__(self, environment: str, spec: EpisodeSpec, reply: Reply, episodes: int, at_once: int) -> None:
        self._start = encode_start(0, environment, spec)
        self._reply = encode_reply(0, reply)
        self._left = self._unended = episodes
        self._at_once = at_once
        self._began = 0.0
        self.seconds: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        """From the first start to the last end. Raises what went wrong."""

    async def run(self, path: Path, folders: Folders) -> float:
        """Start the worker, play, end it; episodes a second."""
        worker, episodes = await launch(path, folders), self._unended
        loop = asyncio.get_running_loop()
        try:
            _, self._channel = await loop.create_connection(
                lambda: Channel(self._receive, self._lost), sock=worker.connection
            )
            return episodes / await self.seconds
        finally:
            worker.kill()
            await worker.wait()

    def _receive(self, record: Record) -> None:
        match record["op"]:
            case "hello":
                self._began = perf_counter()
                for _ in range(min(self._at_once, self._left)):
                    self._begin()
            case "ask":
                self._channel.send(self._reply | {"id": record["id"]})
            case "end" if record["status"] == "ok":
                self._unended -= 1
                if self._left:
                    self._begin()
                elif not self._unended:
                    self.seconds.set_result(perf_counter() - self._began)
            case _:
                self._lost(f"the worker said {record}")

    def _begin(self) -> None:
        self._channel.send(self._start | {"episode": self._left})
        self._left -= 1

    def _lost(self, reason: str) -> None:
        if not self.seconds.done():
            self.seconds.set_exception(RuntimeError(reason))
