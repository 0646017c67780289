"""A person's conversation: heard in pieces that give the same text, and a cancelled turn was never said."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from marlaas.engine.adapters.statefile import PolicyState, StateHeader, write_state
from marlaas.engine.rollout.conversation import Unplayable
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.rollout.talk import Manner, Speech, Talk
from marlaas.engine.samplers.sampling import Truncation

from .fake import FakeSampler
from .fake_renderer import FakeRenderer

WARM = Manner(temperature=1.0, max_tokens=25)


@pytest.fixture
async def sampler(tmp_path: Path) -> FakeSampler:
    sampler = FakeSampler(context=160)
    adapter = {"m.lora_A": np.zeros((1, 8), np.float32)}
    write_state(tmp_path / "v1", PolicyState(StateHeader(1, 1.0, 1, "base"), adapter), sync=False)
    for version in ("v1", "twin"):
        await sampler.load(version, str(tmp_path / "v1"))
    return sampler


def talk(sampler: FakeSampler, place: str = "a", version: str = "v1") -> Talk:
    return Talk(sampler, cast(Renderer, FakeRenderer()), sampler.context, version, 1, place)


def undisturbed(sampler: FakeSampler) -> Talk:
    """The same bytes under another name, with the same noise."""
    return talk(sampler, version="twin")


async def test_a_reply_is_heard_while_it_is_sampled(sampler: FakeSampler) -> None:
    heard: list[Speech] = []
    reply = await talk(sampler).say("hello", WARM, heard.append)
    assert len(heard) > 1 and all(after.text.startswith(before.text) for before, after in pairwise(heard))
    assert reply.text.startswith(heard[-1].text) and heard[-1].tokens == reply.tokens and reply.ended


async def test_a_turn_draws_from_what_its_manner_names(sampler: FakeSampler) -> None:
    """The likeliest alone, at any temperature, is what is said greedily."""
    cold = await talk(sampler).say("hello", replace(WARM, temperature=0.0), lambda speech: None)
    only = replace(WARM, temperature=2.0, truncation=Truncation(top_k=1))
    assert await undisturbed(sampler).say("hello", only, lambda speech: None) == cold


async def test_a_cancelled_turn_was_never_said(sampler: FakeSampler) -> None:
    conversation, other = talk(sampler), talk(sampler, "b")
    first = await conversation.say("hello", WARM, lambda speech: None)
    assert (await other.say("hello", WARM, lambda speech: None)).text != first.text, "other noise"
    begun = asyncio.Event()
    turn = asyncio.ensure_future(conversation.say("wrong", WARM, lambda speech: begun.set()))
    await begun.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    again = await conversation.say("right", WARM, lambda speech: None)
    twin = undisturbed(sampler)
    await twin.say("hello", WARM, lambda speech: None)
    assert await twin.say("right", WARM, lambda speech: None) == again


async def test_what_cannot_be_said_leaves_the_conversation_as_it_was(sampler: FakeSampler) -> None:
    conversation = talk(sampler)
    with pytest.raises(Unplayable, match="first prompt has 200 tokens; a conversation has room for 160"):
        await conversation.say("x" * 200, WARM, lambda speech: None)
    assert (await conversation.say("hello", WARM, lambda speech: None)).tokens


async def test_a_full_conversation_says_so(sampler: FakeSampler) -> None:
    conversation = talk(sampler)
    await conversation.say("x" * 100, WARM, lambda speech: None)
    assert await conversation.say("y" * 100, WARM, lambda speech: None) == Speech(ended="full")


async def test_another_sampler_goes_on_where_the_first_one_ended(sampler: FakeSampler) -> None:
    conversation, twin = talk(sampler), undisturbed(sampler)
    for each in (conversation, twin):
        await each.say("hello", WARM, lambda speech: None, system="Be brief.")
    other = FakeSampler(context=160, versions=sampler.versions)
    conversation.move(other)
    heard = await conversation.say("more", WARM, lambda speech: None)
    assert heard == await twin.say("more", WARM, lambda speech: None)
    await conversation.leave()
    assert not other.conversations
