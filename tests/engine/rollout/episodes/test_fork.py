"""Forks: whatever branches where, each sampled token is trained on once, behind the tokens that led to it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given, settings, strategies as st

from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec, FinishedEpisode
from marlaas.engine.fairness.line import Ledger
from marlaas.engine.rollout import episodes
from marlaas.engine.rollout.conversation import SamplingParameters
from marlaas.engine.rollout.episodes import Rollout, RunEnvironment, alike
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.samplers.protocol import OnTokens, SampleRequest, SampleResult
from marlaas.engine.trainer.advantages import ClosedGroup, close_group
from marlaas.engine.trajectories import Group
from marlaas.plugins import Agent, Episode as Author
from marlaas.plugins.messages import Answer, Ask, Fork, Message

from ....examples import examples
from ..endpoints import endpoint
from ..fake import FakeSampler, FakeVersion
from ..fake_renderer import FakeRenderer
from ..talking import FAMILIES, Parrot, letters

SPEC = EpisodeSpec("train", 0, 0, 0)
SAMPLING = SamplingParameters("v1", 1, temperature=1.0, max_tokens=4, max_episode_tokens=10_000, seed=7)
Step = tuple[str, int]
"""What is done (ask, fork, name), and by which of the agents that there are."""
steps = st.lists(st.tuples(st.sampled_from(("ask", "ask", "fork", "name")), st.integers(0, 9)), max_size=16)


class Witness(FakeSampler):
    """Keeps what it was asked and what it said."""

    def __init__(self, context: int = 2048) -> None:
        super().__init__(sequences=2, context=context, versions={"v1": FakeVersion("sum")})
        self.turns: list[tuple[list[int], list[int]]] = []
        self.requests: list[SampleRequest] = []

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        result = await super().generate(request, stream_to=stream_to)
        self.requests.append(request)
        self.turns.append((request.tokens.tolist(), result.tokens.tolist()))
        return result


async def on(
    sampler: FakeSampler, renderer: object, environment: RunEnvironment, sampling: SamplingParameters = SAMPLING
) -> FinishedEpisode:
    """One episode of an environment."""
    rollout = Rollout(cast(Renderer, renderer), Ledger())
    place = endpoint(sampler, sampler.sequences, sampler.context)
    return await rollout.run_episode(environment, SPEC, alike(sampling, place), "e")


async def play(
    sampler: FakeSampler, renderer: object, script: Sequence[Step], sampling: SamplingParameters = SAMPLING
) -> FinishedEpisode:
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

    return await on(sampler, renderer, environment, sampling)


def check_each_token_is_trained_once(played: FinishedEpisode, turns: Sequence[tuple[list[int], list[int]]]) -> None:
    """What trajectories mark as sampled are the sampler's turns, all of them, each once, each after its own prompt."""
    marked = []
    for trajectory in played.episode.trajectories:
        tokens = trajectory.tokens.tolist()
        marked += [(tuple(tokens[: span.start]), tuple(tokens[span.start : span.stop])) for span in trajectory.spans]
        assert int(trajectory.mask.sum()) == sum(span.stop - span.start for span in trajectory.spans)
        assert not trajectory.logprobs[trajectory.mask == 0].any()
    assert Counter(marked) == Counter((tuple(prompt), tuple(reply)) for prompt, reply in turns)


@settings(deadline=None)
@given(steps, st.booleans(), st.sampled_from([(40, 10_000), (2048, 10), (2048, 10_000)]))
def test_no_token_is_trained_twice_and_none_is_lost(script: list[Step], rewrites: bool, room: tuple[int, int]) -> None:
    """Also where the template rewrites, and where there is no room left in the middle of it."""
    context, episode_tokens = room
    sampler, renderer = Witness(context), FakeRenderer()
    renderer.rewrites = rewrites
    sampling = SamplingParameters("v1", 1, 1.0, max_tokens=4, max_episode_tokens=episode_tokens, seed=7)
    played = asyncio.run(play(sampler, renderer, script, sampling))
    assert played.episode.status == "ok"
    check_each_token_is_trained_once(played, sampler.turns)
    spent: Counter[str] = Counter()
    for trajectory in played.episode.trajectories:
        spent[trajectory.agent] += int(trajectory.mask.sum())
    assert max(spent.values(), default=0) <= episode_tokens
    counted = Counter(t.agent for t in played.episode.trajectories)
    keys = [(0, agent, place) for agent, count in counted.items() for place in range(count)]
    assert list(played.transcripts) == keys


@settings(deadline=None)
@given(steps)
def test_every_branch_has_the_history_that_was_its_agents(script: list[Step]) -> None:
    sampler, renderer = Witness(), FakeRenderer()
    asyncio.run(play(sampler, renderer, script))
    histories: list[list[int]] = [[]]
    turns = iter(sampler.turns)
    for number, (step, who) in enumerate(script):
        history = histories[who % len(histories)]
        if step != "ask":
            histories.append([*history])
            continue
        history += renderer.open([Message("user", f"question {number}")])
        prompt, reply = next(turns)
        assert prompt == history
        history += reply


@settings(max_examples=examples(15), deadline=None)
@given(st.sampled_from(FAMILIES[1:]), steps)
def test_prompts_of_branches_read_as_the_template_writes_them(
    families: dict[str, Renderer], family: str, script: list[Step]
) -> None:
    renderer, sampler = families[family], Parrot(context=20_000)
    sampler.saying = letters(renderer, "the answer")
    sampling = SamplingParameters("v1", 1, 1.0, max_tokens=100, max_episode_tokens=10_000, seed=5)
    played = asyncio.run(play(sampler, renderer, script, sampling))
    check_each_token_is_trained_once(played, [(r.tokens.tolist(), sampler.saying) for r in sampler.requests])
    histories: list[list[dict[str, str]]] = [[]]
    requests = iter(sampler.requests)
    for number, (step, who) in enumerate(script):
        history = histories[who % len(histories)]
        if step != "ask":
            histories.append([*history])
            continue
        history.append({"role": "user", "content": f"question {number}"})
        shown = renderer.vocabulary.decode(next(requests).tokens.tolist())
        assert shown == renderer.template.render(history, None, None)
        history.append({"role": "assistant", "content": "the answer"})


async def test_branches_have_memory_and_noise_of_their_own() -> None:
    sampler = Witness()
    await play(sampler, FakeRenderer(), [("ask", 0), ("fork", 0), ("fork", 0), ("ask", 1), ("ask", 2)])
    assert len({request.seed for request in sampler.requests}) == 3
    assert [request.conversation.partition(":")[0] for request in sampler.requests] == ["e/0", "e/1", "e/2"]


async def test_a_branch_leaves_where_it_was_made() -> None:
    sampler = Witness()
    script = [("ask", 0), ("fork", 0), ("ask", 0), ("ask", 0), ("ask", 1)]
    played = await play(sampler, FakeRenderer(), script)
    (first, reply), *_, (branch, _) = sampler.turns
    assert branch[: len(first) + len(reply)] == first + reply
    assert [t.agent for t in played.episode.trajectories] == ["a", "a"]
    assert [len(t.spans) for t in played.episode.trajectories] == [3, 1]
    turns = [turn for transcript in played.transcripts.values() for turn in transcript.turns]
    assert [text for role, text in turns if role == "user"] == [f"question {number}" for number in (0, 2, 3, 4)]


async def test_forks_share_a_limit_and_named_agents_do_not() -> None:
    sampling = SamplingParameters("v1", 1, 1.0, max_tokens=4, max_episode_tokens=6, seed=7)
    sampler, renderer = Witness(), FakeRenderer()
    renderer.stop_ids = ()  # type: ignore[assignment]  # every reply takes all the room that there is
    script = [("ask", 0), ("fork", 0), ("name", 0), ("ask", 1), ("ask", 2), ("ask", 0)]
    await play(sampler, renderer, script, sampling)
    assert [len(reply) for _, reply in sampler.turns] == [4, 2, 4]


async def test_a_branch_that_is_cut_off_cuts_its_agents_episode() -> None:
    renderer = FakeRenderer()
    renderer.stop_ids = ()  # type: ignore[assignment]

    async def environment(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        agent = Author(answer).agent("a")
        await agent.ask("x", max_tokens=1)  # the environment's own limit cuts nothing off
        await agent.fork("b").ask("x", max_tokens=1)
        await agent.fork().ask("x")
        return EpisodeOutcome("ok", {"a": 1.0, "b": 1.0})

    played = await on(Witness(), renderer, environment)
    assert [(t.agent, t.cut) for t in played.episode.trajectories] == [("a", True), ("a", True), ("b", False)]


async def test_a_fork_of_an_agent_without_room_has_none() -> None:
    sampler = Witness(context=20)
    played = await play(sampler, FakeRenderer(), [("ask", 0), ("ask", 0), ("ask", 0), ("name", 0), ("ask", 1)])
    check_each_token_is_trained_once(played, sampler.turns)
    assert [len(t.spans) for t in played.episode.trajectories if t.agent == "b3"] == [0]


async def test_the_advantage_of_a_branch_is_its_agents() -> None:
    played = [
        await play(Witness(), FakeRenderer(), [("ask", 0), *[("fork", 0), ("ask", 1)] * forks]) for forks in (0, 1)
    ]
    rewarded = []
    for member, one in enumerate(played):
        outcome = EpisodeOutcome("ok", {"a": float(member)})
        rewarded.append(one.judged(outcome).episode)
    closed = close_group(Group(0, 0, 1, "env", tuple(rewarded)))
    assert isinstance(closed, ClosedGroup)
    assert [[t.advantage for t in episode.trajectories] for episode in closed.group.episodes] == [[-0.5], [0.5, 0.5]]


async def failing(*asks: Ask) -> str:
    async def environment(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        for ask in asks:
            await answer(ask)
        return EpisodeOutcome("ok", {"a": 1.0})

    played = await on(Witness(), FakeRenderer(), environment)
    failure = played.episode.failure
    return failure.message if failure is not None else ""


async def test_what_a_hostile_plugin_may_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "CONVERSATIONS", 2)
    said = (Message("user", "x"),)
    assert "it forked the agent 'b', which has not spoken" in await failing(Ask("a", said, fork=Fork("b", 0, 1)))
    assert await failing(Ask("a", said), Ask("a", said, branch=1, fork=Fork("a", 0, 10**9))) == ""
    many = [Ask(f"a{number}", said) for number in range(3)]
    assert "more than 2 conversations" in await failing(*many)


async def test_replies_in_forks_without_a_name_are_marked_so() -> None:
    """Also of a fork made before the agent spoke; a fork with a name is an agent of its own."""
    script = [("fork", 0), ("ask", 0), ("ask", 1), ("fork", 0), ("ask", 2), ("name", 2), ("ask", 3), ("ask", 0)]
    played = await play(Witness(), FakeRenderer(), script)
    marks = [(t.agent, [span.fork for span in t.spans]) for t in played.episode.trajectories]
    assert marks == [("a", [False, False]), ("a", [True]), ("a", [True]), ("b5", [False])]
