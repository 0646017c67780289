"""Agents that an environment asks at the same time, through its process: they are sampled together."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from marlaas.engine.environments.protocol import EpisodeOutcome, FinishedEpisode
from marlaas.engine.fairness.line import Ledger
from marlaas.engine.rollout.conversation import SamplingParameters
from marlaas.engine.rollout.episodes import Rollout, alike
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.samplers.protocol import OnTokens, SampleRequest, SampleResult

from ..rollout.endpoints import endpoint
from ..rollout.fake import FakeSampler, FakeVersion
from ..rollout.fake_renderer import FakeRenderer
from .conftest import World, a_spec, echoing

pytestmark = pytest.mark.processes

PLUGIN = """
import asyncio
from concurrent.futures import ThreadPoolExecutor
from marlaas.plugins import env

NAMES = ("a", "b", "c")

@env(agents=NAMES)
async def loop(ep):
    replies = await asyncio.gather(*(ep.agent(name).ask(name) for name in NAMES))
    replies = await asyncio.gather(*(ep.agent(name).ask("again") for name in NAMES))
    return {name: float(reply.turn) for name, reply in zip(NAMES, replies)}

@env(agents=NAMES)
def threads(ep):
    with ThreadPoolExecutor(3) as pool:
        for word in ("now", "again"):
            replies = list(pool.map(lambda name: ep.agent(name).ask(word), NAMES))
    return {name: float(reply.turn) for name, reply in zip(NAMES, replies)}

@env
async def crowd(ep, count: int = 256):
    root = ep.agent()
    await root.ask("begin")
    replies = await asyncio.gather(*(root.fork().ask(str(number)) for number in range(count)))
    return [reply.text for reply in replies] == [str(number) for number in range(count)]
"""


class Meeting(FakeSampler):
    """Answers nobody before three are asked."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.meeting = asyncio.Barrier(3)

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        await self.meeting.wait()
        return await super().generate(request, stream_to=stream_to)


async def played(world: World, environment: str) -> FinishedEpisode:
    sampler = Meeting(sequences=3, context=200, versions={"v1": FakeVersion("sum")})
    place = endpoint(sampler, sampler.sequences, sampler.context)
    rollout = Rollout(cast(Renderer, FakeRenderer()), Ledger())
    sampling = SamplingParameters("v1", 1, temperature=1.0, max_tokens=3, max_episode_tokens=30, seed=7)
    with await world.service.bind(environment) as lease:
        one = await rollout.run_episode(
            lambda spec, answer: world.service.play(lease, spec, answer), a_spec(), alike(sampling, place), "e"
        )
    while sampler.conversations:  # it is told what to forget, and nobody waits for that
        await asyncio.sleep(0)
    assert (place.slots.active, place.slots.waiting) == (0, 0)
    return one


async def test_agents_asked_in_any_way_are_sampled_together(world: World) -> None:
    world.save("together.py", PLUGIN)
    await world.service.start()
    for environment in ("loop", "threads"):
        one = await played(world, environment)
        assert one.episode.failure is None
        assert [(t.agent, t.reward, len(t.spans)) for t in one.episode.trajectories] == [(n, 1.0, 2) for n in "abc"]

    async def crowd(count: int) -> EpisodeOutcome:
        with await world.service.bind("crowd") as lease:
            return await world.service.play(lease, a_spec(count=count), echoing)

    assert (await crowd(256)).rewards == {"agent": 1.0}
    failure = (await crowd(257)).failure
    assert failure is not None and "at most 256 replies at the same time" in failure.message
    assert (await crowd(3)).rewards == {"agent": 1.0}, "and it costs its own episode alone"
