"""Episodes on a sampler: who pays, few slots, agents asked at the same time, and whatever an environment does wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import pytest
from hypothesis import given, settings, strategies as st

from marlaas.engine.environments.protocol import Answering, EpisodeOutcome, EpisodeSpec, FinishedEpisode
from marlaas.engine.fairness.line import ROLLOUT
from marlaas.engine.rollout import episodes
from marlaas.engine.rollout.episodes import HeldOutPrompt, RunEnvironment
from marlaas.engine.samplers.protocol import OnTokens, SampleRequest, SampleResult
from marlaas.plugins.messages import Answer, Fork

from ...examples import examples
from .fake import Witness
from .stage import PAYER, SAMPLING, Listening, Stage, ask

Pauses = list[list[int]]
"""By agent, how many rounds of the event loop its environment takes before each of its asks."""
pauses = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=3), min_size=1, max_size=5)


async def three_turns(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
    """Three turns, with tools between them."""
    for turn in range(3):
        await answer(ask(f"{spec.index} {turn}"))
        for _ in range(20):
            await asyncio.sleep(0)
    return EpisodeOutcome("ok", {"agent": 1.0})


async def run_all(stage: Stage, count: int, environment: RunEnvironment = three_turns) -> list[FinishedEpisode]:
    specs = [EpisodeSpec("train", number, 0, 0) for number in range(count)]
    return list(await asyncio.gather(*(stage.run(environment, spec, f"e{spec.index}") for spec in specs)))


def texts(episode: FinishedEpisode) -> list[tuple[str, list[int], list[float]]]:
    return [(t.agent, t.tokens.tolist(), t.logprobs.tolist()) for t in episode.episode.trajectories]


# slots and payers


async def test_episodes_beyond_the_slots_say_the_same() -> None:
    crowded, roomy = Witness(sequences=2), Witness(sequences=16)
    stages = [Stage(crowded), Stage(roomy)]
    together, apart = [await run_all(stage, 12) for stage in stages]
    assert [texts(episode) for episode in together] == [texts(episode) for episode in apart]
    places = {request.conversation for request in crowded.requests}
    assert len(places) > len({request.conversation for request in roomy.requests}) == 12, "slots were taken away"
    assert all([await stage.nothing_is_left() for stage in stages])


@pytest.mark.parametrize("deterministic", [True, False])
async def test_only_deterministic_turns_ask_for_the_same_bits(deterministic: bool) -> None:
    """They read their whole context each time; others may have what is faster."""
    sampler = Witness(sequences=16)
    await run_all(Stage(sampler, deterministic), 6)
    assert {request.alike for request in sampler.requests} == {deterministic}
    assert len({request.conversation for request in sampler.requests}) == (18 if deterministic else 6)


async def test_requests_say_who_pays_and_the_ledger_knows_what() -> None:
    sampler = Witness()
    stage = Stage(sampler)
    finished = await run_all(stage, 3)
    assert {(request.account, request.weight) for request in sampler.requests} == {("lab", 2.5)}
    stage.ledger.rollout_seconds(1.0)
    usages = {usage.stage: usage for usage in stage.ledger.take()}
    assert {usage.task for usage in usages.values()} == {PAYER.task}
    assert usages[ROLLOUT].tokens == sum(int(each.episode.trajectories[0].mask.sum()) for each in finished)
    assert usages[ROLLOUT].seconds == 1.0


async def test_a_cancelled_turn_is_paid_for() -> None:
    """With what the sampler had done by then; its slot is free at once."""
    stage, listening = Stage(Witness(sequences=1), sampling=replace(SAMPLING, max_tokens=20)), Listening()
    episode = asyncio.ensure_future(stage.run(three_turns, listener=listening))
    while stage.sampler.sampled < 7:
        await asyncio.sleep(0)
    episode.cancel()
    await asyncio.gather(episode, return_exceptions=True)
    assert (stage.slots.active, stage.slots.waiting) == (0, 0)
    assert await stage.nothing_is_left() and not stage.sampler.running
    stage.ledger.rollout_seconds(1.0)
    used = {usage.stage: usage for usage in stage.ledger.take()}[ROLLOUT]
    assert used.tokens == stage.sampler.sampled >= 7 and used.seconds == 1.0
    assert [each.outcome.status for each in listening.cancelled] == ["cancelled"]
    assert listening.cancelled[0].seconds > 0


async def test_a_payers_episodes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "EPISODES", 3)
    running, most = set[int](), list[int]()

    async def counted(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        running.add(spec.index)
        most.append(len(running))
        outcome = await three_turns(spec, answer)
        running.remove(spec.index)
        return outcome

    await run_all(Stage(Witness(sequences=16)), 9, counted)
    assert len(most) == 9 and max(most) == 3


async def test_an_episode_that_is_scored_holds_no_slot_and_no_permit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "EPISODES", 1)
    stage, scored, ended = Stage(Witness(sequences=1)), asyncio.Event(), list[int]()

    async def scored_slowly(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        outcome = await three_turns(spec, answer)
        assert isinstance(answer, Answering)
        answer.over()
        await scored.wait()
        return outcome

    def run(number: int) -> asyncio.Task[FinishedEpisode]:
        end = Listening(on_end=partial(ended.append, number))
        return asyncio.ensure_future(
            stage.run(scored_slowly, EpisodeSpec("train", number, 0, 0), f"e{number}", listener=end)
        )

    running = [run(number) for number in range(3)]
    async with asyncio.timeout(50):
        while len(ended) < 3 or stage.sampler.conversations:  # it is told to forget a moment later
            await asyncio.sleep(0)
    assert (stage.slots.active, stage.slots.waiting) == (0, 0)
    assert not any(task.done() for task in running)
    scored.set()
    assert all(texts(episode) for episode in await asyncio.gather(*running)) and ended == [0, 1, 2]


# agents asked at the same time


class Rounding(Witness):
    """Its replies depend on how much of the prompt it had in memory, as the last bits of a real one do."""

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        held = len(self.conversations.get(request.conversation, ()))
        return await super().generate(replace(request, seed=request.seed ^ held), stream_to=stream_to)


def rounding(slots: int, deterministic: bool = False, tokens: int = 100) -> Stage:
    sampling = replace(SAMPLING, max_tokens=3, max_episode_tokens=tokens)
    return Stage(Rounding(slots, context=400), deterministic, sampling=sampling)


def at_once(pauses: Pauses, forks: bool = False) -> RunEnvironment:
    """Several agents, or with ``forks`` branches of one agent, at the same time."""

    async def environment(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        async def conversation(number: int) -> None:
            for turn, rounds in enumerate(pauses[number]):
                for _ in range(rounds):
                    await asyncio.sleep(0)
                origin = Fork("root", 0, 1) if forks and not turn else None
                agent = ("root", number + 1) if forks else (f"agent {number}", 0)
                await answer(ask(f"{number} {turn}", *agent, origin))

        if forks:
            await answer(ask("begin", "root"))
        await asyncio.gather(*(conversation(number) for number in range(len(pauses))))
        agents = ["root"] if forks else [f"agent {number}" for number in range(len(pauses))]
        return EpisodeOutcome("ok", dict.fromkeys(agents, 1.0))

    return environment


@pytest.mark.parametrize(("slots", "most"), [(1, 1), (2, 2), (8, 3)])
async def test_agents_that_are_asked_at_once_are_sampled_at_once(slots: int, most: int) -> None:
    stage = rounding(slots)
    await stage.run(at_once([[0, 0]] * 3))
    assert stage.sampler.most == most and await stage.nothing_is_left()


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(1, 3), st.lists(pauses, min_size=1, max_size=4), st.booleans(), st.booleans())
def test_fewer_slots_than_agents_hold_nobody_up_for_ever(
    slots: int, scripts: list[Pauses], forks: bool, deterministic: bool
) -> None:
    async def run() -> None:
        stage = rounding(slots, deterministic)
        finished = await asyncio.gather(
            *(stage.run(at_once(script, forks), name=f"e{number}") for number, script in enumerate(scripts))
        )
        assert {each.episode.status for each in finished} == {"ok"} and await stage.nothing_is_left()

    asyncio.run(run())


@settings(max_examples=examples(20), deadline=None)
@given(pauses, st.integers(1, 3), st.booleans())
def test_a_deterministic_task_says_the_same_in_any_order(script: Pauses, slots: int, forks: bool) -> None:
    async def run(slots: int, script: Pauses) -> FinishedEpisode:
        return await rounding(slots, deterministic=True).run(at_once(script, forks))

    in_turn = [[100 * number + 10 for _ in turns] for number, turns in enumerate(script)]
    first, second = asyncio.run(run(slots, script)), asyncio.run(run(8, in_turn))
    assert texts(first) == texts(second)
    assert list(first.transcripts.items()) == list(second.transcripts.items())


@settings(max_examples=examples(20), deadline=None)
@given(pauses, st.integers(0, 14), st.integers(1, 4))
def test_forks_asked_at_once_share_their_agents_limit(script: Pauses, limit: int, slots: int) -> None:
    finished = asyncio.run(rounding(slots, tokens=limit).run(at_once(script, forks=True)))
    sampled = sum(int(t.mask.sum()) for t in finished.episode.trajectories)
    assert sampled <= limit and finished.episode.status == "ok"
    roomy = asyncio.run(rounding(slots).run(at_once(script, forks=True)))
    wanted = sum(int(t.mask.sum()) for t in roomy.episode.trajectories)
    assert sampled in (limit, wanted), "no token is held back that nobody uses"
    assert all(t.cut for t in finished.episode.trajectories) or sampled == wanted


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
async def test_a_held_out_prompt_refuses_all_asked_with_it(order: Sequence[str]) -> None:
    stage = rounding(4)

    async def environment(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        asking = [asyncio.ensure_future(answer(ask(agent, agent))) for agent in order]
        await asyncio.gather(*asking, return_exceptions=True)
        failed = [asked.exception() for asked in asking]
        assert all(isinstance(error, HeldOutPrompt) for error in failed)
        raise cast(HeldOutPrompt, failed[0])

    held_out = await stage.rollout.prompt_hash(ask(order[0], order[0]), 400)
    with pytest.raises(HeldOutPrompt):
        await stage.run(environment, listener=Listening(held_out.__eq__))
    assert not stage.sampler.ledger and await stage.nothing_is_left()


@settings(max_examples=examples(20), deadline=None)
@given(pauses, st.integers(1, 3), st.integers(0, 40), st.booleans(), st.booleans())
def test_an_episode_that_is_cancelled_leaves_nothing(
    script: Pauses, slots: int, rounds: int, forks: bool, deterministic: bool
) -> None:
    async def run() -> None:
        stage = rounding(slots, deterministic)
        running = [asyncio.ensure_future(stage.run(at_once(script, forks), name=f"e{number}")) for number in range(2)]
        for _ in range(rounds):
            await asyncio.sleep(0)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        assert await stage.nothing_is_left()
        again = await stage.run(at_once(script, forks), name="again")
        assert again.episode.status == "ok" and await stage.nothing_is_left()

    asyncio.run(run())


# environments that do wrong


async def test_an_environment_that_never_stops_asking_fails() -> None:
    async def deaf(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        while True:
            await answer(ask("more"))

    episode = (await Stage(Witness(context=40)).run(deaf)).episode
    assert episode.status == "error" and episode.failure is not None
    assert "went on asking" in episode.failure.message


async def test_a_prompt_that_does_not_fit_is_named() -> None:
    async def wordy(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        await answer(ask("x" * 500))
        return EpisodeOutcome("ok", {"agent": 1.0})

    episode = (await Stage(Witness(context=40)).run(wordy)).episode
    assert episode.failure is not None and "the context is 40" in episode.failure.message
    assert episode.status == "error" and all(t.reward is None for t in episode.trajectories)
