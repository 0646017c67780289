"""A pinned task through a change of engines: real versions of a real plugin, from their snapshots, with fake stages."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.spec.task import EvalSpec

from ...train.test_learning import SPEC, check_history
from .world import World

pytestmark = pytest.mark.processes
PLUGIN = """
from marlaas.plugins import env

@env
async def sums(ep, digits: int = 1):
    reply = await ep.ask(f"{ep.split} {ep.index}")
    return float(ep.noise.random())
"""
PINNED = replace(SPEC, environment="sums", environment_version="pin", steps=8, eval=EvalSpec(every=4, prompts=2))


@pytest.mark.parametrize("edited", [PLUGIN.replace("ep.noise.random()", "0"), PLUGIN.replace("digits", "width"), None])
async def test_the_next_engine_goes_on_with_the_pinned_version(tmp_path: Path, edited: str | None) -> None:
    world = World(tmp_path / "home", replace(PINNED, environment_config={"digits": 2}))
    plugin = world.home.plugins / "sums.py"
    plugin.write_text(PLUGIN)
    service = await serving(world)
    first = service.resolve("sums").version
    run = asyncio.ensure_future(world.go())
    while not run.done() and not world.query("SELECT * FROM steps"):
        await asyncio.sleep(0)
    assert not run.done(), run.result()
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    await service.stop()
    if edited is None:
        plugin.unlink()
    else:
        plugin.write_text(edited)
    world.restart()
    service = await serving(world)
    assert edited is None or service.resolve("sums").version != first
    try:
        assert await world.go() == Ending("done")
    finally:
        await service.stop()
    check_history(world)
    for table in ("groups", "evals"):
        assert world.query(f"SELECT DISTINCT environment_version AS v FROM {table}") == [{"v": first}]


async def serving(world: World) -> EnvironmentService:
    """The environments of the next engine."""
    service = EnvironmentService([world.home.plugins], world.home.scratch)
    world.environments = cast(Any, service)
    await service.start()
    return service
