"""One bad entry of a ``.toml`` plugin: the others serve, and it is shown with file, line and key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from marlaas.engine.environments.dependencies.interpreters import Interpreters
from marlaas.engine.environments.service import EnvironmentService, ranked
from marlaas.engine.errors import EnvironmentFailure
from marlaas.engine.home.settings import EnvironmentSettings
from marlaas.plugins.messages import Answer, Ask, Reply

from ..conftest import World, a_spec
from ..dependencies.wheels import make_wheel

pytestmark = pytest.mark.processes

LIBRARY = """
class Text:
    def __contains__(self, text):
        return text.isascii()


class Echo:
    action_space = Text()

    def reset(self, seed=None):
        return "say it", {}

    def step(self, action):
        return "", 1.0 if action == "say it" else -5.0, True, False, {}


class Raising(Echo):
    def reset(self, seed=None):
        raise RuntimeError("there is no board")


def make(name, **options):
    return {"Echo": Echo, "Raising": Raising}[name]()
"""
FIRST = 'dependencies = ["tiny==1.0"]\n\n[[environments]]\nadapter = "gymnasium"\nenvironment = "Echo"\nname = "echo"\n'
SECOND = '\n[[environments]]\nadapter = "gymnasium"\nenvironment = "Echo"\nname = "second"\n'
THIRD = '\n[[environments]]\nadapter = "gymnasium"\nenvironment = "Raising"\nname = "third"\n'


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """With a library of ours under the name of the one that the adapter asks for; not yet started."""
    make_wheel(tmp_path / "wheels", "tiny", "1.0", {"gymnasium.py": LIBRARY})
    made = World(tmp_path / "plugins", tmp_path / "scratch")
    made.folder.mkdir()
    settings = EnvironmentSettings(allow="always", wheels=str(tmp_path / "wheels"), offline=True)
    interpreters = Interpreters(tmp_path / "venvs", settings)
    made.service = EnvironmentService([made.folder], made.scratch, made.hear, interpreters=interpreters)
    yield made
    await made.service.stop()


def states(world: World) -> dict[str, str]:
    return {info.name: info.state for info in world.service.infos()}


async def test_a_bad_entry_is_shown_and_the_others_serve(world: World) -> None:
    world.save("games.toml", FIRST + SECOND + "max_turns = 'two'\n" + THIRD)
    await world.service.start()
    await world.until("loaded", "games")
    assert states(world) == {"games/echo": "ready", "games/second": "broken", "games/third": "broken"}
    assert (await world.play("games/echo")).rewards == {"agent": 1.0}

    shown = {info.name: info.failure for info in world.service.infos()}
    second, third = shown["games/second"], shown["games/third"]
    assert second is not None and (second.file, second.line) == ("games.toml", 12)
    assert "'max_turns' must be a whole number, not 'two'" in second.message
    assert third is not None and "there is no board" in third.message, "it was found at its first question"
    with pytest.raises(EnvironmentFailure, match=r"^games.toml:12: .*'max_turns'"):
        await world.service.bind("games/second")
    with pytest.raises(EnvironmentFailure, match=r"^games.toml:12: "):
        world.service.validate("games/second", {})
    with pytest.raises(EnvironmentFailure, match=r"^games.toml:12: "):
        await world.service.reload("games")

    while not world.events.empty():
        world.events.get_nowait()
    world.save("games.toml", FIRST + SECOND)
    await world.until("loaded", "games")
    assert states(world) == {"games/echo": "ready", "games/second": "ready"}


async def test_an_unreadable_reply_gets_the_least_of_its_group(world: World) -> None:
    """A wrong reply costs 5 here, which the adapter cannot know."""
    world.save("games.toml", FIRST)
    await world.service.start()
    await world.until("loaded", "games")

    def saying(text: str) -> Answer:
        async def answer(ask: Ask) -> Reply:
            return Reply(text, "stop", 0)

        return answer

    with await world.service.bind("games/echo") as lease:
        replies = ("say it", "é", "wrong")
        played = [await world.service.play(lease, a_spec(member=n), saying(text)) for n, text in enumerate(replies)]
        assert [one.rewards["agent"] for one in played] == [1.0, -1.0, -5.0]
        members = await ranked(world.service, lease, played)
    assert [one.rewards["agent"] for one in members] == [1.0, -5.0, -5.0]
    assert members[1].parts["own_reward"] == -1.0 and members[1].metrics["unreadable"] == 1.0


async def test_without_a_good_entry_the_last_version_serves(world: World) -> None:
    world.save("games.toml", FIRST)
    await world.service.start()
    await world.until("loaded", "games")
    world.save("games.toml", FIRST.replace('"Echo"', '"Raising"'))
    rejected = await world.until("rejected", "games")
    assert rejected.failure is not None and "there is no board" in rejected.failure.message
    assert states(world) == {"games/echo": "stale"} and (await world.play("games/echo")).status == "ok"
