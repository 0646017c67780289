"""A folder of plugins served by real processes, and what the tests do with it."""

from __future__ import annotations

import asyncio
import os
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from marlaas.engine.environments import plugin, pool
from marlaas.engine.environments.protocol import Answering, EnvironmentEvent, EpisodeOutcome, EpisodeSpec, EventKind
from marlaas.engine.environments.served_version import Lease
from marlaas.engine.environments.service import EnvironmentService
from marlaas.plugins.messages import Answer, Ask, Reply

ECHO = """
from marlaas.plugins import env

@env
async def echo(ep, word: str = "hello"):
    reply = await ep.ask(word)
    return reply.text == word
"""


async def echoing(ask: Ask) -> Reply:
    """A model that repeats the last message."""
    return Reply(ask.messages[-1].content, "stop", 0)


class Slow:
    """A model that answers once ``go`` is set, and counts requests."""

    def __init__(self) -> None:
        self.asked, self.go, self.came = 0, asyncio.Event(), asyncio.Event()

    async def __call__(self, ask: Ask) -> Reply:
        self.asked += 1
        self.came.set()
        await self.go.wait()
        return await echoing(ask)

    async def until(self, count: int) -> None:
        while self.asked < count:
            self.came.clear()
            await self.came.wait()


class Meeting:
    """A model that answers once ``count`` episodes ask at the same time."""

    def __init__(self, count: int) -> None:
        self.missing, self.complete = count, asyncio.Event()

    async def __call__(self, ask: Ask) -> Reply:
        self.missing -= 1
        if self.missing == 0:
            self.complete.set()
        await self.complete.wait()
        return await echoing(ask)


@dataclass
class World:
    """A service, its folder, and its events."""

    folder: Path
    scratch: Path
    events: asyncio.Queue[EnvironmentEvent] = field(default_factory=asyncio.Queue)
    told: list[EnvironmentEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.service = EnvironmentService([self.folder], self.scratch, self.hear)

    def hear(self, event: EnvironmentEvent) -> None:
        self.told.append(event)
        self.events.put_nowait(event)

    def save(self, name: str, text: str) -> None:
        """As an editor does: a new file under the old name."""
        unfinished = self.folder / f".{name}.new"
        unfinished.write_text(textwrap.dedent(text))
        unfinished.replace(self.folder / name)

    async def until(self, kind: EventKind, plugin: str) -> EnvironmentEvent:
        """The next event of that kind, past or future."""
        while True:
            event = await self.events.get()
            if (event.kind, event.plugin) == (kind, plugin):
                return event

    async def serve(self, **plugins: str) -> None:
        """Start with these plugins, of one file each."""
        for name, text in plugins.items():
            self.save(f"{name}.py", text)
        await self.service.start()

    async def edit(self, name: str, text: str, kind: EventKind = "loaded") -> EnvironmentEvent:
        """Save a plugin of one file, and wait for what becomes of it."""
        while not self.events.empty():
            self.events.get_nowait()
        self.save(f"{name}.py", text)
        return await self.until(kind, name)

    async def play(
        self, name: str, model: Answer | Answering = echoing, counts: bool = False, **spec: object
    ) -> EpisodeOutcome:
        """One episode on the newest version."""
        with await self.service.bind(name) as lease:
            return await self.service.play(lease, a_spec(**spec), model, counts)

    def pids(self) -> list[int]:
        """Processes whose working folder is inside this world: the plugins' own, and what they started."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.readlink(entry / "cwd").startswith(str(self.scratch)):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found


def a_spec(**given: object) -> EpisodeSpec:
    """An episode of the train split; keywords that are no fields of the spec are its configuration."""
    fields = {"split": "train", "index": 0, "seed": 0, "member": 0, "timeout": None}
    config = {name: value for name, value in given.items() if name not in fields}
    chosen = fields | {name: value for name, value in given.items() if name in fields}
    return EpisodeSpec(**chosen, config=config)  # type: ignore[arg-type]


async def ended(process: int) -> None:
    """Wait until a process has ended; it may be anybody's child."""
    watched, gone = os.pidfd_open(process), asyncio.Event()
    asyncio.get_running_loop().add_reader(watched, gone.set)
    await gone.wait()
    asyncio.get_running_loop().remove_reader(watched)
    os.close(watched)


def line_of(source: str, text: str) -> int:
    """The first line that has this text."""
    return next(number for number, line in enumerate(source.splitlines(), 1) if text in line)


async def under_way(world: World, lease: Lease, model: Slow) -> asyncio.Task[EpisodeOutcome]:
    """An episode that waits for its answer."""
    episode = asyncio.create_task(world.service.play(lease, a_spec(), model))
    await model.until(1)
    return episode


@asynccontextmanager
async def a_world(folder: Path) -> AsyncIterator[World]:
    """Not yet started, so that a test can put files there first. Events do not depend on how fast the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugin, "SLOW", 3600.0)
        patch.setattr(pool, "_FIRST_PAUSE", 0.001)
        made = World(folder / "plugins", folder / "scratch")
        made.folder.mkdir()
        yield made
        await made.service.stop()
    while made.pids():  # killed is not yet gone; what was not killed ends in the test's time limit
        await asyncio.sleep(0)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with a_world(tmp_path) as made:
        yield made
