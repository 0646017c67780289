"""The process of an environment is killed while members are under way: they are played again, and trained on once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.samplers.protocol import SampleRequest, SampleResult
from marlaas.engine.spec.task import EvalSpec
from marlaas.engine.train.groups import DEATHS

from ...queue.scheduler.world import World
from ..test_learning import SPEC, check_history
from .test_producer import metric

pytestmark = pytest.mark.processes

PLUGIN = """
from marlaas.plugins import env

@env
async def sums(ep):
    reply = await ep.ask(f"{ep.split} {ep.index}")
    reply = await ep.ask("and now?")
    return len(reply.text) % 2 + ep.noise.random()
"""
TASK = replace(SPEC, steps=3, train=replace(SPEC.train, group_size=4, max_staleness=0), eval=EvalSpec(prompts=2))


async def run(tmp_path: Path, before: Callable[[SampleRequest, EnvironmentService], None]) -> World:
    """Run the task on a real process; ``before`` is called before each turn that a training member takes."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "sums.py").write_text(PLUGIN)
    world = World(tmp_path / "home", TASK)
    service = EnvironmentService([folder], tmp_path / "scratch")
    world.environments = cast(Any, service)
    sampler = world.workers.sampler
    generate = sampler.generate

    async def sample(request: SampleRequest) -> SampleResult:
        while "/g3." in request.conversation and not world.query("SELECT 1 FROM evals"):
            await asyncio.sleep(0)  # its episodes share the process with those that kill, and would be lost with them
        if "/g" in request.conversation:
            before(request, service)
        return await generate(request)

    sampler.generate = sample  # type: ignore[assignment,method-assign]
    await service.start()
    try:
        ending = await asyncio.wait_for(world.go(), 60)
        assert ending == Ending("done"), ending.reason.words
    finally:
        await service.stop()
    check_history(world)
    return world


def kill(service: EnvironmentService) -> None:
    ((_, pid),) = service.processes()
    os.kill(pid, signal.SIGKILL)


async def test_every_member_is_there_and_trained_on_once(tmp_path: Path) -> None:
    died: set[str] = set()

    def before(request: SampleRequest, service: EnvironmentService) -> None:
        if "/g3." in request.conversation and not died:
            died.add(request.conversation)
            kill(service)

    world = await run(tmp_path, before)
    assert died
    rows = world.query(
        'SELECT g.number, g.instance, t.member, t.status FROM trajectories t JOIN groups g ON g.id = t."group"'
        " WHERE g.split = 'train' ORDER BY g.number, t.member"
    )
    assert [(row["number"], row["instance"], row["member"]) for row in rows] == [
        (number, number, member) for number in range(6) for member in range(4)
    ]
    assert {row["status"] for row in rows} == {"ok"}
    assert sum(metric(world, "replayed")) >= 1 and not sum(metric(world, "lost"))


async def test_a_reply_that_kills_costs_its_group_and_no_rest(tmp_path: Path) -> None:
    """It is played twice; a version that dies three times within a minute rests.

    A group of the last step: held-out episodes that are played beside an earlier one would die twice with it.
    """
    plays: list[str] = []

    def before(request: SampleRequest, service: EnvironmentService) -> None:
        if "/g5.0.1" in request.conversation:
            plays.append(request.conversation.partition("/g")[2].rpartition("/")[0])
            kill(service)

    world = await run(tmp_path, before)
    assert plays == ["5.0.1", "5.0.1.1"] and len(plays) == DEATHS
    assert not world.query("SELECT 1 FROM trajectories WHERE status != 'ok'")
    (again,) = world.query("SELECT instance FROM groups WHERE split = 'train' AND number = 5")
    assert again["instance"] != 5 and sum(metric(world, "lost")) >= 1
