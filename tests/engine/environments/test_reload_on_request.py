"""A reload that somebody asks for: another process of what may be the same version, and an end to a rest."""

from __future__ import annotations

import asyncio
import os

import pytest

from marlaas.engine.errors import EnvironmentFailure, EnvironmentMissing
from marlaas.plugins.messages import Ask, Reply

from .conftest import ECHO, World, a_spec, echoing

pytestmark = pytest.mark.processes

READER = """
from pathlib import Path
from marlaas.plugins import env

SAID = Path({path!r}).read_text()

@env
async def reader(ep):
    reply = await ep.ask(SAID)
    if SAID == "die":
        import os
        os._exit(1)
    return reply.text == SAID
"""


async def test_a_reload_reads_outside_files_again(world: World) -> None:
    outside = world.folder.parent / "outside.txt"
    outside.write_text("before")
    world.save("reader.py", READER.format(path=str(outside)))
    await world.service.start()
    asked, answered = asyncio.Event(), asyncio.Event()
    heard: list[str] = []

    async def slow(ask: Ask) -> Reply:
        heard.append(ask.messages[-1].content)
        asked.set()
        await answered.wait()
        return await echoing(ask)

    with await world.service.bind("reader") as before:
        playing = asyncio.ensure_future(world.service.play(before, a_spec(), slow))
        await asked.wait()
        outside.write_text("after")
        await world.service.reload("reader")
        with await world.service.bind("reader") as after:
            assert after.environment_version == before.environment_version, "its own files are the same"
            answered.set()
            assert (await world.service.play(after, a_spec(), slow)).rewards == {"agent": 1.0}
        assert (await playing).rewards == {"agent": 1.0}
        assert heard == ["before", "after"] and len(world.pids()) == 2
    await world.service.reload("reader")
    while len(world.pids()) > 1:  # the older ones end with their groups
        await asyncio.sleep(0)


async def test_a_plugin_that_rests_is_tried_again_at_once(world: World) -> None:
    outside = world.folder.parent / "outside.txt"
    outside.write_text("die")
    world.save("reader.py", READER.format(path=str(outside)))
    await world.service.start()
    with await world.service.bind("reader") as lease:
        while (await world.service.play(lease, a_spec(), echoing)).status == "error":
            if world.service.resolve("reader").state == "broken":
                break
    outside.write_text("live")
    assert world.service.resolve("reader").state == "broken"
    await world.service.reload("reader")
    assert world.service.resolve("reader").state == "ready"
    assert (await world.play("reader")).rewards == {"agent": 1.0}


async def test_a_failed_reload_names_the_line_and_serves_on(world: World) -> None:
    world.save("echo.py", ECHO)
    await world.service.start()
    (pid,) = world.pids()
    outside = world.folder.parent / "missing.txt"
    world.save("echo.py", READER.format(path=str(outside)))
    with pytest.raises(EnvironmentFailure, match=r"echo.py:5: FileNotFoundError"):
        await world.service.reload("echo")
    assert (await world.play("echo", word="x")).rewards == {"agent": 1.0} and pid in world.pids()
    os.remove(world.folder / "echo.py")
    with pytest.raises((EnvironmentFailure, EnvironmentMissing)):
        await world.service.reload("echo")


async def test_an_unknown_plugin_is_named_beside_the_known(world: World) -> None:
    world.save("echo.py", ECHO)
    await world.service.start()
    with pytest.raises(EnvironmentMissing, match="There are: echo"):
        await world.service.reload("ecco")
