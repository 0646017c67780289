"""What was begun and is not wanted any more: the proof of an edit that another one overtook, a process that was being
started for a group that has gone. Nothing of it serves, and no process of it stays."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from marlaas.engine.environments import service
from marlaas.engine.environments.service import EnvironmentService

from .conftest import ECHO, World

pytestmark = pytest.mark.processes

CLOSES_SLOWLY = """
import asyncio, time
from marlaas.plugins import env

@env(name="held")
class Held:
    async def play(self, ep):
        open({marker!r}, "w").close()
        await asyncio.sleep(600)

    def close(self):
        time.sleep(0.5)
"""


def waiting_for(marker: Path, text: str = ECHO) -> str:
    """A plugin whose import waits until the file is there."""
    return f"import os, time\nwhile not os.path.exists({str(marker)!r}):\n    time.sleep(0.01)\n{text}"


async def until_there(path: Path) -> None:
    while not path.exists():
        await asyncio.sleep(0.01)


async def test_stopping_waits_for_processes_of_overtaken_edits(world: World) -> None:
    probed = world.folder.parent / "probed"
    world.save("echo.py", CLOSES_SLOWLY.format(marker=str(probed)))
    (proof,) = await world.service.scan()
    await until_there(probed)
    world.save("echo.py", ECHO)
    await world.service.scan()
    await world.service.stop()
    assert proof.done() and world.pids() == []


async def test_stopping_waits_for_forgotten_versions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TIDY_EVERY", 1)
    world.service = EnvironmentService([world.folder], world.scratch, world.hear, needed=lambda: frozenset())
    text = CLOSES_SLOWLY.format(marker=str(world.folder.parent / "probed"))
    world.save("echo.py", text.replace("asyncio.sleep(600)", 'ep.ask("x")'))
    await asyncio.wait(await world.service.scan())
    world.save("echo.py", ECHO)
    await asyncio.wait(await world.service.scan())
    await world.service.scan()  # which tidies up
    await world.service.stop()
    assert world.pids() == []


async def test_a_proof_ends_when_the_files_cannot_be_read_any_more(world: World) -> None:
    go = world.folder.parent / "go"
    world.save("echo.py", waiting_for(go))
    (proof,) = await world.service.scan()
    (world.folder / "echo.txt").symlink_to("/etc/passwd")
    await world.service.scan()
    go.touch()
    await asyncio.wait((proof,))
    (info,) = world.service.infos()
    assert (info.state, info.version) == ("broken", ""), "what was proven is not what the author sees as the newest"
    assert world.pids() == []


async def test_a_start_that_nobody_awaits_any_more_ends(world: World) -> None:
    go = world.folder.parent / "go"
    go.touch()
    world.save("echo.py", waiting_for(go))
    await world.service.start()
    with await world.service.bind("echo") as lease:
        first = lease
    world.save("echo.py", ECHO)
    while world.service.resolve("echo").version == first.environment_version:
        await world.until("loaded", "echo")
    await first.serving.settle()
    (serves,) = world.pids()
    go.unlink()
    binding = asyncio.ensure_future(world.service.bind("echo", first.environment_version))
    while len(world.pids()) < 2:
        await asyncio.sleep(0.01)
    binding.cancel()
    await asyncio.gather(binding, return_exceptions=True)
    go.touch()
    while world.pids() != [serves]:
        await asyncio.sleep(0.01)
    assert first.serving.pid is None
