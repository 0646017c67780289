"""When each turn of an episode was said, over all its agents and their forks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given, settings, strategies as st

from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec, FinishedEpisode
from marlaas.engine.rollout.conversation import Order
from marlaas.engine.rollout.episodes import RunEnvironment
from marlaas.engine.samplers.protocol import OnTokens, SampleRequest, SampleResult
from marlaas.plugins.messages import Answer, Ask, Fork, Message

from ..fake import FakeSampler, FakeVersion
from ..fake_renderer import FakeRenderer
from .test_fork import on

Script = Sequence[tuple[str, int]]
"""Who is asked, and in which of their forks."""
scripts = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), min_size=1, max_size=12)


class Slow(FakeSampler):
    """Answers the agent whose prompt says so only when it is let go."""

    def __init__(self) -> None:
        super().__init__(sequences=4, context=2048, versions={"v1": FakeVersion("sum")})
        self.held = asyncio.Event()

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        if request.conversation.partition(":")[0].endswith("/0"):
            await self.held.wait()
        return await super().generate(request, stream_to=stream_to)


def scripted(script: Script) -> RunEnvironment:
    """One ask after the other; the first ask of a fork forks the agent's own conversation, if that was begun."""

    async def environment(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        begun: set[tuple[str, int]] = set()
        for number, (agent, branch) in enumerate(script):
            place = branch if (agent, 0) in begun else 0
            fork = Fork(agent, 0, 1) if place and (agent, place) not in begun else None
            begun.add((agent, place))
            await answer(Ask(agent, (Message("user", f"question {number}"),), branch=place, fork=fork))
        return EpisodeOutcome("ok", {agent: 1.0 for agent, _ in begun})

    return environment


def in_order(played: FinishedEpisode) -> list[tuple[int, str, str]]:
    """(place, role, text) of all turns, as their places say."""
    return sorted(
        (place, *turn)
        for told in played.transcripts.values()
        for place, turn in zip(told.places, told.turns, strict=True)
    )


@settings(deadline=None)
@given(scripts, st.booleans())
def test_turns_have_the_order_in_which_they_were_said(script: Script, rewrites: bool) -> None:
    renderer = FakeRenderer()
    renderer.rewrites = rewrites
    played = asyncio.run(
        on(FakeSampler(sequences=2, context=2048, versions={"v1": FakeVersion("sum")}), renderer, scripted(script))
    )
    told = in_order(played)
    assert [place for place, _, _ in told] == list(range(2 * len(script)))
    assert [role for _, role, _ in told] == ["user", "assistant"] * len(script)
    assert [text for _, role, text in told if role == "user"] == [f"question {number}" for number in range(len(script))]


async def test_a_reply_is_said_when_it_is_there() -> None:
    """Whoever was asked first and thinks for long speaks after those who answered meanwhile."""
    sampler = Slow()

    async def environment(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        async def ask(agent: str, text: str) -> None:
            await answer(Ask(agent, (Message("user", text),)))

        slow = asyncio.ensure_future(ask("slow", "think"))
        while not sampler.held.is_set():
            await asyncio.sleep(0)
            await ask("quick", "one")
            await ask("quick", "two")
            sampler.held.set()
        await slow
        return EpisodeOutcome("ok", {"slow": 1.0, "quick": 1.0})

    played = await on(sampler, FakeRenderer(), environment)
    whose = {place: agent for (_, agent, _), told in played.transcripts.items() for place in told.places}
    order = [(whose[place], role) for place, role, _ in in_order(played)]
    assert order[0] == ("slow", "user") and order[-1] == ("slow", "assistant")
    assert order[1:-1] == [("quick", "user"), ("quick", "assistant")] * 2


def test_places_are_given_once() -> None:
    order = Order()
    assert [order.take(2), order.take(0), order.take(1)] == [[0, 1], [], [2]]
