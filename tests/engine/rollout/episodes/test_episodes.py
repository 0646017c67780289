"""Episodes on the sampler: several agents, few places, and environments that never stop asking."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import pytest

from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec, FinishedEpisode
from marlaas.engine.fairness.line import Ledger
from marlaas.engine.rollout.conversation import SamplingParameters
from marlaas.engine.rollout.episodes import HeldOutPrompt, PromptHash, Rollout, RunEnvironment, alike
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.rollout.slots import SamplerEndpoint
from marlaas.plugins.messages import Answer, Ask, Message

from ..endpoints import endpoint
from ..fake import FakeSampler, FakeVersion
from ..fake_renderer import FakeRenderer
from ..listening import Listening

SAMPLING = SamplingParameters("v1", 1, temperature=1.0, max_tokens=3, max_episode_tokens=8, seed=7)


@dataclass
class Stage:
    """A rollout and where it plays."""

    rollout: Rollout
    endpoint: SamplerEndpoint

    async def play(
        self,
        play: RunEnvironment,
        spec: EpisodeSpec,
        sampling: SamplingParameters,
        name: str,
        refuse: Callable[[PromptHash], bool] | None = None,
    ) -> FinishedEpisode:
        return await self.rollout.run_episode(
            play, spec, alike(sampling, self.endpoint), name, Listening(refuse or (lambda _: False))
        )


@pytest.fixture
def sampler() -> FakeSampler:
    return FakeSampler(sequences=2, context=40, versions={"v1": FakeVersion("sum")})


@pytest.fixture
def stage(sampler: FakeSampler) -> Stage:
    played = Rollout(cast(Renderer, FakeRenderer()), Ledger())
    return Stage(played, endpoint(sampler, sampler.sequences, sampler.context))


def ask(text: str, agent: str = "agent") -> Ask:
    return Ask(agent=agent, messages=(Message("user", text),))


async def two_agents(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
    for turn in range(2):
        for agent in ("a", "b"):
            await answer(ask(f"{turn}", agent))
    await asyncio.gather(answer(ask("both", "a")), answer(ask("both", "b")))
    return EpisodeOutcome("ok", {"a": 1.0, "b": 0.0})


async def play_all(stage: Stage, count: int) -> list[FinishedEpisode]:
    specs = [EpisodeSpec("train", number, 0, 0) for number in range(count)]
    plays = (stage.play(two_agents, spec, SAMPLING, f"e{spec.index}") for spec in specs)
    return list(await asyncio.wait_for(asyncio.gather(*plays), 50))


async def test_episodes_of_several_agents_do_not_wait_for_each_other(stage: Stage, sampler: FakeSampler) -> None:
    played = await play_all(stage, 6)
    assert not sampler.conversations
    alone = await play_all(stage, 1)
    for one in played:
        assert [t.agent for t in one.episode.trajectories] == ["a", "b"]
        for mine, other in zip(one.episode.trajectories, alone[0].episode.trajectories, strict=True):
            assert mine.tokens.tolist() == other.tokens.tolist() and len(mine.spans) == 3


async def test_an_episode_that_is_over_leaves_no_ring(stage: Stage) -> None:
    """A ring stays until Python looks for such, and that stops the engine's loop."""
    gc.collect()
    gc.disable()
    try:
        await play_all(stage, 1)
        assert not [one for one in gc.get_objects() if type(one).__name__ in ("_Run", "Conversation", "SamplerClient")]
    finally:
        gc.enable()


async def test_an_endless_questioner_fills_no_memory(stage: Stage) -> None:
    async def endless(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        replies = [await answer(ask("more")) for _ in range(100)]
        assert replies[-1].text == "" and replies[-1].finish == "length"
        return EpisodeOutcome("ok", {"agent": 1.0})

    played = await stage.play(endless, EpisodeSpec("train", 0, 0, 0), SAMPLING, "e")
    (trajectory,) = played.episode.trajectories
    assert trajectory.mask.sum() <= SAMPLING.max_episode_tokens and len(trajectory.tokens) <= 48


async def test_a_held_out_prompt_ends_the_episode_unasked(stage: Stage, sampler: FakeSampler) -> None:
    held_out = await stage.rollout.prompt_hash(ask("0", "a"), 40)
    with pytest.raises(HeldOutPrompt):
        await stage.play(two_agents, EpisodeSpec("train", 0, 0, 0), SAMPLING, "e", held_out.__eq__)
    assert sampler.ledger == []


async def test_an_environment_that_never_stops_asking_fails(stage: Stage) -> None:
    async def deaf(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        while True:
            await answer(ask("more"))

    played = await stage.play(deaf, EpisodeSpec("train", 0, 0, 0), SAMPLING, "e")
    assert played.episode.status == "error" and played.episode.failure is not None
    assert "went on asking" in played.episode.failure.message


async def test_a_prompt_that_does_not_fit_is_named(stage: Stage, sampler: FakeSampler) -> None:
    async def wordy(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        await answer(ask("x" * 500))
        return EpisodeOutcome("ok", {"agent": 1.0})

    played = await stage.play(wordy, EpisodeSpec("train", 0, 0, 0), SAMPLING, "e")
    failure = played.episode.failure
    assert failure is not None and f"has room for {sampler.context}" in failure.message
    assert played.episode.status == "error" and all(t.reward is None for t in played.episode.trajectories)


async def test_messages_the_template_refuses_fail_one_episode(stage: Stage) -> None:
    async def odd(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        await answer(Ask("agent", (Message("oracle", "who am I?"),)))
        return EpisodeOutcome("ok", {"agent": 1.0})

    played = await stage.play(odd, EpisodeSpec("train", 0, 0, 0), SAMPLING, "e")
    assert played.episode.failure is not None and "base model" in played.episode.failure.message
