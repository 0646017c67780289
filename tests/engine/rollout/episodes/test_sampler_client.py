"""Episodes and their slots: who pays, and that losing a slot changes nothing that is said."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import numpy as np
import pytest

from marlaas.engine.environments.protocol import Answering, EpisodeOutcome, EpisodeSpec, FinishedEpisode
from marlaas.engine.fairness.line import ROLLOUT, Ledger, Line, Payer
from marlaas.engine.rollout import episodes
from marlaas.engine.rollout.conversation import SamplingParameters
from marlaas.engine.rollout.episodes import EPISODES, Rollout, alike
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.rollout.slots import Replicas, SamplerEndpoint, SamplerSlots
from marlaas.engine.samplers.options import Wishes
from marlaas.engine.samplers.protocol import NewTokens, OnTokens, Sampler, SampleRequest, SampleResult
from marlaas.plugins.messages import Answer, Ask, Message

from ..fake import FakeSampler, FakeVersion
from ..fake_renderer import FakeRenderer
from ..listening import Listening

SAMPLING = SamplingParameters("v1", 1, temperature=1.0, max_tokens=3, max_episode_tokens=30, seed=7)
PAYER = Payer("lab", 5)


class Counting(FakeSampler):
    """Keeps the requests, and never holds more conversations than it has sequences."""

    def __init__(self, sequences: int) -> None:
        super().__init__(sequences=sequences, context=200, versions={"v1": FakeVersion("sum")})
        self.requests: list[SampleRequest] = []
        self.broken = False
        self.deaf = False

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        self.requests.append(request)
        if self.broken:
            raise RuntimeError("It is broken.")
        result = await super().generate(request, stream_to=stream_to)
        assert len(self.conversations) <= self.sequences
        return result

    async def release(self, conversation: str) -> None:
        if not self.deaf:
            await super().release(conversation)


@dataclass
class Stage:
    """A rollout on a sampler of few sequences, with environments that take their time."""

    sequences: int = 2
    anew: bool = False
    talking: int = 0
    most: int = 0
    ledger: Ledger = field(default_factory=Ledger)

    def __post_init__(self) -> None:
        self.sampler = Counting(self.sequences)
        line = Line(lambda tenant: {"lab": 2.5}.get(tenant, 1.0))  # type: ignore[var-annotated]
        self.slots = SamplerSlots(self.sequences, line, patience=0.0)
        self.endpoint = SamplerEndpoint("rollout", "torch", cast(Sampler, self.sampler), 200, self.slots)
        self.rollout = Rollout(cast(Renderer, FakeRenderer()), self.ledger).of(PAYER, self.anew)

    async def slow(self, spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        """Three turns, with tools between them."""
        self.talking += 1
        self.most = max(self.most, self.talking)
        for turn in range(3):
            await answer(Ask("agent", (Message("user", f"{spec.index} {turn}"),)))
            for _ in range(20):
                await asyncio.sleep(0)
        self.talking -= 1
        return EpisodeOutcome("ok", {"agent": 1.0})

    async def play(self, count: int) -> list[FinishedEpisode]:
        specs = [EpisodeSpec("train", number, 0, 0) for number in range(count)]
        roles = alike(SAMPLING, self.endpoint)
        plays = (self.rollout.run_episode(self.slow, spec, roles, f"e{spec.index}") for spec in specs)
        return list(await asyncio.wait_for(asyncio.gather(*plays), 50))


def said(played: FinishedEpisode) -> list[int]:
    (trajectory,) = played.episode.trajectories
    return [int(token) for token in trajectory.tokens]


async def test_episodes_beyond_the_slots_say_the_same() -> None:
    crowded, roomy = Stage(sequences=2), Stage(sequences=16)
    together, apart = await crowded.play(12), await roomy.play(12)
    assert crowded.most > 2
    assert [said(played) for played in together] == [said(played) for played in apart]
    seatings = {request.conversation for request in crowded.sampler.requests}
    assert len(seatings) > len({request.conversation for request in roomy.sampler.requests}) == 12
    assert not crowded.sampler.conversations and not roomy.sampler.conversations
    assert (crowded.slots.active, crowded.slots.waiting) == (0, 0)


async def test_turns_read_anew_never_share_a_conversation() -> None:
    stage = Stage(sequences=16, anew=True)
    await stage.play(6)
    assert len({request.conversation for request in stage.sampler.requests}) == 18
    assert not stage.sampler.conversations


@pytest.mark.parametrize("anew", [True, False])
async def test_deterministic_turns_alone_ask_for_the_same_bits(anew: bool) -> None:
    """Others may have what is faster."""
    stage = Stage(anew=anew)
    await stage.play(2)
    assert {request.alike for request in stage.sampler.requests} == {anew}


async def test_requests_say_who_pays_and_the_ledger_knows_what() -> None:
    stage = Stage()
    played = await stage.play(3)
    assert {(request.account, request.weight) for request in stage.sampler.requests} == {("lab", 2.5)}
    stage.ledger.rollout_seconds(1.0)
    usages = {usage.stage: usage for usage in stage.ledger.take()}
    assert {usage.task for usage in usages.values()} == {PAYER.task}
    assert usages[ROLLOUT].tokens == sum(int(one.episode.trajectories[0].mask.sum()) for one in played)
    assert usages[ROLLOUT].seconds == 1.0


async def test_a_turn_that_fails_gives_its_slot_back() -> None:
    stage = Stage(sequences=1)
    stage.sampler.broken = True
    with pytest.raises(RuntimeError):
        await stage.play(1)
    stage.sampler.broken = False
    assert len(await stage.play(1)) == 1


async def test_a_cancelled_episode_frees_its_slot() -> None:
    stage = Stage(sequences=1)
    specs = [EpisodeSpec("train", number, 0, 0) for number in range(2)]
    roles = alike(SAMPLING, stage.endpoint)
    plays = (stage.rollout.run_episode(stage.slow, spec, roles, f"c{spec.index}") for spec in specs)
    first = [asyncio.ensure_future(play) for play in plays]
    while not stage.sampler.running:
        await asyncio.sleep(0)
    for episode in first:
        episode.cancel()
    await asyncio.gather(*first, return_exceptions=True)
    assert len(await stage.play(1)) == 1
    assert not stage.sampler.conversations


async def test_a_cancelled_turn_is_paid_for() -> None:
    """With what the sampler had done by then; its slot is free at once."""
    stage = Stage(sequences=1)
    roles = alike(replace(SAMPLING, max_tokens=20), stage.endpoint)
    listening = Listening()
    play = stage.rollout.run_episode(stage.slow, EpisodeSpec("train", 0, 0, 0), roles, "c", listening)
    episode = asyncio.ensure_future(play)
    while stage.sampler.sampled < 7:
        await asyncio.sleep(0)
    episode.cancel()
    await asyncio.gather(episode, return_exceptions=True)
    assert (stage.slots.active, stage.slots.waiting) == (0, 0)
    while stage.sampler.running:
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    stage.ledger.rollout_seconds(1.0)
    used = {usage.stage: usage for usage in stage.ledger.take()}[ROLLOUT]
    assert used.tokens == stage.sampler.sampled >= 7 and used.seconds == 1.0
    assert not stage.sampler.conversations
    assert [one.outcome.status for one in listening.cancelled] == ["cancelled"] and listening.cancelled[0].seconds > 0


async def test_a_payers_episodes_are_bounded() -> None:
    stage = Stage(sequences=16)
    await stage.play(EPISODES + 10)
    assert stage.most == EPISODES


async def test_an_episode_that_is_scored_holds_no_slot_and_no_permit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "EPISODES", 1)
    stage, scored, over = Stage(sequences=1), asyncio.Event(), list[int]()

    async def scored_slowly(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        outcome = await stage.slow(spec, answer)
        assert isinstance(answer, Answering)
        answer.over()
        await scored.wait()
        return outcome

    def play(number: int) -> asyncio.Task[FinishedEpisode]:
        spec, roles = EpisodeSpec("train", number, 0, 0), alike(SAMPLING, stage.endpoint)
        end = Listening(on_end=partial(over.append, number))
        return asyncio.ensure_future(stage.rollout.run_episode(scored_slowly, spec, roles, f"e{number}", end))

    playing = [play(number) for number in range(3)]
    async with asyncio.timeout(50):
        while len(over) < 3 or stage.sampler.conversations:  # it is told to forget a moment later
            await asyncio.sleep(0)
    assert (stage.slots.active, stage.slots.waiting) == (0, 0)
    assert not any(one.done() for one in playing)
    scored.set()
    assert [len(said(one)) > 0 for one in await asyncio.gather(*playing)] == [True] * 3
    assert over == [0, 1, 2]


def asked(name: str, tokens: int) -> SampleRequest:
    return SampleRequest(name, "v1", np.array([1, 2, 3], np.int32), tokens, 1.0, (), 7)


async def test_a_client_hears_its_turn_and_gets_its_wishes() -> None:
    stage = Stage()
    client, told = stage.rollout.sampler_client(Replicas([stage.endpoint]), ""), list[NewTokens]()
    result = await client.generate(asked("a", 9).wishing(Wishes(likeliest=2)), stream_to=told.append)
    client.leave()
    assert np.concatenate([each.tokens for each in told]).tolist() == result.tokens.tolist()
    (request,) = stage.sampler.requests
    assert request.wishes == Wishes(likeliest=2) and (request.account, request.weight) == ("lab", 2.5)
    assert result.extras is not None and result.extras.likeliest.tokens.shape == (9, 2)


async def test_a_cancelled_client_hears_no_more() -> None:
    stage = Stage(sequences=1)
    client, told = stage.rollout.sampler_client(Replicas([stage.endpoint]), ""), list[NewTokens]()
    turn = asyncio.ensure_future(client.generate(asked("a", 150), stream_to=told.append))
    while len(told) < 3:
        await asyncio.sleep(0)
    stage.sampler.deaf = True  # to what is released: its turn goes on
    turn.cancel()
    await asyncio.gather(turn, return_exceptions=True)
    streamed, sampled = len(told), stage.sampler.sampled
    while stage.sampler.sampled < sampled + 9:
        await asyncio.sleep(0)
    assert len(told) == streamed
