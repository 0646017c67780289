"""On the shipped base with the torch sampler: what clients are shown is what the sampler computes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import numpy as np
import pytest

from marlaas.engine.gateway.serving.clients import Serving
from marlaas.engine.home.paths import TINY_BASE
from marlaas.engine.models.find import load_base
from marlaas.engine.samplers.torch.sampler import TorchSampler
from marlaas.engine.wire import Answerer, Choice, Refusal, Token

from .clientele import Clientele, chat, client, complete, talk

TOLERANCE = 2e-4
"""Nats between a row of a batch and the same alone, in float32."""


@pytest.fixture
async def sampler() -> AsyncIterator[TorchSampler]:
    sampler = TorchSampler(str(load_base(TINY_BASE).path), sequences=8, context=256)
    yield sampler
    await sampler.close()


@pytest.fixture
def serving(clientele: Clientele, sampler: TorchSampler) -> Serving:
    return clientele.serving(sampler, context=256)[0]


@pytest.fixture
def answerer(serving: Serving) -> Answerer:
    return serving.answerer(client("lab"))


def logprobs(tokens: tuple[Token, ...]) -> list[float]:
    return [token.logprob for token in tokens if token.logprob is not None]


async def test_log_probabilities_are_the_samplers(
    clientele: Clientele, serving: Serving, answerer: Answerer, sampler: TorchSampler
) -> None:
    """Of the whole distribution at the temperature, whatever cuts it; the likeliest are at least as likely."""
    request = chat("1@1", seed=1, logprobs=True, top_logprobs=3, top_p=0.5, temperature=0.7, max_tokens=20)
    answered, _ = await talk(answerer, request)
    (choice,) = answered.choices
    assert len(choice.tokens) == answered.completion_tokens
    prompt = await _prompt(clientele)
    context = np.array([*prompt, *(token.id for token in choice.tokens)], np.int32)
    (name,) = serving.loaded.names
    scored = await sampler.score(name, context, len(prompt), 0.7)
    np.testing.assert_allclose(logprobs(choice.tokens), scored, atol=TOLERANCE)
    for token in choice.tokens:
        near = [value for _, _, value in token.likeliest]
        assert len(near) == 3 and near == sorted(near, reverse=True) and near[0] >= (token.logprob or 0) - TOLERANCE
        assert all(text == clientele.renderer.vocabulary.decode([id_]) for id_, text, _ in token.likeliest)


async def _prompt(clientele: Clientele) -> list[int]:
    from marlaas.plugins.messages import Message

    return clientele.renderer.open([Message("user", "17 + 25 = ?")])


@pytest.mark.parametrize("most", [0, 1, 5])
async def test_echo_tells_of_the_prompt(
    clientele: Clientele, serving: Serving, answerer: Answerer, sampler: TorchSampler, most: int
) -> None:
    """As harnesses that compare likelihoods ask: token ids in batches, with one token more, greedily."""
    encode = clientele.renderer.vocabulary.encode
    prompts = [tuple(encode(text)) for text in ("17 + 25 = 42", "reverse the words", "a")]
    request = complete("1@2", *prompts, echo=True, logprobs=True, top_logprobs=1, max_tokens=most, temperature=0.0)
    answered, _ = await talk(answerer, request)
    (name,) = serving.loaded.names
    for prompt, choice in zip(prompts, answered.choices, strict=True):
        assert [token.id for token in choice.tokens[: len(prompt)]] == list(prompt)
        assert choice.tokens[0].logprob is None and choice.text.startswith(choice.tokens[0].text)
        context = np.array([token.id for token in choice.tokens], np.int32)
        if len(context) > 1:
            scored = await sampler.score(name, context, 1, 1.0)
            np.testing.assert_allclose(logprobs(choice.tokens), scored, atol=TOLERANCE)
        for token in choice.tokens[len(prompt) :]:
            assert token.logprob == token.likeliest[0][2], "what is said greedily is the likeliest"
    if most == 0:
        assert answered.completion_tokens == 0
    _, pieces = await talk(answerer, complete("1@2", prompts[0], echo=True, stream=True, logprobs=True))
    assert not pieces, "what is said of the prompt is known at the end"


async def test_streams_carry_each_token_once(answerer: Answerer) -> None:
    answered, pieces = await talk(answerer, chat("1", logprobs=True, stream=True, max_tokens=30, seed=3))
    (choice,) = answered.choices
    assert [token for piece in pieces for token in piece.tokens] == list(choice.tokens)
    assert choice.text.startswith("".join(piece.text for piece in pieces))


async def test_many_versions_in_one_batch_say_what_they_say_alone(answerer: Answerer) -> None:
    """Greedy, and at the same time; each version speaks as itself."""
    names = ["base", "1@0", "1@1", "1@2", "2/player@0", "2/judge"]
    requests = [chat(name, temperature=0.0, max_tokens=16) for name in names]
    together = await asyncio.gather(*(talk(answerer, request) for request in requests))
    for request, (answered, _) in zip(requests, together, strict=True):
        alone, _ = await talk(answerer, request)
        assert alone.choices == answered.choices
    assert len({answered.choices[0].text for answered, _ in together}) > 1


async def test_prompts_that_begin_alike_are_read_once(answerer: Answerer) -> None:
    first, _ = await talk(answerer, chat("base", "count to ten " * 8, max_tokens=2))
    again, _ = await talk(answerer, chat("base", "count to ten " * 8, max_tokens=2))
    assert first.cached_tokens == 0 < again.cached_tokens < again.prompt_tokens


async def test_penalties_keep_a_word_from_coming_again(answerer: Answerer) -> None:
    plain, _ = await talk(answerer, complete("base", "a", temperature=0.0, max_tokens=60, logprobs=True))
    punished, _ = await talk(
        answerer, complete("base", "a", temperature=0.0, max_tokens=60, logprobs=True, frequency_penalty=2.0)
    )

    def most(choice: Choice) -> int:
        ids = [token.id for token in choice.tokens]
        return max(map(ids.count, ids))

    assert most(punished.choices[0]) < most(plain.choices[0])


async def test_a_call_can_be_forced(answerer: Answerer) -> None:
    pytest.importorskip("llguidance")
    from msgspec import structs

    # with further properties the model might write on and on: without them there are two replies, both short
    parameters: dict[str, object] = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    parameters["additionalProperties"] = False
    tool = {"type": "function", "function": {"name": "add", "parameters": parameters}}
    for wish in ("required", "tool:add"):
        request = structs.replace(chat("base", tool_choice=wish, max_tokens=120), tools=(tool,))
        answered, _ = await talk(answerer, request)
        (call,) = answered.choices[0].tool_calls
        assert call.name == "add" and json.loads(call.arguments)["a"] in (1, 2)
        assert (answered.choices[0].text, answered.choices[0].finish) == ("", "tool")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_schema_that_cannot_be_followed_is_named(answerer: Answerer, stream: bool) -> None:
    pytest.importorskip("llguidance")
    from msgspec import structs

    unmet: dict[str, object] = {"type": "object", "not": {"type": "object"}}
    tool = {"type": "function", "function": {"name": "add", "parameters": unmet}}
    forcing = structs.replace(chat("base", stream=stream, tool_choice="required"), tools=(tool,))
    formed = chat("base", stream=stream, schema=json.dumps(unmet))
    prompted = complete("base", "a", stream=stream, schema=json.dumps(unmet))
    for request, where in ((formed, "response_format"), (prompted, "response_format"), (forcing, "tools")):
        with pytest.raises(Refusal, match="The JSON schema cannot be followed") as refused:
            await talk(answerer, request)
        assert (refused.value.status, refused.value.where) == (400, where)
