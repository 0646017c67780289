"""Plugins that bring real libraries, served as in a home where everything may be installed.

Virtual environments stay in ``.libraries`` between runs; a first run installs some gigabytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from marlaas.engine.environments.dependencies import Interpreters
from marlaas.engine.environments.files import plugin_paths
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.home.settings import EnvironmentSettings
from marlaas.engine.trajectories import Failure
from marlaas.plugins.messages import Answer, Ask, Reply, ToolCall

from ..engine.environments.conftest import World, a_spec

LIBRARIES = Path(__file__).parents[2] / ".libraries"
PATIENCE = 1500
"""Seconds that a test may take where its libraries have to be installed first."""

Said = str | Reply
Says = Callable[[Ask], Said]


class PublishedVersions(World):
    """A folder of plugins whose libraries are installed without a question."""

    def __post_init__(self) -> None:
        interpreters = Interpreters(LIBRARIES, EnvironmentSettings(allow="always"))
        self.service = EnvironmentService([self.folder], self.scratch, self.hear, interpreters=interpreters)

    async def add(self, plugin: str, text: str) -> Failure | None:
        """Save one file and wait for what is decided about it; imports of seconds do not hold up each other so."""
        self.save(f"{plugin}.py", text)
        await self.service.scan()
        while True:
            event = await self.events.get()
            if event.plugin == plugin and event.kind in ("loaded", "rejected"):
                return event.failure

    async def start(self) -> dict[str, Failure | None]:
        """Start, and wait until every plugin is decided: why it is refused, or None where it serves."""
        plugins = len(plugin_paths(self.folder))
        await self.service.start()
        failures: dict[str, Failure | None] = {}
        while len(failures) < plugins:
            event = await self.events.get()
            if event.kind in ("loaded", "rejected"):
                failures[event.plugin] = event.failure
        return failures

    async def prompts(self, name: str, split: str, number: int) -> set[str]:
        """What the first so many instances of a split ask."""
        with await self.service.bind(name) as lease:
            asks = [await self.service.peek(lease, a_spec(split=split, index=index)) for index in range(number)]
        return {ask.messages[-1].content for ask in asks}

    async def episode(self, name: str, says: Says, **spec: object) -> EpisodeOutcome:
        """One episode with a model that answers by a function."""
        with await self.service.bind(name) as lease:
            return await self.service.play(lease, a_spec(**spec), model(says))

    async def episodes(self, name: str, player: Callable[[], Says], number: int) -> list[EpisodeOutcome]:
        """So many instances at the same time, on one process, each with a player of its own."""
        with await self.service.bind(name) as lease:
            playing = (self.service.play(lease, a_spec(index=index), model(player())) for index in range(number))
            return list(await asyncio.gather(*playing))


def model(says: Says) -> Answer:
    """Answers by a function, a turn of the loop later: episodes that are under way take turns."""
    turns: dict[tuple[str, int], int] = {}

    async def answer(ask: Ask) -> Reply:
        await asyncio.sleep(0)
        said = says(ask)
        turn = turns.get((ask.agent, ask.branch), 0)
        turns[ask.agent, ask.branch] = turn + 1
        return (
            Reply(said, "stop", turn) if isinstance(said, str) else Reply(said.text, said.finish, turn, said.tool_calls)
        )

    return answer


def calling(name: str, **arguments: object) -> Reply:
    """A reply that calls a tool."""
    return Reply("", "tool", 0, (ToolCall(name, dict(arguments)),))


@pytest.fixture
async def published(tmp_path: Path) -> AsyncIterator[PublishedVersions]:
    """Not yet started, so that a test can put files there first."""
    made = PublishedVersions(tmp_path / "plugins", tmp_path / "scratch")
    made.folder.mkdir()
    yield made
    await made.service.stop()
