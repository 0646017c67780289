"""What a program may ask for, in training and in an evaluation, and in which words the rest is refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from marlaas.engine.rollout import episodes, programs as programs
from marlaas.engine.samplers.options import Extras, Likeliest, Wishes
from marlaas.engine.samplers.protocol import OnTokens, SampleRequest, SampleResult
from marlaas.engine.wire import Answered, Message, Refusal, ToolCall

from .stage import (
    LOOK,
    SAMPLING,
    Caller,
    Line,
    Stage,
    Witness,
    heard,
    ids,
    spans,
    system,
    told,
    user,
)


async def test_in_training_the_tasks_sampling_holds() -> None:
    stage = Stage()

    async def program(line: Line) -> None:
        await line.chat(user("a"), temperature=0.0, top_p=0.1, seed=3)
        await line.chat(user("a"), temperature=0.5)

    await stage.play(program)
    assert {request.temperature for request in stage.sampler.requests} == {1.0}
    assert {request.truncation for request in stage.sampler.requests} == {SAMPLING.truncation}
    assert len(stage.told) == 3 and "'temperature', which is ignored in training" in " ".join(stage.told)


async def test_in_an_evaluation_the_clients_sampling_holds() -> None:
    stage = Stage(split="eval")

    async def program(line: Line) -> None:
        first = await line.chat(user("a"), temperature=0.5, top_p=0.9, top_k=5, seed=3)
        begun = [user("a"), heard(first), user("b")]
        again = await line.chat(*begun, presence_penalty=1.0)
        assert ids(again)
        with pytest.raises(Refusal, match="temperature is -1"):
            await line.chat(user("a"), temperature=-1.0)
        with pytest.raises(Refusal, match="top_p is 2"):
            await line.chat(user("a"), top_p=2.0)
        assert "no tokenizer for a schema" in (await line.refused(user("x"), schema="{}")).message
        with pytest.raises(Refusal, match="presence_penalty is 200"):
            await line.chat(user("a"), presence_penalty=200.0)

    await stage.play(program)
    first, second, third = stage.sampler.requests
    assert first.wishes is None and second.wishes == Wishes(presence_penalty=1.0)
    assert third.wishes == Wishes(schema="{}")
    assert (first.temperature, first.truncation.top_p, first.truncation.top_k) == (0.5, 0.9, 5)
    assert (second.temperature, second.truncation) == (1.0, SAMPLING.truncation) and first.seed != second.seed
    assert not stage.told


class Telling(Witness):
    """Tells that one token is likely, and of others that they are forbidden."""

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        result = await super().generate(request, stream_to=stream_to)
        if request.wishes is None or not request.wishes.likeliest:
            return result
        shape = (len(result.tokens), request.wishes.likeliest)
        near = np.full(shape, -np.inf, np.float32)
        near[:, 0] = -0.5
        ids_ = np.tile(np.arange(shape[1], dtype=np.int32), (shape[0], 1))
        extras = Extras(result.logprobs, Likeliest(ids_, near))
        return replace(result, extras=extras)


async def test_in_an_evaluation_the_likeliest_are_told() -> None:
    """Those that a schema forbids are left out; a text that ends the reply ends them, too."""
    stage = Stage(Telling(), split="eval")

    async def program(line: Line) -> None:
        (whole,) = (await line.chat(user("a"), top_logprobs=3, seed=1)).choices
        assert whole.tokens and all(token.likeliest == ((0, "0", -0.5),) for token in whole.tokens)
        (plain,) = (await line.chat(user("a"), seed=1)).choices
        assert not any(token.likeliest for token in plain.tokens)
        (deaf,) = (await line.chat(user("a"), top_logprobs=3, logprobs=False)).choices
        assert not deaf.tokens
        with pytest.raises(Refusal, match="likeliest is 21"):
            await line.chat(user("a"), top_logprobs=21)

    await stage.play(program)
    assert not stage.told


async def test_in_an_evaluation_a_call_is_forced_only_among_the_tools() -> None:
    async def program(line: Line) -> None:
        for given in ({"tool_choice": "required"}, {"tool_choice": "tool:add", "tools": (LOOK,)}):
            refusal = await line.refused(user("a"), **given)
            assert (refusal.status, refusal.where) == (400, "tool_choice")
        refusal = await line.refused(user("a"), tools=(LOOK,), tool_choice="required", schema="{}")
        assert "cannot both be asked for" in refusal.message
        refusal = await line.refused(user("a"), tools=(LOOK,), tool_choice="required")
        assert refusal.where == "tools" and "no tokenizer for a schema" in refusal.message

    played = await Stage(split="eval").play(program)
    assert played.episode.status == "ok"


async def test_a_schema_that_no_sampler_follows_is_the_clients_error() -> None:
    class Strict(Witness):
        async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
            raise ValueError("The JSON schema cannot be followed: no.")

    async def program(line: Line) -> None:
        refusal = await line.refused(user("a"), schema="[]")
        assert (refusal.status, refusal.where) == (400, "response_format")

    played = await Stage(Strict(), split="eval").play(program)
    assert played.episode.status == "ok"


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"schema": "{}"}, "response format"),
        ({"tool_choice": "required"}, "In training the model chooses its tools"),
        ({"tool_choice": "tool:look"}, "tool_choice is auto or none"),
        ({"top_logprobs": 3}, "log-probabilities"),
        ({"n": 0}, "n is 0"),
        ({"max_tokens": 0}, "max_tokens is 0"),
    ],
)
async def test_what_cannot_be_forced_is_refused_in_a_sentence(wishes: dict[str, Any], words: str) -> None:
    async def program(line: Line) -> None:
        refusal = await line.refused(user("a"), **wishes)
        assert refusal.status == 400 and words in refusal.message and refusal.where
        assert (await line.refused()).message == "There are no messages."
        bad = Message("assistant", "", tool_calls=(ToolCall("1", "look", "[1]"),))
        assert "no JSON object" in (await line.refused(bad, user("a"))).message

    played = await Stage().play(program)
    assert played.episode.status == "ok" and not played.episode.trajectories


async def test_a_full_context_is_an_error_that_clients_know() -> None:
    stage = Stage(Witness(context=20))

    async def program(line: Line) -> None:
        refusal = await line.refused(user("x" * 30))
        assert (refusal.status, refusal.code) == (400, "context_length_exceeded")
        assert "maximum context length" in refusal.message and "30 tokens" in refusal.message
        begun = [user("a"), heard(await line.chat(user("a"))), user("b" * 30)]
        assert (await line.refused(*begun)).code == "context_length_exceeded"
        begun[-1] = user("c")
        assert ids(await line.chat(*begun)), "a shorter history goes on"

    played = await stage.play(program)
    assert [len(t.spans) for t in played.episode.trajectories] == [1, 1]


async def test_an_agent_whose_tokens_are_used_up_is_refused() -> None:
    """Over all its conversations; another agent has its own."""
    stage = Stage(sampling=replace(SAMPLING, max_tokens=4, max_episode_tokens=4))

    async def program(line: Line) -> None:
        said = 0
        while said < 4:
            said += (await line.chat(user(f"a{said}"))).completion_tokens
        assert said == 4
        refusal = await line.refused(user("b"))
        assert (refusal.status, refusal.code) == (400, "context_length_exceeded")
        assert "the agent's tokens for the episode are used up" in refusal.message
        assert ids(await line.chat(user("a"), agent="helper"))

    played = await stage.play(program, ("agent", "helper"))
    assert sum(len(tokens) for tokens in told(played)) > 4


async def test_what_the_template_refuses_is_the_clients_error() -> None:
    class Strict(Caller):
        def open(self, messages: Any, *given: Any) -> list[int]:
            if messages[-1].role == "system":
                raise ValueError("The system prompt comes first.")
            return super().open(messages, *given)

    async def program(line: Line) -> None:
        refusal = await line.refused(user("a"), system("b"))
        assert refusal.status == 400 and "cannot be put to the base model" in refusal.message
        assert "has the role 'text'" in (await line.refused(Message("text", "a"))).message
        await line.chat(user("a"))

    assert spans(await Stage(renderer=Strict()).play(program)) == [1]


@pytest.mark.parametrize("given", [((1, 2),), ("",), ("a",) * 17])
async def test_plain_prompts_are_few_and_texts(given: tuple[Any, ...]) -> None:
    async def program(line: Line) -> None:
        with pytest.raises(Refusal) as caught:
            await line.complete(*given)
        assert caught.value.status == 400 and caught.value.where == "prompt"
        with pytest.raises(Refusal, match="repeats none"):
            await line.complete("a", echo=True)

    await Stage().play(program)


async def test_limits_of_an_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "CALLS", 4)
    monkeypatch.setattr(programs, "AT_ONCE", 1)
    monkeypatch.setattr(episodes, "CONVERSATIONS", 2)

    async def program(line: Line) -> None:
        first, second = await asyncio.gather(line.chat(user("a")), line.refused(user("b")))
        assert isinstance(first, Answered) and (second.status, second.retry_after) == (429, 1.0)
        await line.chat(user("b"))
        assert "more than 2 conversations" in (await line.refused(user("c"))).message
        await line.chat(user("a"), heard(first), user("b"))
        assert (await line.refused(user("d"))).code == "episode_limit"

    await Stage().play(program)
