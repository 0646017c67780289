"""Which version a task gets: the newest, or the one that it began with, long after the plugin has changed or gone."""

from __future__ import annotations

import pytest

from marlaas.engine.environments import service
from marlaas.engine.environments.files import source
from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.errors import ConfigError, EnvironmentMissing
from marlaas.plugins.messages import Ask

from .conftest import ECHO, World, a_spec, echoing

pytestmark = pytest.mark.processes
WIDER = ECHO.replace('word: str = "hello"', "times: int")


async def reward(world: World, name: str, version: str | None) -> float:
    with await world.service.bind(name, version, {}) as lease:
        return (await world.service.play(lease, a_spec(word="x"), echoing)).rewards["agent"]


async def test_a_pinned_version_outlives_its_plugin_and_its_engine(world: World) -> None:
    world.save("echo.py", ECHO)
    await world.service.start()
    first = world.service.resolve("echo").version
    (world.folder / "echo.py").unlink()
    await world.until("removed", "echo")
    assert await reward(world, "echo", first) == 1.0
    await world.service.stop()
    world.service = EnvironmentService([world.folder], world.scratch, world.hear)
    await world.service.start()
    assert world.service.infos() == ()
    assert world.service.full_name("echo", first) == "echo/echo"
    assert world.service.validate("echo", {"word": 3}, first) == {"word": 3}, "its process will tell"
    assert await reward(world, "echo", first) == await reward(world, "echo/echo", first) == 1.0
    with pytest.raises(ConfigError, match="'word' of echo must be a text"):
        world.service.validate("echo", {"word": 3}, first)
    with pytest.raises(EnvironmentMissing, match="There is no environment 'echo'"):
        await world.service.bind("echo")
    world.save("echo.py", ECHO)
    assert (await world.until("loaded", "echo")).version == first


async def test_parameters_are_checked_by_the_version_that_plays(world: World) -> None:
    world.save("echo.py", ECHO)
    await world.service.start()
    first = world.service.resolve("echo").version
    await world.until("loaded", "echo")
    world.save("echo.py", WIDER.replace("ask(word)", "ask('x')").replace("== word", "== 'x'"))
    second = (await world.until("loaded", "echo")).version
    with await world.service.bind("echo", first, {"word": "x"}) as lease:
        assert lease.config == {"word": "x"} and lease.by_version
    with await world.service.bind("echo", None, {"times": 2}) as lease:
        assert (lease.environment_version, lease.config) == (second, {"times": 2})
    for version, config in ((first, {"times": 2}), (second, {"word": "x"}), (None, {})):
        with pytest.raises(ConfigError):
            await world.service.bind("echo", version, config)
    with await world.service.bind("echo") as lease:
        assert lease.serving.leases == 1, "a lease that was refused is released"


async def test_snapshots_that_nobody_needs_are_removed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TIDY_EVERY", 1)
    monkeypatch.setattr(source, "SPARE", 1)
    needed: set[str] = set()
    world.service = EnvironmentService([world.folder], world.scratch, world.hear, needed=lambda: needed)
    world.save("echo.py", ECHO)
    await world.service.start()
    versions = [(await world.until("loaded", "echo")).version]
    needed.add(versions[0])
    for number in range(4):
        world.save("echo.py", ECHO.replace("reply.text == word", f"0.{number}"))
        versions.append((await world.until("loaded", "echo")).version)
    await world.service.scan()
    kept = {entry.name for entry in (world.scratch / "snapshots").iterdir()}
    assert {versions[0], versions[-1]} <= kept and versions[1] not in kept
    assert await reward(world, "echo", versions[0]) == 1.0
    with pytest.raises(EnvironmentMissing, match="no version"):
        await world.service.bind("echo", versions[1])
    world.save("echo.py", ECHO.replace("reply.text == word", "0.0"))
    assert (await world.until("loaded", "echo")).version == versions[1], "an edit that is taken back is proven anew"
    assert await reward(world, "echo", None) == 0.0


async def test_an_edited_comment_is_another_version_of_the_same_code(world: World) -> None:
    world.save("echo.py", ECHO)
    await world.service.start()
    await world.until("loaded", "echo")
    with await world.service.bind("echo") as lease:
        first, code = lease.environment_version, lease.code
    for edited, same in ((f"# Words.\n{ECHO}", True), (ECHO.replace("== word", "!= word"), False), (ECHO, True)):
        world.save("echo.py", edited)
        await world.until("loaded", "echo")
        with await world.service.bind("echo") as lease:
            assert (lease.code == code) is same and (lease.environment_version == first) is (edited == ECHO)
    await world.service.stop()
    (world.folder / "echo.py").unlink()
    world.service = EnvironmentService([world.folder], world.scratch, world.hear)
    await world.service.start()
    with await world.service.bind("echo", first) as lease:
        assert lease.code == code, "also of a version whose plugin has gone"


LOOKED_AT = """
import os
from marlaas.plugins import env

def rows(split):
    return [{"word": f"{split} {number}"} for number in range(3)]

@env(data=rows)
async def data(ep, task):
    return (await ep.ask(task["word"])).text == "x"

@env
async def trouble(ep, how: str = ""):
    if how == "raise":
        raise LookupError("no such word")
    if how == "die":
        os._exit(1)
    if how == "end":
        return 1.0
    return float((await ep.ask("?")).text == "x")
"""


async def test_what_is_looked_at_says_why_it_has_no_question(world: World) -> None:
    world.save("looked.py", LOOKED_AT)
    await world.service.start()
    await world.until("loaded", "looked")
    with await world.service.bind("looked/data", None, {}) as lease:
        assert lease.declared.rows
        asks = [await world.service.look(lease, EpisodeSpec("eval", index, 0, 0)) for index in range(4)]
        assert [isinstance(ask, Ask) and ask.messages[0].content for ask in asks] == [
            "eval 0", "eval 1", "eval 2", "eval 0",
        ]  # fmt: skip
    with await world.service.bind("looked/trouble", None, {}) as lease:
        assert not lease.declared.rows
        ended = {}
        for how in ("raise", "end", "die"):
            seen = await world.service.look(lease, EpisodeSpec("eval", 0, 0, 0, {"how": how}))
            assert isinstance(seen, EpisodeOutcome)
            ended[how] = seen.status, bool(seen.failure and seen.failure.line)
    assert ended == {"raise": ("error", True), "end": ("ok", False), "die": ("error", False)}
