"""Forks: whatever branches, each sampled token is trained on once, behind the tokens that led to it, in its order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec, FinishedEpisode
from marlaas.engine.rollout import episodes
from marlaas.engine.rollout.episodes import RunEnvironment
from marlaas.engine.samplers.protocol import OnTokens, SampleRequest, SampleResult
from marlaas.engine.trainer.advantages import ClosedGroup, close_group
from marlaas.engine.trajectories import Group
from marlaas.plugins import Agent, Episode as Author
from marlaas.plugins.messages import Answer, Ask, Fork, Message

from .fake import FakeSampler, Witness
from .fake_renderer import FakeRenderer
from .stage import SAMPLING, Stage, ask, spans

Step = tuple[str, int]
"""What is done (ask, fork, name), and by which of the agents that there are."""
steps = st.lists(st.tuples(st.sampled_from(("ask", "ask", "fork", "name")), st.integers(0, 9)), max_size=16)


def scripted(script: Sequence[Step]) -> RunEnvironment:
    """An environment that does what the script says, and pays every agent."""

    async def environment(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        episode = Author(answer)
        agents: list[Agent] = [episode.agent("a")]
        for number, (step, who) in enumerate(script):
            agent = agents[who % len(agents)]
            match step:
                case "ask":
                    await agent.ask(f"question {number}")
                case "fork":
                    agents.append(agent.fork())
                case _:
                    agents.append(agent.fork(f"b{number}"))
        return EpisodeOutcome("ok", dict.fromkeys(episode.agents, 1.0))

    return environment


async def run(script: Sequence[Step], sampler: FakeSampler | None = None, **more: Any) -> FinishedEpisode:
    return await Stage(sampler or Witness(), **more).run(scripted(script))


def check_each_token_is_trained_once(finished: FinishedEpisode, turns: Sequence[tuple[list[int], list[int]]]) -> None:
    """What trajectories mark as sampled are the sampler's turns, all of them, each once, each after its own prompt."""
    marked = []
    for trajectory in finished.episode.trajectories:
        tokens = trajectory.tokens.tolist()
        marked += [(tuple(tokens[: span.start]), tuple(tokens[span.start : span.stop])) for span in trajectory.spans]
        assert int(trajectory.mask.sum()) == sum(span.stop - span.start for span in trajectory.spans)
        assert not trajectory.logprobs[trajectory.mask == 0].any()
    assert Counter(marked) == Counter((tuple(prompt), tuple(reply)) for prompt, reply in turns)


class Endless(FakeRenderer):
    """Its turns have no end: every reply takes all the room that there is."""

    stop_ids: Any = ()


@settings(deadline=None)
@given(steps, st.booleans(), st.sampled_from([(40, 10_000), (2048, 10), (2048, 10_000)]))
def test_no_token_is_trained_twice_and_none_is_lost(script: list[Step], rewrites: bool, room: tuple[int, int]) -> None:
    """Also if the template rewrites, and if there is no room left in the middle of it."""
    context, episode_tokens = room
    sampler, renderer = Witness(context=context), FakeRenderer()
    renderer.rewrites = rewrites
    sampling = replace(SAMPLING, max_episode_tokens=episode_tokens)
    finished = asyncio.run(run(script, sampler, renderer=renderer, sampling=sampling))
    assert finished.episode.status == "ok"
    check_each_token_is_trained_once(finished, sampler.turns)
    spent: Counter[str] = Counter()
    for trajectory in finished.episode.trajectories:
        spent[trajectory.agent] += int(trajectory.mask.sum())
    assert max(spent.values(), default=0) <= episode_tokens
    counted = Counter(t.agent for t in finished.episode.trajectories)
    keys = [(0, agent, place) for agent, count in counted.items() for place in range(count)]
    assert list(finished.transcripts) == keys


async def test_branches_have_memory_and_noise_of_their_own() -> None:
    sampler = Witness()
    await run([("ask", 0), ("fork", 0), ("fork", 0), ("ask", 1), ("ask", 2)], sampler)
    assert len({request.seed for request in sampler.requests}) == 3
    assert [request.conversation.partition(":")[0] for request in sampler.requests] == ["e/0", "e/1", "e/2"]


async def test_forks_share_a_limit_and_named_agents_do_not() -> None:
    sampler = Witness()
    script = [("ask", 0), ("fork", 0), ("name", 0), ("ask", 1), ("ask", 2), ("ask", 0)]
    await run(script, sampler, renderer=Endless(), sampling=replace(SAMPLING, max_episode_tokens=6))
    assert [len(reply) for _, reply in sampler.turns] == [4, 2, 4]


async def test_a_branch_that_is_cut_off_cuts_its_agents_episode() -> None:
    async def environment(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        agent = Author(answer).agent("a")
        await agent.ask("x", max_tokens=1)  # the environment's own limit cuts nothing off
        await agent.fork("b").ask("x", max_tokens=1)
        await agent.fork().ask("x")
        return EpisodeOutcome("ok", {"a": 1.0, "b": 1.0})

    finished = await Stage(renderer=Endless()).run(environment)
    assert [(t.agent, t.cut) for t in finished.episode.trajectories] == [("a", True), ("a", True), ("b", False)]


async def test_the_advantage_of_a_branch_is_its_agents() -> None:
    rewarded = []
    for member in range(2):
        finished = await run([("ask", 0), *[("fork", 0), ("ask", 1)] * member])
        rewarded.append(finished.judged(EpisodeOutcome("ok", {"a": float(member)})).episode)
    closed = close_group(Group(0, 0, 1, "env", tuple(rewarded)))
    assert isinstance(closed, ClosedGroup)
    assert [[t.advantage for t in episode.trajectories] for episode in closed.group.episodes] == [[-0.5], [0.5, 0.5]]


async def failing(*asks: Ask) -> str:
    async def environment(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        for each in asks:
            await answer(each)
        return EpisodeOutcome("ok", {"a": 1.0})

    failure = (await Stage().run(environment)).episode.failure
    return failure.message if failure is not None else ""


async def test_what_a_hostile_plugin_may_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "CONVERSATIONS", 2)
    text = (Message("user", "x"),)
    assert "it forked the agent 'b', which has not spoken" in await failing(Ask("a", text, fork=Fork("b", 0, 1)))
    assert await failing(Ask("a", text), Ask("a", text, branch=1, fork=Fork("a", 0, 10**9))) == ""
    assert "more than 2 conversations" in await failing(*(Ask(f"a{number}", text) for number in range(3)))


async def test_replies_in_forks_without_a_name_are_marked_so() -> None:
    """Also of a fork made before the agent spoke; a fork with a name is an agent of its own."""
    script = [("fork", 0), ("ask", 0), ("ask", 1), ("fork", 0), ("ask", 2), ("name", 2), ("ask", 3), ("ask", 0)]
    finished = await run(script)
    marks = [(t.agent, [span.fork for span in t.spans]) for t in finished.episode.trajectories]
    assert marks == [("a", [False, False]), ("a", [True]), ("a", [True]), ("b5", [False])]
    assert spans(finished) == [2, 1, 1, 1]


# the order of turns


def in_order(finished: FinishedEpisode) -> list[tuple[int, str, str]]:
    """(place, role, text) of all turns, by their places."""
    return sorted(
        (place, *turn)
        for transcript in finished.transcripts.values()
        for place, turn in zip(transcript.places, transcript.turns, strict=True)
    )


@settings(deadline=None)
@given(steps, st.booleans())
def test_turns_have_the_order_in_which_they_were_said(script: list[Step], rewrites: bool) -> None:
    """Over all agents and their forks."""
    renderer = FakeRenderer()
    renderer.rewrites = rewrites
    turns = in_order(asyncio.run(run(script, renderer=renderer)))
    asked = [f"question {number}" for number, (step, _) in enumerate(script) if step == "ask"]
    assert [place for place, _, _ in turns] == list(range(2 * len(asked)))
    assert [role for _, role, _ in turns] == ["user", "assistant"] * len(asked)
    assert [text for _, role, text in turns if role == "user"] == asked


class Slow(Witness):
    """Answers the agent that was asked first only when it is let go."""

    def __init__(self) -> None:
        super().__init__(sequences=4)
        self.go = asyncio.Event()

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        if request.conversation.partition(":")[0].endswith("/0"):
            await self.go.wait()
        return await super().generate(request, stream_to=stream_to)


async def test_a_reply_is_said_when_it_is_there() -> None:
    """Whoever was asked first and thinks for long speaks after those who answered meanwhile."""
    sampler = Slow()

    async def environment(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        slow = asyncio.ensure_future(answer(ask("think", "slow")))
        await asyncio.sleep(0)
        for text in ("first", "second"):
            await answer(ask(text, "quick"))
        sampler.go.set()
        await slow
        return EpisodeOutcome("ok", {"slow": 1.0, "quick": 1.0})

    finished = await Stage(sampler).run(environment)
    whose = {place: agent for (_, agent, _), turns in finished.transcripts.items() for place in turns.places}
    order = [(whose[place], role) for place, role, _ in in_order(finished)]
    assert order[0] == ("slow", "user") and order[-1] == ("slow", "assistant")
    assert order[1:-1] == [("quick", "user"), ("quick", "assistant")] * 2
