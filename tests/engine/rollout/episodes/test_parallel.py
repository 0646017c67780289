"""Several agents of an episode asked at once: turns overlap, nobody waits for ever, and nothing is left over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import pytest
from hypothesis import given, settings, strategies as st

from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec, FinishedEpisode
from marlaas.engine.fairness.line import Ledger, Line, Payer
from marlaas.engine.rollout import episodes
from marlaas.engine.rollout.conversation import SamplingParameters
from marlaas.engine.rollout.episodes import (
    HeldOutPrompt,
    PromptHash,
    Role,
    Rollout,
    RunEnvironment,
    Stopwatch,
    alike,
)
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.rollout.slots import Replicas, SamplerEndpoint, SamplerSlots
from marlaas.engine.samplers.protocol import Finish, OnTokens, Sampler, SampleRequest, SampleResult
from marlaas.engine.trajectories import Tokens
from marlaas.plugins.messages import Answer, Ask, Fork, Message

from ....examples import examples
from ..fake import FakeSampler, FakeVersion
from ..fake_renderer import FakeRenderer
from ..listening import Listening

SAMPLING = SamplingParameters("v1", 1, temperature=1.0, max_tokens=3, max_episode_tokens=100, seed=7)
SPEC = EpisodeSpec("train", 0, 0, 0)
Pauses = list[list[int]]
"""By agent, how many rounds of the event loop its environment takes before each of its asks."""
pauses = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=3), min_size=1, max_size=5)


class Rounding(FakeSampler):
    """What it says depends on how much of the prompt it had in memory, as the last bits of a real one do."""

    most = 0

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        known = len(self.conversations.get(request.conversation, ()))
        return await super().generate(replace(request, seed=request.seed ^ known), stream_to=stream_to)

    def _finish(self, request: SampleRequest, tokens: Tokens, logprobs: list[float], finish: Finish) -> SampleResult:
        self.most = max(self.most, len(self.running))
        return super()._finish(request, tokens, logprobs, finish)


@dataclass
class Stage:
    """A rollout on a sampler of few sequences."""

    sequences: int
    anew: bool = False
    ledger: Ledger = field(default_factory=Ledger)

    def __post_init__(self) -> None:
        self.sampler = Rounding(sequences=self.sequences, context=400, versions={"v1": FakeVersion("sum")})
        self.slots = SamplerSlots(self.sequences, Line(), patience=0.0)
        self.endpoint = SamplerEndpoint("rollout", "torch", cast(Sampler, self.sampler), 400, self.slots)
        self.rollout = Rollout(cast(Renderer, FakeRenderer()), self.ledger).of(Payer("lab", 5), self.anew)

    async def play(
        self,
        play: RunEnvironment,
        name: str = "e",
        sampling: SamplingParameters = SAMPLING,
        refuse: Callable[[PromptHash], bool] = lambda _: False,
    ) -> FinishedEpisode:
        roles = alike(sampling, self.endpoint)
        return await asyncio.wait_for(self.rollout.run_episode(play, SPEC, roles, name, Listening(refuse)), 50)

    async def nothing_is_left(self) -> bool:
        for _ in range(40):  # what is given up ends beside the play
            await asyncio.sleep(0)
        return not self.sampler.conversations and (self.slots.active, self.slots.waiting) == (0, 0)


def ask(text: str, agent: str, branch: int = 0, fork: Fork | None = None) -> Ask:
    return Ask(agent=agent, messages=(Message("user", text),), branch=branch, fork=fork)


def at_once(pauses: Pauses, forks: bool = False) -> RunEnvironment:
    """Several agents, or where there are ``forks`` branches of one agent; each goes its own way."""

    async def environment(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        async def conversation(number: int) -> None:
            for turn, rounds in enumerate(pauses[number]):
                for _ in range(rounds):
                    await asyncio.sleep(0)
                origin = Fork("root", 0, 1) if forks and not turn else None
                where = ("root", number + 1) if forks else (f"agent {number}", 0)
                await answer(ask(f"{number} {turn}", *where, origin))

        if forks:
            await answer(ask("begin", "root"))
        await asyncio.gather(*(conversation(number) for number in range(len(pauses))))
        agents = ["root"] if forks else [f"agent {number}" for number in range(len(pauses))]
        return EpisodeOutcome("ok", dict.fromkeys(agents, 1.0))

    return environment


def said(played: FinishedEpisode) -> list[tuple[str, list[int], list[float]]]:
    return [(t.agent, t.tokens.tolist(), t.logprobs.tolist()) for t in played.episode.trajectories]


@pytest.mark.parametrize(("slots", "most"), [(1, 1), (2, 2), (8, 3)])
async def test_agents_that_are_asked_at_once_are_sampled_at_once(slots: int, most: int) -> None:
    stage = Stage(slots)
    await stage.play(at_once([[0, 0]] * 3))
    assert stage.sampler.most == most and await stage.nothing_is_left()


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(1, 3), st.lists(pauses, min_size=1, max_size=4), st.booleans(), st.booleans())
def test_fewer_slots_than_agents_hold_nobody_up_for_ever(
    slots: int, scripts: list[Pauses], forks: bool, anew: bool
) -> None:
    async def play() -> None:
        stage = Stage(slots, anew)
        played = await asyncio.gather(
            *(stage.play(at_once(script, forks), f"e{number}") for number, script in enumerate(scripts))
        )
        assert {one.episode.status for one in played} == {"ok"} and await stage.nothing_is_left()

    asyncio.run(play())


@settings(max_examples=examples(20), deadline=None)
@given(pauses, st.integers(1, 3), st.booleans())
def test_a_deterministic_task_says_the_same_in_any_order(script: Pauses, slots: int, forks: bool) -> None:
    async def play(slots: int, script: Pauses) -> FinishedEpisode:
        return await Stage(slots, anew=True).play(at_once(script, forks))

    in_turn = [[100 * number + 10 for _ in turns] for number, turns in enumerate(script)]
    first, second = asyncio.run(play(slots, script)), asyncio.run(play(8, in_turn))
    assert said(first) == said(second)
    assert list(first.transcripts.items()) == list(second.transcripts.items())


async def test_only_that_is_why_a_deterministic_task_reads_anew() -> None:
    told = [said(await Stage(1).play(at_once(script))) for script in ([[0, 0], [0, 0]], [[0, 0], [90, 0]])]
    assert told[0] != told[1], "what a slot was taken from in between is computed otherwise"


@settings(max_examples=examples(20), deadline=None)
@given(pauses, st.integers(0, 14), st.integers(1, 4))
def test_forks_asked_at_once_share_their_agents_limit(script: Pauses, limit: int, slots: int) -> None:
    sampling = replace(SAMPLING, max_episode_tokens=limit)
    played = asyncio.run(Stage(slots).play(at_once(script, forks=True), sampling=sampling))
    sampled = sum(int(t.mask.sum()) for t in played.episode.trajectories)
    assert sampled <= limit and played.episode.status == "ok"
    roomy = asyncio.run(Stage(slots).play(at_once(script, forks=True)))
    wanted = sum(int(t.mask.sum()) for t in roomy.episode.trajectories)
    assert sampled in (limit, wanted), "no token is held back that nobody uses"
    assert all(t.cut for t in played.episode.trajectories) or sampled == wanted


async def test_a_policy_asked_last_goes_before_a_long_queue() -> None:
    """Ten asks of one policy in each episode, then one of the other."""
    stage, ended = Stage(2), list[tuple[int, int]]()
    samplings = {"writer": SAMPLING, "judge": SAMPLING}
    begun = 0

    def roles(agent: str) -> Role:
        return Role(samplings[agent], Replicas((stage.endpoint,)), agent)

    async def environment(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        nonlocal begun
        asks = (answer(ask(f"{spec.index} {branch}", "writer", branch)) for branch in range(10))
        await asyncio.gather(*asks)
        begun += 1
        await answer(ask(f"{spec.index}", "judge"))
        ended.append((spec.index, begun))
        return EpisodeOutcome("ok", {"writer": 1.0, "judge": 1.0})

    specs = [EpisodeSpec("train", number, 0, 0) for number in range(8)]
    plays = (stage.rollout.run_episode(environment, spec, roles, f"e{spec.index}") for spec in specs)
    await asyncio.wait_for(asyncio.gather(*plays), 50)
    waited = [others - place for place, (_, others) in enumerate(ended, 1)]
    assert max(waited) <= 1, "no judge waits for the writers of more than one further episode"


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
async def test_a_held_out_prompt_refuses_all_asked_beside_it(order: Sequence[str]) -> None:
    stage = Stage(4)

    async def environment(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        asking = [asyncio.ensure_future(answer(ask(agent, agent))) for agent in order]
        await asyncio.gather(*asking, return_exceptions=True)
        failed = [asked.exception() for asked in asking]
        assert all(isinstance(error, HeldOutPrompt) for error in failed)
        raise cast(HeldOutPrompt, failed[0])

    held_out = await stage.rollout.prompt_hash(ask(order[0], order[0]), 400)
    with pytest.raises(HeldOutPrompt):
        await stage.play(environment, refuse=held_out.__eq__)
    assert not stage.sampler.ledger and await stage.nothing_is_left()


@settings(max_examples=examples(20), deadline=None)
@given(pauses, st.integers(1, 3), st.integers(0, 40), st.booleans(), st.booleans())
def test_an_episode_that_is_cancelled_leaves_nothing(
    script: Pauses, slots: int, rounds: int, forks: bool, anew: bool
) -> None:
    async def play() -> None:
        stage = Stage(slots, anew)
        plays = [asyncio.ensure_future(stage.play(at_once(script, forks), f"e{number}")) for number in range(2)]
        for _ in range(rounds):
            await asyncio.sleep(0)
        for one in plays:
            one.cancel()
        await asyncio.gather(*plays, return_exceptions=True)
        assert await stage.nothing_is_left()
        again = await stage.play(at_once(script, forks), "again")
        assert again.episode.status == "ok" and await stage.nothing_is_left()

    asyncio.run(play())


async def test_agents_still_asked_at_the_end_leave_nothing() -> None:
    """As where one ask fails and nobody waits for the others."""
    stage, others = Stage(1), list[asyncio.Task[object]]()

    async def environment(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        others.extend(asyncio.ensure_future(answer(ask("x", f"agent {number}"))) for number in range(3))
        await asyncio.sleep(0)
        await answer(Ask("odd", (Message("oracle", "who am I?"),)))
        return EpisodeOutcome("ok", {})

    assert (await stage.play(environment)).episode.status == "error"
    await asyncio.wait_for(asyncio.gather(*others, return_exceptions=True), 50)
    assert await stage.nothing_is_left()
    assert (await stage.play(at_once([[0]]))).episode.status == "ok"


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=6))
def test_seconds_count_while_anybody_is_answered(spans: list[tuple[int, int]]) -> None:
    now, watch = 0.0, Stopwatch()
    spans = [(begin, begin + length) for begin, length in spans]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(episodes, "monotonic", lambda: now)
        for moment in range(80):
            now = float(moment)
            for begin, _ in spans:
                watch.__enter__() if begin == moment else None
            for _, end in spans:
                watch.__exit__() if end == moment else None
    assert watch.seconds == len({moment for begin, end in spans for moment in range(begin, end)})
