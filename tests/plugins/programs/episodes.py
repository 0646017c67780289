"""Episodes for programs, with a model behind HTTP that answers from a list."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from marlaas.plugins import Endpoint, Environment, Episode
from marlaas.plugins.parameters import complete
from marlaas.plugins.rewards import Rewards, rewards_of

from ..scripted import Model


async def nowhere() -> Endpoint:
    """An address at which nobody is."""
    return Endpoint("http://127.0.0.1:9/v1", "tml-nobody")


def episode(environment: Environment, task: Any = None, opens: Any = nowhere, **config: Any) -> Episode:
    settings = complete(environment.parameters, config, environment.name)
    return Episode(Model(), task=task, config=settings, declared=environment.agents, opens=opens, index=7)


async def result_of(environment: Environment, ep: Episode) -> Any:
    """What the environment returns for the episode."""
    task = {"task": ep.task} if environment.takes_task else {}
    return await environment.function(ep, **ep.config, **task)


async def rewards(environment: Environment, task: Any = None, opens: Any = nowhere, **config: Any) -> Rewards:
    ep = episode(environment, task, opens, **config)
    return rewards_of(await result_of(environment, ep), ep.payees, ep.earned)


class Served:
    """A model that speaks OpenAI's chat completions, as far as the example's agent needs it."""

    def __init__(self, *replies: str) -> None:
        self.replies = list(replies)
        self.asked: list[tuple[str, str, Any]] = []
        """Path, key and body of each request."""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            body = json.loads(await reader.readexactly(int(headers["content-length"])))
            self.asked.append((head[0].split()[1], headers["authorization"].removeprefix("bearer "), body))
            said = {"choices": [{"message": {"role": "assistant", "content": self.replies.pop(0)}}]}
            content = json.dumps(said).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(content) + content)
            await writer.drain()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Any]:
        """What opens addresses of this model."""
        server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]

        async def opens() -> Endpoint:
            return Endpoint(f"http://127.0.0.1:{port}/v1", "tml-episode")

        try:
            yield opens
        finally:
            server.close()


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def leftovers(mark: str) -> list[int]:
    """Processes left by programs that were started under that mark: other tests run theirs at the same time."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            if f"{mark}=".encode() in Path(f"/proc/{int(name)}/environ").read_bytes():
                found.append(int(name))
    return found
