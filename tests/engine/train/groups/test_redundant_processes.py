"""Redundant members in a real process: what is cancelled there has gone, and holds no place."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.spec.task import EvalSpec

from ...queue.scheduler.world import World
from ..test_learning import SPEC, check_history
from .test_producer import metric

pytestmark = pytest.mark.processes

PLUGIN = """
import asyncio
import time
from collections import Counter

from marlaas.plugins import env

begun = Counter()

def hangs(ep):
    begun[ep.index] += 1
    return ep.split == "train" and begun[ep.index] <= 2

@env(timeout=600)
async def sums(ep):
    reply = await ep.ask(f"{ep.split} {ep.index}")
    if hangs(ep):
        await asyncio.sleep(600)
    return len(reply.text) % 2 + ep.noise.random()

@env(timeout=600)
def plain(ep):
    reply = ep.ask(f"{ep.split} {ep.index}")
    if hangs(ep):
        while True:
            time.sleep(0.001)
    return len(reply.text) % 2 + ep.noise.random()
"""
TRAIN = replace(SPEC.train, group_size=3, redundant=2)
TASK = replace(SPEC, steps=3, train=TRAIN, eval=EvalSpec(prompts=2))


@pytest.mark.parametrize("environment", ["sums", "plain"])
async def test_cancelled_members_leave_their_process(tmp_path: Path, environment: str) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "sums.py").write_text(PLUGIN)
    world = World(tmp_path / "home", replace(TASK, environment=f"sums/{environment}"))
    service = EnvironmentService([folder], tmp_path / "scratch")
    world.environments = cast(Any, service)
    await service.start()
    try:
        assert await asyncio.wait_for(world.go(), 60) == Ending("done")
        crews = [info.crew for info in service.infos()]
        cancelled = [one.episodes for one in service.outcomes.take().outcomes if one.status == "cancelled"]
    finally:
        await service.stop()
    check_history(world)
    assert crews and all((crew.live, crew.waiting) == (0, 0) for crew in crews)
    assert sum(cancelled) == 12 and metric(world, "dropped") == [pytest.approx(0.4)] * 3
    assert not world.workers.sampler.conversations
