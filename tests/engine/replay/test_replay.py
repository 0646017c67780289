"""Whole tasks are replayed from their rows: the same version finds nothing changed, another one what it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from marlaas.engine.environments.process.wire import Described
from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec, Ranking
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.replay import Replay, Summary, Verdict, summarise
from marlaas.engine.rollout.toolcalls import split_hermes as calls
from marlaas.engine.spec.task import EvalSpec, NamedPolicySpec, PolicySpec, parse
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.trajectories import Split

from ..queue.scheduler.world import World
from ..train.test_learning import SPEC


@pytest.fixture(params=["one turn", "used up", "rewritten", "two agents"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A home with a task that is done; its episodes have these shapes by turns."""
    made = World(tmp_path, replace(SPEC, steps=2))
    made.environments.turns = 1 if request.param == "one turn" else 4
    made.renderer.rewrites = request.param == "rewritten"
    if request.param == "two agents":
        made.environments.agents = ("first", "second")
    assert await asyncio.wait_for(made.go(), 50) == Ending("done")
    return made


async def replayed(world: World, split: Split = "train", ranked: bool = False, last: int = 100) -> list[Verdict]:
    lease: Any = SimpleNamespace(declared=Described("sums", 60.0, "", (), ranked=ranked))
    with Reader(world.home.database) as recordings:
        spec = parse(recordings.task_config(world.task), "task")
        groups = recordings.recorded_groups(world.task, split, last)
    return await Replay(cast(EnvironmentService, world.environments), lease, spec, split, calls).run(groups)


def counted(found: Sequence[Verdict]) -> Summary:
    return replace(summarise(found), mean_before=None, mean_after=None)


async def test_the_same_environment_gives_the_same_rewards(world: World) -> None:
    agents = len(world.environments.agents)
    train = await replayed(world)
    assert counted(train) == Summary(8 * agents, 8 * agents, 0, 0, 0, None, None)
    held_out = await replayed(world, "eval")
    assert {verdict.kind for verdict in held_out} == {"unchanged"}
    assert [verdict.step for verdict in held_out] == [0] * 3 * agents + [2] * 3 * agents
    assert [verdict.group for verdict in await replayed(world, last=1)] == [3] * 2 * agents


async def test_tokens_that_were_given_up_are_not_missed(world: World) -> None:
    policy = world.query("SELECT id FROM policies")[0]["id"]
    while world.store.experience.shrink(policy, 2):
        pass
    assert world.query("SELECT max(length(tokens)) AS most FROM trajectories")[0]["most"] == 0
    assert {verdict.kind for verdict in await replayed(world)} == {"unchanged"}


async def test_other_rewards_and_other_prompts_are_told_apart(world: World) -> None:
    world.environments.score = lambda spec: 7.0
    found = await replayed(world)
    assert {(verdict.kind, verdict.new) for verdict in found} == {("changed", 7.0)}
    world.environments.failing = lambda spec: spec.member == 1
    assert {(verdict.kind, verdict.member) for verdict in await replayed(world)} == {("changed", 0), ("failing", 1)}
    world.environments.failing = lambda spec: False
    world.environments.turns += 1
    if world.environments.turns == 2:  # else the agents had no room left, and are silent once more
        found = await replayed(world)
        assert {(verdict.kind, verdict.new) for verdict in found} == {("not comparable", None)}
    world.environments.ask_for = lambda spec, turn, agent: replace(  # type: ignore[method-assign]
        type(world.environments).ask_for(world.environments, spec, turn, agent), messages=()
    )
    assert {verdict.kind for verdict in await replayed(world)} == {"not comparable"}


async def test_members_are_ranked_as_in_training(tmp_path: Path) -> None:
    world = World(tmp_path, replace(SPEC, steps=2))
    world.environments.ranking = lambda members: Ranking(tuple({"agent": float(n)} for n, _ in enumerate(members)))
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    assert {verdict.kind for verdict in await replayed(world, ranked=True)} == {"unchanged"}
    assert {verdict.kind for verdict in await replayed(world, "eval", ranked=True)} == {"unchanged"}
    world.environments.ranking = lambda members: EpisodeOutcome("error")
    assert {verdict.kind for verdict in await replayed(world, ranked=True)} == {"failing"}

    def only_the_first(spec: EpisodeSpec) -> bool:
        return spec.member == 0

    world.environments.failing = only_the_first
    found = await replayed(world, ranked=True)
    assert {verdict.kind for verdict in found if verdict.member == 0} == {"failing"}
    assert {verdict.new for verdict in found if verdict.member == 1} <= {0.0, 1.0}, "its own: nobody is left to compare"


async def test_what_all_policies_said_is_played_again_together(tmp_path: Path) -> None:
    """Two that learn, of batches of their own, and one that is frozen: the reward is of what all three said."""
    policies = {
        "solver": NamedPolicySpec(rank=1, groups_per_step=1),
        "critic": NamedPolicySpec(rank=1, groups_per_step=2),
        "judge": NamedPolicySpec(rank=1, frozen="base"),
    }
    spec = replace(SPEC, policy=PolicySpec(), policies=policies, agents={name: name for name in policies}, steps=2)
    world = World(tmp_path, replace(spec, eval=EvalSpec(every=0, prompts=2)))
    world.environments.agents = tuple(policies)
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    found = await replayed(world)
    assert {verdict.kind for verdict in found} == {"unchanged"}
    assert sorted((one.group, one.member, one.agent) for one in found) == [
        (group, member, agent) for group in range(4) for member in range(2) for agent in sorted(policies)
    ]
    steps = {(one.group, one.agent): one.step for one in found}
    assert [steps[group, "solver"] for group in range(4)] == [1, 2, 2, 2], "from group 2 on it only speaks"
    assert [steps[group, "critic"] for group in range(4)] == [1, 1, 2, 2]
    assert {one.group for one in await replayed(world, last=1)} == {3}
    assert {verdict.kind for verdict in await replayed(world, "eval")} == {"unchanged"}
    world.environments.score = lambda spec: 7.0
    assert {(one.kind, one.new) for one in await replayed(world)} == {("changed", 7.0)}
