"""A folder of plugins served by real processes, and what the tests do with it."""

from __future__ import annotations

import asyncio
import os
import textwrap
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from marlaas.engine.environments import plugin
from marlaas.engine.environments.protocol import EnvironmentEvent, EpisodeOutcome, EpisodeSpec, EventKind
from marlaas.engine.environments.served_version import Lease
from marlaas.engine.environments.service import EnvironmentService
from marlaas.plugins.messages import Ask, Reply

ECHO = """
from marlaas.plugins import env

@env
async def echo(ep, word: str = "hello"):
    reply = await ep.ask(word)
    return reply.text == word
"""


async def echoing(ask: Ask) -> Reply:
    """A model that repeats what it is told."""
    return Reply(ask.messages[-1].content, "stop", 0)


class Slow:
    """A model that answers when it is told to."""

    def __init__(self) -> None:
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, ask: Ask) -> Reply:
        self.asked.set()
        await self.go.wait()
        return await echoing(ask)


@dataclass
class World:
    """A service, its folder, and everything that it told."""

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

    async def play(self, name: str, **spec: object) -> EpisodeOutcome:
        """One episode on the newest version, with the echoing model."""
        with await self.service.bind(name) as lease:
            return await self.service.play(lease, a_spec(**spec), echoing)

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


async def under_way(world: World, lease: Lease, model: Slow) -> asyncio.Task[EpisodeOutcome]:
    """An episode that waits for its answer."""
    episode = asyncio.create_task(world.service.play(lease, a_spec(), model))
    await model.asked.wait()
    return episode


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """Not yet started, so that a test can put files there first. What is told does not depend on how fast it is."""
    monkeypatch.setattr(plugin, "SLOW", 3600.0)
    made = World(tmp_path / "plugins", tmp_path / "scratch")
    made.folder.mkdir()
    yield made
    await made.service.stop()
    while made.pids():  # killed is not yet gone; what was not killed ends in the test's time limit
        await asyncio.sleep(0)
