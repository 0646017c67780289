"""Samplers: the fake one keeps the contract; blank adapters and replies under a JSON schema on the real ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.adapters.statefile import read_state, write_blank, write_state
from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.rollout.toolcalls import schema_of_call
from marlaas.engine.samplers.batching.sampler import BatchingSampler
from marlaas.engine.samplers.llama.model import LlamaSampler
from marlaas.engine.samplers.options import Wishes
from marlaas.engine.samplers.protocol import Sampler, SampleRequest
from marlaas.engine.samplers.schemas import Schemas
from marlaas.engine.samplers.torch.sampler import TorchSampler
from marlaas.engine.samplers.vocabulary import Vocabulary

from ...seldom import seldom
from .contract.asking import State, alone, extras_of, request, same
from .contract.whole import PositionalContract
from .fake import FakeSampler
from .random_base import write_adapter


@pytest.mark.slow
class TestFakeSampler(PositionalContract):
    @pytest.fixture
    async def sampler(self, state: State) -> Sampler:
        fake = FakeSampler()
        for number in (0, 1):
            await fake.load(f"v{number}", str(state(number)))
        return fake


def made(kind: str, base: str, cache: Path) -> BatchingSampler:
    if kind == "llama.cpp":
        return LlamaSampler(base, str(cache), sequences=8, context=512)
    return TorchSampler(base, sequences=8, context=512, cache=str(cache) if kind == "compiled" else "")


@pytest.mark.parametrize("kind", ["llama.cpp", "torch"])
async def test_a_blank_adapter_says_what_an_untrained_one_says(
    kind: str, base: BaseModel, state: State, tmp_path: Path
) -> None:
    """To the last bit: so the untrained policy can be measured without its file."""
    sampler = made(kind, str(base.path), tmp_path / "cache")
    trained = read_state(state(0))
    fresh = {name: np.zeros_like(a) if name.endswith("lora_B") else a for name, a in trained.adapter.items()}
    write_state(tmp_path / "fresh", replace(trained, adapter=fresh), sync=False)
    files = {"trained": state(0), "fresh": tmp_path / "fresh", "blank": tmp_path / "blank"}
    checksum = write_blank(state(0), files["blank"])
    loaded = {name: await sampler.load(name, str(path)) for name, path in files.items()}
    assert loaded["blank"] == checksum != loaded["fresh"]
    said = {name: await alone(sampler, request(name, version=name, max_tokens=60)) for name in files}
    for part in ("tokens", "logprobs"):
        blank, untrained, other = (getattr(said[name], part).tobytes() for name in ("blank", "fresh", "trained"))
        assert blank == untrained != other
    await sampler.close()


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
def shipped() -> BaseModel:
    return load_base("tiny")


@pytest.fixture(scope="module")
def vocabulary(shipped: BaseModel) -> Vocabulary:
    return Vocabulary(shipped.path / "tokenizer.json")


@pytest.fixture(params=[seldom("torch"), "compiled", "llama.cpp"])
async def shipped_sampler(
    request: pytest.FixtureRequest, shipped: BaseModel, tmp_path: Path
) -> AsyncIterator[BatchingSampler]:
    pytest.importorskip("llguidance")
    sampler = made(request.param, "tiny", tmp_path / "cache")
    await sampler.load("v0", str(write_adapter(tmp_path / "adapter", shipped, 0, scale=0.1)))
    yield sampler
    await sampler.close()


def asked(vocabulary: Vocabulary, name: str, seed: int, stop: tuple[int, ...] = (END,)) -> SampleRequest:
    prompt = np.array(vocabulary.encode("<|user|>Say it.<|end|><|assistant|>"), np.int32)
    return SampleRequest(name, "v0", prompt, 200, 1.0, stop, seed)


async def test_replies_match_and_change_no_others(shipped_sampler: BatchingSampler, vocabulary: Vocabulary) -> None:
    plain = [asked(vocabulary, f"plain {seed}", seed) for seed in range(3)]
    expected = [await alone(shipped_sampler, each) for each in plain]
    held = [asked(vocabulary, f"{seed}", seed).wishing(Wishes(schema=SCHEMA, likeliest=5)) for seed in range(6)]
    results = await asyncio.gather(*(alone(shipped_sampler, each) for each in (*held, *plain)))
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


async def test_control_tokens_in_a_schema_are_written_as_letters(
    shipped_sampler: BatchingSampler, vocabulary: Vocabulary
) -> None:
    for text in ("<|end|>", "a</tool_call>b", "<|user|><tool_call>", "<|pad|"):
        schema = {"properties": {text: {"const": text}}, "required": [text], "additionalProperties": False}
        wishes = Wishes(schema=json.dumps({"type": "object", **schema}))
        result = await alone(shipped_sampler, asked(vocabulary, "a", 3).wishing(wishes))
        assert vocabulary.decode(result.tokens[:-1].tolist()) == json.dumps({text: text})
        assert result.tokens[-1] == END and not {*vocabulary.added.values()} & {*result.tokens[:-1].tolist()}


async def test_the_schema_ends_a_reply_without_a_stop_token(
    shipped_sampler: BatchingSampler, vocabulary: Vocabulary
) -> None:
    result = await alone(shipped_sampler, asked(vocabulary, "a", 3, ()).wishing(Wishes(schema=SCHEMA)))
    assert result.finish == "stop"
    assert set(json.loads(vocabulary.decode(result.tokens.tolist()))) == {"agreed", "colour", "count"}
    any_object = Wishes(schema="{}")
    result = await alone(shipped_sampler, replace(asked(vocabulary, "a", 3), max_tokens=20).wishing(any_object))
    assert vocabulary.decode(result.tokens.tolist()).startswith("{"), "the empty schema is any object"


async def test_a_reply_that_cannot_be_completed_fails_alone(
    shipped_sampler: BatchingSampler, vocabulary: Vocabulary
) -> None:
    """So many fields that may be left out are more than the library follows, which it finds after the first brace."""
    many = json.dumps({"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(2000)}})
    plain = asked(vocabulary, "plain", 1)
    expected = await alone(shipped_sampler, plain)
    failed, result = await asyncio.gather(
        shipped_sampler.generate(asked(vocabulary, "a", 3).wishing(Wishes(schema=many))),
        alone(shipped_sampler, plain),
        return_exceptions=True,
    )
    assert isinstance(failed, ValueError) and str(failed).startswith("The JSON schema cannot be followed: ")
    assert not isinstance(result, BaseException) and same(result, expected)
    assert (await shipped_sampler.stats()).active == 0


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
def test_what_no_grammar_can_be_made_of_is_refused(shipped: BaseModel, wrong: str, reason: str) -> None:
    pytest.importorskip("llguidance")
    with pytest.raises(ValueError, match=f"^The JSON schema .*{reason}.*\\.$"):
        Schemas(shipped.path, shipped.config.vocab_size).grammar(wrong, (END,))


def test_a_forced_call_follows_references_of_its_tool(shipped: BaseModel) -> None:
    """As those of libraries that describe nested types, which count from the tool's own schema."""
    pytest.importorskip("llguidance")
    point = {"type": "object", "properties": {"x": {"type": "integer"}}}
    nested = {"type": "object", "properties": {"at": {"$ref": "#/$defs/Point"}}, "$defs": {"Point": point}}
    tools = [{"type": "function", "function": {"name": name, "parameters": nested}} for name in ("go", "look")]
    Schemas(shipped.path, shipped.config.vocab_size).grammar(schema_of_call("required", tools), (END,))
