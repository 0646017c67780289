"""Replies that must match a JSON schema, on both samplers and the shipped base."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.errors import ConfigError
from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.rollout.toolcalls import schema_of_call
from marlaas.engine.samplers.batching.sampler import BatchingSampler
from marlaas.engine.samplers.llama.model import LlamaSampler
from marlaas.engine.samplers.options import Wishes
from marlaas.engine.samplers.protocol import SampleRequest
from marlaas.engine.samplers.schemas import Schemas
from marlaas.engine.samplers.torch.sampler import TorchSampler
from marlaas.engine.samplers.vocabulary import Vocabulary

from .contract.asking import alone, extras_of, same
from .random_base import write_adapter

END = 1
"""The shipped base's token at the end of a turn."""
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "agreed": {"type": "boolean"},
            "colour": {"enum": ["red", "gr\u00fcn"]},
            "count": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["agreed", "colour", "count"],
        "additionalProperties": False,
    }
)


@pytest.fixture(scope="module")
def base() -> BaseModel:
    return load_base("tiny")


@pytest.fixture(scope="module")
def vocabulary(base: BaseModel) -> Vocabulary:
    return Vocabulary(base.path / "tokenizer.json")


@pytest.fixture(params=["torch", "compiled", "llama.cpp"])
async def sampler(request: pytest.FixtureRequest, base: BaseModel, tmp_path: Path) -> AsyncIterator[BatchingSampler]:
    pytest.importorskip("llguidance")
    cache, made = str(tmp_path / "cache"), request.param
    sampler: BatchingSampler
    if made == "llama.cpp":
        sampler = LlamaSampler("tiny", cache, sequences=8, context=512)
    else:
        sampler = TorchSampler("tiny", sequences=8, context=512, cache=cache if made == "compiled" else "")
    await sampler.load("v0", str(write_adapter(tmp_path / "adapter", base, 0, scale=0.1)))
    yield sampler
    await sampler.close()


def asked(vocabulary: Vocabulary, name: str, seed: int, stop: tuple[int, ...] = (END,)) -> SampleRequest:
    prompt = np.array(vocabulary.encode("<|user|>Say it.<|end|><|assistant|>"), np.int32)
    return SampleRequest(name, "v0", prompt, 200, 1.0, stop, seed)


async def test_replies_match_and_change_no_others(sampler: BatchingSampler, vocabulary: Vocabulary) -> None:
    plain = [asked(vocabulary, f"plain {seed}", seed) for seed in range(3)]
    expected = [await alone(sampler, each) for each in plain]
    held = [asked(vocabulary, f"{seed}", seed).wishing(Wishes(schema=SCHEMA, likeliest=5)) for seed in range(6)]
    results = await asyncio.gather(*(alone(sampler, each) for each in (*held, *plain)))
    assert all(map(same, results[len(held) :], expected))
    said = set()
    for result in results[: len(held)]:
        assert result.finish == "stop" and result.tokens[-1] == END
        text = vocabulary.decode(result.tokens[:-1].tolist())
        found = json.loads(text)
        assert set(found) == {"agreed", "colour", "count"} and found["colour"] in ("red", "gr\u00fcn")
        assert isinstance(found["agreed"], bool) and 0 <= found["count"] <= 99
        said.add(text)
        extras = extras_of(result)
        assert (extras.likeliest.logprobs[0, 1:] == -np.inf).all(), "nothing but the brace may come first"
        assert result.logprobs[0] == 0.0
        np.testing.assert_allclose(extras.logprobs, result.logprobs, atol=1e-5)
    assert len(said) > 1


@pytest.mark.parametrize("text", ["<|end|>", "a</tool_call>b", "<|user|><tool_call>", "<|pad|"])
async def test_control_tokens_in_a_schema_are_written_as_letters(
    sampler: BatchingSampler, vocabulary: Vocabulary, text: str
) -> None:
    schema = {
        "type": "object",
        "properties": {text: {"const": text}},
        "required": [text],
        "additionalProperties": False,
    }
    result = await sampler.generate(asked(vocabulary, "a", 3).wishing(Wishes(schema=json.dumps(schema))))
    assert vocabulary.decode(result.tokens[:-1].tolist()) == json.dumps({text: text})
    assert result.tokens[-1] == END and not {*vocabulary.added.values()} & {*result.tokens[:-1].tolist()}


async def test_without_a_stop_token_the_schema_ends_a_reply(sampler: BatchingSampler, vocabulary: Vocabulary) -> None:
    result = await sampler.generate(asked(vocabulary, "a", 3, ()).wishing(Wishes(schema=SCHEMA)))
    assert result.finish == "stop"
    assert set(json.loads(vocabulary.decode(result.tokens.tolist()))) == {"agreed", "colour", "count"}


async def test_the_empty_schema_is_any_object(sampler: BatchingSampler, vocabulary: Vocabulary) -> None:
    result = await sampler.generate(asked(vocabulary, "a", 3).wishing(Wishes(schema="{}")))
    assert vocabulary.decode(result.tokens.tolist()).startswith("{")


async def test_a_reply_that_cannot_be_completed_fails_alone(sampler: BatchingSampler, vocabulary: Vocabulary) -> None:
    """So many fields that may be left out are more than the library follows, which it finds after the first brace."""
    many = json.dumps({"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(2000)}})
    plain = asked(vocabulary, "plain", 1)
    expected = await alone(sampler, plain)
    failed, result = await asyncio.gather(
        sampler.generate(asked(vocabulary, "a", 3).wishing(Wishes(schema=many))),
        alone(sampler, plain),
        return_exceptions=True,
    )
    assert isinstance(failed, ValueError) and str(failed).startswith("The JSON schema cannot be followed: ")
    assert not isinstance(result, BaseException) and same(result, expected)
    assert (await sampler.stats()).active == 0


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("{", "is no JSON"),
        ("[]", "is no JSON object"),
        ('{"type": "no such type"}', "no such type"),
        ('{"$ref": "#/nowhere"}', "/nowhere"),
        ('{"$ref": "#"}', "no answer meets it"),
        ('{"type": "string", "pattern": "(?=a)"}', "look-around"),
        ('{"not": {}, "x-guidance": {"lenient": true}}', 'Unimplemented keys: ."not".'),
        ('{"type": "integer", "multipleOf": 999983}', "10,000 at most"),
        ('{"items":' * 500 + "{}" + "}" * 500, "recursion limit"),
        ('{"items":' * 50_000 + "{}" + "}" * 50_000, "too deep"),
    ],
)
def test_what_no_grammar_can_be_made_of_is_refused(base: BaseModel, wrong: str, reason: str) -> None:
    pytest.importorskip("llguidance")
    with pytest.raises(ValueError, match=f"^The JSON schema .*{reason}.*\\.$"):
        Schemas(base.path, base.config.vocab_size).grammar(wrong, (END,))


def test_a_forced_call_follows_references_of_its_tool(base: BaseModel) -> None:
    """As those of libraries that describe nested types, which count from the tool's own schema."""
    pytest.importorskip("llguidance")
    point = {"type": "object", "properties": {"x": {"type": "integer"}}}
    nested = {"type": "object", "properties": {"at": {"$ref": "#/$defs/Point"}}, "$defs": {"Point": point}}
    tools = [{"type": "function", "function": {"name": name, "parameters": nested}} for name in ("go", "look")]
    Schemas(base.path, base.config.vocab_size).grammar(schema_of_call("required", tools), (END,))


def test_without_the_library_a_sentence_says_how_to_get_it(base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ConfigError, match=r"llguidance, which is not installed.*the extra `api`"):
        Schemas(base.path, base.config.vocab_size).grammar(SCHEMA, (END,))
