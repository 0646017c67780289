"""External programs as environments, in the processes of their plugins: time limits, failures, and whom they leave."""

from __future__ import annotations

import asyncio

import pytest

from marlaas.engine.environments.protocol import Answering, EpisodeOutcome, Listener
from marlaas.plugins import Endpoint

from .conftest import World, a_spec, echoing

pytestmark = pytest.mark.processes

PLUGIN = """
import asyncio
from marlaas.plugins import env

WAITS = "import subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True); time.sleep(600)"
hangs = env.program(["python", "-c", WAITS], name="hangs", reward="exit", timeout=1.0)
spins = env.program(["bash", "-c", "while :; do :; done"], name="spins", reward="exit", timeout=1.0)


@env.program("sh -c 'echo what is wrong >&2; exit 2'", on_error=None)
def crashes(ep, run):
    return 1.0


@env.program("true", reward="exit")
def draws(ep, digits: int = 2):
    ep.task = digits
"""
TOML = 'adapter = "program"\ncommand = "sh -c \'exit 1\'"\nreward = "exit"\nname = "told"\n'


async def nowhere(listener: Listener) -> Endpoint:
    return Endpoint("http://127.0.0.1:9/v1", "the key")


async def play(world: World, name: str, **config: object) -> EpisodeOutcome:
    with await world.service.bind(name) as lease:
        return await world.service.play(lease, a_spec(**config), Answering(echoing, endpoint=nowhere))


@pytest.fixture
async def served(world: World) -> World:
    world.save("programs.py", PLUGIN)
    world.save("told.toml", TOML)
    await world.service.start()
    return world


def started(world: World) -> list[int]:
    """Processes of programs."""
    own = {pid for _, pid in world.service.processes()}
    return [pid for pid in world.pids() if pid not in own]


@pytest.mark.parametrize("name", ["hangs", "spins"])
async def test_a_program_whose_time_is_up_ends(served: World, name: str) -> None:
    outcome = await play(served, f"programs/{name}")
    assert (outcome.status, outcome.rewards) == ("timeout", {}) and outcome.failure is not None
    assert "longer than 1 s" in outcome.failure.message
    assert not started(served)


async def test_a_cancelled_episode_takes_its_program_along(served: World) -> None:
    playing = asyncio.create_task(play(served, "programs/hangs"))
    while len(started(served)) < 3:  # the one that watches, the program, and what that has started
        await asyncio.sleep(0.01)
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    while started(served):
        await asyncio.sleep(0.01)


async def test_how_programs_end(served: World) -> None:
    crashed = await play(served, "programs/crashes")
    assert crashed.status == "error" and crashed.failure is not None
    assert crashed.failure.message == (
        "ProgramFailed: the program ended with exit code 2; its last lines: what is wrong"
    )
    drawn = await play(served, "programs/draws", digits=3)
    assert (drawn.status, drawn.rewards) == ("ok", {"agent": 1.0}), drawn.failure
    told = await play(served, "told")
    assert (told.status, told.rewards) == ("ok", {"agent": 0.0}), told.failure
    assert dict(told.metrics)["exit_code"] == 1.0
