"""Which episodes the length limit ended: those whose last reply did, by the task's limits, not the environment's."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from marlaas.engine.rollout.renderer import Renderer
from marlaas.plugins.messages import Ask, Message

from ..talking import Talk, letters


@dataclass(frozen=True)
class Case:
    replies: tuple[str, ...]
    """What the model would say, turn by turn; it is cut where there is no room."""
    cut: bool
    tokens: int = 6
    episode: int = 100
    context: int = 20_000
    asked: int | None = None
    """The environment's own limit of a turn."""


CASES = {
    "ended by itself": Case(("abc",), cut=False),
    "ended with the last token": Case(("abcde",), cut=False),
    "cut by the turn's limit": Case(("abcdefgh",), cut=True),
    "cut by the episode's limit": Case(("abc", "abc"), cut=True, episode=6),
    "no room for a further turn": Case(("abc", "abc", "abc"), cut=True, episode=8),
    "cut by what the environment asked for": Case(("abcdefgh",), cut=False, asked=2),
    "the environment asked for more than the limit": Case(("abcdefgh",), cut=True, asked=50),
    "an earlier turn was cut, the last was not": Case(("abcdefgh", "abc"), cut=False),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
async def test_an_episode_is_cut_where_the_limit_ended_it(families: dict[str, Renderer], case: Case) -> None:
    renderer = families["qwen2.5"]
    talk = Talk(renderer, tokens=case.tokens, episode=case.episode, context=case.context)
    for text in case.replies:
        talk.sampler.saying = letters(renderer, text)
        ask = Ask("agent", (Message("user", "?"),), max_tokens=case.asked)
        await talk.conversation.answer(ask, talk.sampler, talk.rendering)
    assert [trajectory.cut for trajectory in talk.conversation.trajectories(1.0)] == [case.cut]


async def test_a_rewritten_episode_is_cut_as_a_whole(families: dict[str, Renderer]) -> None:
    renderer = families["qwen3"]
    talk = Talk(renderer, tokens=40)
    for text in ("yes", "x" * 100):
        await talk.say("?", letters(renderer, f"<think>\nno\n</think>\n\n{text}"))
    assert [trajectory.cut for trajectory in talk.conversation.trajectories(1.0)] == [True, True]
