"""Streams of an episode's programs: told as they are sampled, and of one that is broken off nothing is kept."""

from __future__ import annotations

import asyncio
import json
from typing import cast

import pytest

from marlaas.engine.rollout.conversation import SamplingParameters
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.samplers.protocol import NewTokens, OnTokens, SampleRequest, SampleResult
from marlaas.engine.wire import Answered

from ..talking import FAMILIES, Parrot, letters
from .stage import LOOK, Caller, Line, Stage, Witness, heard, ids, user

LONG = SamplingParameters("v1", 1, 1.0, max_tokens=400, max_episode_tokens=10_000, seed=7)
CALL = f"<tool_call>\n{json.dumps({'name': 'look', 'arguments': {'at': 1}})}\n</tool_call>"


def told(line: Line, choice: int = 0) -> str:
    return "".join(piece.text for piece in line.pieces if piece.choice == choice)


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
async def test_pieces_are_the_beginning_of_what_is_said(
    families: dict[str, Renderer], family: str, at_once: int
) -> None:
    """Its text, its thought and its tokens; a text that ends the reply is never told, nor is what comes behind it."""
    renderer, parrot = families[family], Parrot(context=20_000)
    parrot.at_once = at_once
    stage = Stage(cast(Witness, parrot), cast(Caller, renderer), sampling=LONG)
    thought = "<think>\nI add 名.\n</think>\n\n" if renderer.thinks else ""

    async def program(line: Line) -> None:
        for stops in ((), ("END",)):
            line.pieces.clear()
            parrot.saying = letters(renderer, f"{thought}one 名 😀 two END three")
            answered = await line.chat(user("Hi"), stream=True, stop=stops)
            (choice,) = answered.choices
            assert choice.stopped == "".join(stops)
            assert choice.text == ("one 名 😀 two " if stops else "one 名 😀 two END three")
            if renderer.thinks and stops:  # whether the text that ends it stands in the thought is known at the end
                assert not line.pieces
                continue
            assert len(line.pieces) > 3 and choice.text.startswith(told(line))
            assert choice.text[: len(told(line)) + 2] == choice.text, "all but what may be cut off is told"
            assert "".join(piece.thinking for piece in line.pieces) == choice.thinking
            tokens = [token for piece in line.pieces for token in piece.tokens]
            assert tokens == list(choice.tokens)

    await stage.play(program)


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3"])
async def test_calls_of_tools_are_no_part_of_the_text(families: dict[str, Renderer], family: str) -> None:
    renderer, parrot = families[family], Parrot(context=20_000)
    stage = Stage(cast(Witness, parrot), cast(Caller, renderer), sampling=LONG)

    async def program(line: Line) -> None:
        begun = [user("Hi")]
        for _ in range(2):  # also where the tools were on offer before
            line.pieces.clear()
            parrot.saying = letters(renderer, f"Well, I look.\n{CALL}")
            answered = await line.chat(*begun, stream=True, tools=(LOOK,))
            assert answered.choices[0].finish == "tool" and told(line) == "Well, I look."
            begun += [heard(answered), user("on")]
        line.pieces.clear()
        await line.chat(user("Hi"), stream=True)
        assert "look" in told(line), "without tools it is a text"

    await stage.play(program)


async def test_plain_prompts_and_choices_are_told_each_by_itself() -> None:
    stage = Stage(Witness(sequences=8))

    async def program(line: Line) -> None:
        answered = await line.chat(user("a"), stream=True, n=3)
        for choice in answered.choices:
            assert told(line, choice.choice) and choice.text.startswith(told(line, choice.choice))
            pieces = [piece for piece in line.pieces if piece.choice == choice.choice]
            assert [token.id for piece in pieces for token in piece.tokens] == ids(answered, choice.choice)
        line.pieces.clear()
        await line.chat(user("a"))
        assert not line.pieces
        completed = await line.complete("x", "y", stream=True)
        assert [told(line, place) for place in range(2)] == [
            choice.text[: len(told(line, choice.choice))] for choice in completed.choices
        ]
        assert line.pieces

    await stage.play(program)


class Slow(Witness):
    """Says a token, and then nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__(sequences=8)
        self.go = asyncio.Event()

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        said = 0

        def send(news: NewTokens) -> None:
            nonlocal said
            said += 1
            if stream_to is not None and said == 1:
                stream_to(news)

        result = await super().generate(request, stream_to=send)
        await self.go.wait()
        return result


async def test_of_a_stream_that_is_broken_off_nothing_is_kept() -> None:
    """The program heard its beginning; its next call begins anew, and what was heard is not trained on."""
    sampler = Slow()

    async def program(line: Line) -> None:
        call: asyncio.Future[Answered] = asyncio.ensure_future(line.chat(user("a"), stream=True))
        while not line.pieces:
            await asyncio.sleep(0)
        beginning = told(line)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        sampler.go.set()
        assert beginning and line.hearing.heard[-1][1] == 0
        again = await line.chat(user("a"), stream=True)
        await line.chat(user("a"), heard(again), user("b"), stream=True)

    played = await Stage(sampler).play(program)
    assert [len(trajectory.spans) for trajectory in played.episode.trajectories] == [2]
