"""Rewards that are final before their episode ends, from the author's line to whoever answers."""

from __future__ import annotations

import pytest

from marlaas.engine.environments.protocol import Answering, FinalReward
from marlaas.engine.trajectories import TurnReward
from marlaas.plugins.messages import Ask, Reply

from .conftest import World, a_spec, echoing

pytestmark = pytest.mark.processes

PLUGIN = """
import os
from marlaas.plugins import env

@env(agents=("a", "b"))
async def staged(ep, breaks: bool = False):
    await ep.agent("a").ask("x")
    ep.reward(0.25, name="step")
    ep.reward(0.5, agent="a", final=True)
    await ep.agent("b").ask("y")
    if breaks:
        raise LookupError("gone")
    return 1.0

@env(agents=("a", "b"))
def blocking(ep):
    ep.agent("a").ask("x")
    ep.reward(0.75, agent="a", final=True)
    return {"b": 2.0}

@env(agents=("a", "b"))
async def scored(ep):
    await ep.agent("a").ask("x")
    ep.reward(0.75, agent="a", final=True)

@scored.score
def grade(task, transcript):
    return 1.0

@env(agents=("a", "b"))
async def liar(ep):
    await ep.agent("a").ask("x")
    for _ in range(2):
        ep._settle("a", 1.0)
    return 1.0
"""


class Listening:
    """Answers, and takes note of what is final by when."""

    def __init__(self) -> None:
        self.heard: list[str | FinalReward] = []

        self.answer = Answering(self._reply, settle=self.heard.append)

    async def _reply(self, ask: Ask) -> Reply:
        self.heard.append(ask.agent)
        return await echoing(ask)


@pytest.fixture
async def listening(world: World) -> tuple[World, Listening]:
    world.save("final.py", PLUGIN)
    await world.service.start()
    return world, Listening()


async def test_a_final_reward_is_told_at_once(listening: tuple[World, Listening]) -> None:
    world, model = listening
    with await world.service.bind("staged") as lease:
        outcome = await world.service.play(lease, a_spec(), model.answer)
        paid = (TurnReward("a", 1, 0.25, "step"), TurnReward("a", 1, 0.5))
        assert model.heard == ["a", FinalReward("a", 0.75, paid), "b"]
        assert outcome.status == "ok" and outcome.rewards == {"a": 0.75, "b": 1.25} and outcome.paid == paid
        broken = await world.service.play(lease, a_spec(breaks=True), model.answer)
        assert broken.status == "error" and broken.rewards == {} and model.heard[3:] == model.heard[:3]
        unheard = await world.service.play(lease, a_spec(), echoing)
        assert unheard.rewards == outcome.rewards, "whoever does not ask is not told"


async def test_a_blocking_environment_tells_it_before_it_ends(listening: tuple[World, Listening]) -> None:
    world, model = listening
    with await world.service.bind("blocking") as lease:
        outcome = await world.service.play(lease, a_spec(), model.answer)
    assert outcome.rewards == {"a": 0.75, "b": 2.0}
    assert [one.reward for one in model.heard if isinstance(one, FinalReward)] == [0.75]


async def test_a_score_function_leaves_no_reward_final(listening: tuple[World, Listening]) -> None:
    world, model = listening
    with await world.service.bind("scored") as lease:
        outcome = await world.service.play(lease, a_spec(), model.answer)
    assert outcome.status == "error" and outcome.failure is not None and outcome.failure.line == 24
    assert "no reward is final where a score function" in outcome.failure.message and model.heard == ["a"]


async def test_a_process_that_pays_an_agent_twice_breaks_the_protocol(listening: tuple[World, Listening]) -> None:
    world, model = listening
    with await world.service.bind("liar") as lease:
        outcome = await world.service.play(lease, a_spec(), model.answer)
    assert outcome.status == "error" and outcome.died and outcome.failure is not None
    assert "broke the protocol" in outcome.failure.message
