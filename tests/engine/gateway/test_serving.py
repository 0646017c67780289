"""Answers to clients: what is said, streamed, counted and refused, at which versions, and how often."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from msgspec import structs

from marlaas.engine.errors import AdapterError, WorkerDied
from marlaas.engine.gateway.serving.answering import AT_ONCE, SHORT, of_prompt
from marlaas.engine.gateway.serving.clients import Held, Limits, LoadedVersions, Named, Serving, reference
from marlaas.engine.home.paths import TINY_BASE
from marlaas.engine.machine.lone_sampler import write_bare
from marlaas.engine.models.find import load_base
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.samplers.protocol import OnTokens, SampleRequest, SampleResult
from marlaas.engine.samplers.torch.sampler import TorchSampler
from marlaas.engine.store.rows import HOURS, IDLE, YIELDED, Yielding
from marlaas.engine.wire import Answerer, Chat, Complete, Message, Model, Refusal, Token, Wishes
from marlaas.plugins.messages import Message as Said
from tools.random_base.make import make_base

from ...examples import examples
from ..rollout.fake import FakeSampler
from .clientele import CONTEXT, VOCABULARY, Clientele, chat, client, complete, talk

TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}


class Scripted(FakeSampler):
    """Says the given text, one id after the other, and keeps its requests."""

    def __init__(self, clientele: Clientele, text: str = "", end: bool = True) -> None:
        super().__init__(vocabulary=VOCABULARY, sequences=8, context=CONTEXT)
        vocabulary = clientele.renderer.vocabulary
        self.script = [*vocabulary.encode(text), *(clientele.renderer.stop_ids[:1] if end else ())]
        self.requests: list[SampleRequest] = []

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        self.requests.append(request)
        return await super().generate(request, stream_to=stream_to)

    def _logits(self, digest: str, tokens: Any) -> Any:
        place = len(tokens) - len(self.requests[-1].tokens)
        logits = np.zeros(self.vocabulary, np.float32)
        logits[self.script[min(place, len(self.script) - 1)]] = 1000.0
        return logits


def lab(clientele: Clientele, *samplers: Any, **more: Any) -> Answerer:
    return clientele.serving(*samplers, **more)[0].answerer(client("lab"))


async def test_a_conversation_goes_on(clientele: Clientele) -> None:
    sampler = Scripted(clientele, "The sum is 42.")
    answered, pieces = await talk(lab(clientele, sampler), chat("1@best", max_tokens=100))
    (choice,) = answered.choices
    assert (choice.text, choice.finish, choice.choice) == ("The sum is 42.", "stop", 0)
    assert answered.model == "1@2" and not pieces
    prompt = clientele.renderer.open([Said("user", "17 + 25 = ?")])
    (request,) = sampler.requests
    assert request.tokens.tolist() == prompt and request.temperature == 1.0
    assert (answered.prompt_tokens, answered.completion_tokens) == (len(prompt), len(sampler.script))
    assert not sampler.conversations, "nothing is left at the sampler"


@pytest.mark.parametrize("stop", [(), ("is",), ("42", "sum")])
async def test_a_stream_is_what_is_said_without_one(clientele: Clientele, stop: tuple[str, ...]) -> None:
    sampler = Scripted(clientele, "The sum is 42, naïvely 名.")
    answerer = lab(clientele, sampler)
    whole, none = await talk(answerer, chat("1", max_tokens=100, stop=stop))
    streamed, pieces = await talk(answerer, chat("1", max_tokens=100, stop=stop, stream=True))
    assert streamed == whole and not none
    assert len(pieces) > 3 and whole.choices[0].text.startswith("".join(piece.text for piece in pieces))
    assert whole.choices[0].finish == "stop"


async def test_a_text_ends_the_reply_and_the_turn(clientele: Clientele) -> None:
    sampler = Scripted(clientele, "one two three four", end=False)
    answered, _ = await talk(lab(clientele, sampler), chat("base", max_tokens=400, stop=("two",)))
    (said,) = answered.choices
    assert (said.text, said.finish, said.stopped) == ("one ", "stop", "two")
    assert answered.completion_tokens == len(clientele.renderer.vocabulary.encode("one two"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not sampler.running and sampler.sampled < 100, "the sampler does not go on for nobody"


async def test_all_that_fits_is_said_where_no_one_says_how_much(clientele: Clientele) -> None:
    sampler = Scripted(clientele, "a", end=False)
    answered, _ = await talk(lab(clientele, sampler), chat("base", max_tokens=None))
    assert answered.prompt_tokens + answered.completion_tokens == CONTEXT
    assert answered.choices[0].finish == "length"
    answered, _ = await talk(lab(clientele, sampler), chat("base", max_tokens=0))
    assert answered.choices[0].text == "" and answered.completion_tokens == 0


async def test_a_request_of_many_choices_does_not_begin_all_at_once(clientele: Clientele) -> None:
    sampler = FakeSampler(vocabulary=VOCABULARY, sequences=200, context=CONTEXT)
    request = complete("1", *["a"] * 20, n=5, max_tokens=3)
    answered, _ = await talk(lab(clientele, sampler, sequences=200), request)
    assert [choice.choice for choice in answered.choices] == list(range(100)) and sampler.most == AT_ONCE


async def test_tools_are_offered_and_called(clientele: Clientele) -> None:
    sampler = Scripted(clientele, 'Let me see. <tool_call>{"name": "add", "arguments": {"a": 17}}</tool_call>')
    answerer = lab(clientele, sampler)

    def request(choice: str = "", stream: bool = False) -> Chat:
        wishes = Wishes(tool_choice=choice)
        return Chat((Message("user", "17 + 25 = ?"),), (TOOL,), id=1, key="k", model="1", wishes=wishes, stream=stream)

    answered, pieces = await talk(answerer, request(stream=True))
    (choice,) = answered.choices
    (call,) = choice.tool_calls
    assert (choice.text, choice.finish, call.name, call.arguments) == ("Let me see.", "tool", "add", '{"a": 17}')
    assert "Let me see.".startswith("".join(piece.text for piece in pieces))
    assert "Adds." in clientele.renderer.vocabulary.decode(sampler.requests[-1].tokens.tolist())
    answered, _ = await talk(answerer, request("none"))
    assert "<tool_call>" in answered.choices[0].text and not answered.choices[0].tool_calls
    assert "Adds." not in clientele.renderer.vocabulary.decode(sampler.requests[-1].tokens.tolist())
    history = (
        Message("user", "17 + 25 = ?"),
        Message("assistant", "Let me see.", tool_calls=(call,)),
        Message("tool", "42", tool_call_id=call.id),
    )
    await talk(answerer, Chat(history, (TOOL,), id=1, key="k", model="1"))
    rendered = clientele.renderer.vocabulary.decode(sampler.requests[-1].tokens.tolist())
    assert '<tool_call>{"name": "add", "arguments": {"a": 17}}</tool_call>' in rendered and "42" in rendered


async def test_prompts_in_a_batch(clientele: Clientele) -> None:
    answerer = lab(clientele)
    ids = tuple(clientele.renderer.vocabulary.encode("two"))
    answered, pieces = await talk(answerer, complete("1", "one", ids, n=2, seed=3, stream=True))
    assert [choice.choice for choice in answered.choices] == [0, 1, 2, 3]
    assert answered.prompt_tokens == len(clientele.renderer.vocabulary.encode("one")) + len(ids)
    echoed, _ = await talk(answerer, complete("1", "one", ids, n=2, seed=3, echo=True))
    prompts = ["one", "one", "two", "two"]
    assert [choice.text for choice in echoed.choices] == [
        prompt + choice.text for prompt, choice in zip(prompts, answered.choices, strict=True)
    ]
    for choice in answered.choices:
        assert choice.text.startswith("".join(piece.text for piece in pieces if piece.choice == choice.choice))
    alone, _ = await talk(answerer, complete("1", "one", seed=3))
    assert alone.choices[0].text == answered.choices[0].text
    assert (await talk(answerer, complete("1", "one", max_tokens=0, echo=True)))[0].choices[0].text == "one"


@pytest.mark.parametrize(
    ("request_", "code", "where"),
    [
        (complete("1", (0,) * CONTEXT), "context_length_exceeded", "prompt"),
        (complete("1", "x" * 100_000), "context_length_exceeded", "prompt"),
        (chat("1", "x" * 100_000), "context_length_exceeded", "messages"),
        (chat("1", "x" * CONTEXT), "context_length_exceeded", "messages"),
        (complete("1", ""), "invalid_request", "prompt"),
        (complete("1", ()), "invalid_request", "prompt"),
        (complete("1", (-1,)), "invalid_request", "prompt"),
        (complete("1", (2**40,)), "invalid_request", "prompt"),
        (complete("1", (2**31 - 1,)), "invalid_request", "prompt"),
        (chat("1", tool_choice="required"), "invalid_request", "tool_choice"),
    ],
)
async def test_what_cannot_be_answered(clientele: Clientele, request_: Chat | Complete, code: str, where: str) -> None:
    sampler = FakeSampler(vocabulary=VOCABULARY, sequences=8, context=CONTEXT)
    with pytest.raises(Refusal) as refused:
        await talk(lab(clientele, sampler), request_)
    assert (refused.value.status, refused.value.code, refused.value.where) == (400, code, where)
    assert not sampler.conversations


async def test_who_has_gone_costs_nothing_more(clientele: Clientele) -> None:
    sampler = FakeSampler(vocabulary=VOCABULARY, sequences=2, context=CONTEXT)
    serving, crew = clientele.serving(sampler, sequences=2)
    asked = asyncio.ensure_future(talk(serving.answerer(client("lab")), chat("1", n=6, max_tokens=None)))
    while not sampler.running:
        await asyncio.sleep(0)
    assert serving.busy
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    for _ in range(50):
        await asyncio.sleep(0)
    assert not sampler.running and not sampler.conversations and not serving.busy
    (endpoint,) = crew.machine.endpoints.values() if crew.machine else ()
    assert (endpoint.slots.active, endpoint.slots.waiting) == (0, 0)


async def test_a_key_has_so_many_requests_at_once(clientele: Clientele) -> None:
    serving, _ = clientele.serving()
    serving.limits.most_of_key = 2
    answerer = serving.answerer(client("lab", 5))
    found = await asyncio.gather(*(answerer.answer(chat("1"), print) for _ in range(4)), return_exceptions=True)
    refused = [one for one in found if isinstance(one, Refusal)]
    assert len(refused) == 2 and {(one.status, one.retry_after) for one in refused} == {(429, 1.0)}
    serving.limits.most = 0
    with pytest.raises(Refusal, match="as many as it can"):
        await answerer.answer(chat("1"), print)
    serving.limits.most = 1
    await serving.answerer(client("lab", 6)).answer(chat("1"), print)


async def test_models_know_their_context(clientele: Clientele) -> None:
    serving, crew = clientele.serving()
    answerer = serving.answerer(client("club"))
    assert [(model.id, model.context) for model in await answerer.models("k")] == [("tiny", 512), ("3@newest", 512)]
    crew.leave()
    assert (await answerer.models("k"))[0] == Model("tiny", owner="marlaas")


class Dying(FakeSampler):
    """Dies in the middle of a turn."""

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        raise WorkerDied("It died.")


async def test_workers_that_die_or_start_or_yield(clientele: Clientele) -> None:
    serving, crew = clientele.serving(Dying(vocabulary=VOCABULARY))
    serving.patience = 0.01
    answerer = serving.answerer(client("lab"))

    async def refused(code: str) -> Refusal:
        with pytest.raises(Refusal) as refusal:
            await answerer.answer(chat("1"), print)
        assert (refusal.value.status, refusal.value.code) == (503, code) and refusal.value.retry_after
        return refusal.value

    await refused("workers_lost")
    crew.leave()
    await refused("engine_starting")
    crew.yielding = Yielding(YIELDED)
    await refused("engine_yields")
    crew.yielding = Yielding(HOURS, until=0.0)
    assert (await refused("engine_yields")).retry_after == 1.0
    crew.yielding = Yielding(IDLE)
    crew.come(clientele.machine())
    answered, _ = await talk(answerer, chat("1"))
    assert crew.woken == 1 and answered.completion_tokens


MODELS = st.sampled_from(
    ("1", "1@2", "1@best", "2/player", "2/judge@0", "3", "3@0", "3@newest", "sums", "secret-sums", "base", "tiny:3@1")
)


@given(st.lists(st.tuples(st.sampled_from(("lab", "club", "nobody")), MODELS, st.booleans()), min_size=1, max_size=8))
@settings(max_examples=examples(15))
def test_no_key_ever_speaks_as_another_tenants_version(
    clientele: Clientele, asked: list[tuple[str, str, bool]]
) -> None:
    """At a sampler that holds few versions: what a tenant hears was said by its own, or by the base."""

    async def run() -> None:
        sampler = FakeSampler(vocabulary=VOCABULARY, sequences=2, context=CONTEXT)
        serving, _ = clientele.serving(sampler, sequences=2)
        serving.loaded.most = 3
        answerers = {tenant: serving.answerer(client(tenant)) for tenant, _, _ in asked}

        async def ask(number: int, tenant: str, model: str, streams: bool) -> None:
            own = {reference(row): row.checksum for row in clientele.store.served.versions(tenant)}
            try:
                answered, _ = await talk(answerers[tenant], chat(model, f"{number}", streams))
            except Refusal as refusal:
                assert refusal.status == 503 or (refusal.status == 404 and model != "base")
                return
            assert answered.model in {"tiny", *own}
            prompt = clientele.renderer.open([Said("user", f"{number}")])
            (spoke,) = {entry.checksum for entry in heard if entry.start == len(prompt)} or {""}
            assert spoke == own.get(answered.model, base)

        heard = sampler.ledger
        base = await asyncio.to_thread(write_bare, clientele.base, clientele.home.scratch / "bare.safetensors")
        for number, (tenant, model, streams) in enumerate(asked):
            heard.clear()
            await ask(number, tenant, model, streams)

    asyncio.run(run())


async def test_a_version_whose_file_is_gone(own: Clientele) -> None:
    Path(own.version("lab", "1@1").path).unlink()
    with pytest.raises(Refusal) as refused:
        await talk(lab(own), chat("1@1"))
    assert (refused.value.status, refused.value.where) == (404, "model")


def named(clientele: Clientele, name: str) -> Named:
    return Named(name, clientele.version("lab", name))


def live(sampler: FakeSampler) -> set[str]:
    """What a sampler serves, as it is named for people."""
    return {
        name.partition("/")[2].rpartition("-")[0] for name, version in sampler.versions.items() if not version.retired
    }


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def use(loaded: LoadedVersions, machine: Any, version: Named) -> Held:
    async with loaded.lent(machine, version) as lent:
        return lent


async def test_a_version_is_loaded_once_at_every_sampler(clientele: Clientele) -> None:
    first, second = FakeSampler(), FakeSampler()
    machine, loaded = clientele.machine(first, second), LoadedVersions(clientele.store.served)
    version = clientele.version("lab", "1@2").id
    assert not clientele.store.served.holds(version)
    async with (
        loaded.lent(machine, named(clientele, "1@2")) as lent,
        loaded.lent(machine, named(clientele, "1@2")) as again,
    ):
        assert lent.name == again.name and lent.replicas is again.replicas
        checksum = clientele.version("lab", "1@2").checksum
        for sampler in (first, second):
            assert {name: version.checksum for name, version in sampler.versions.items()} == {lent.name: checksum}
        assert checksum in lent.name, "the name stands for these bytes alone"
        assert clientele.store.served.holds(version), "its file stays"
    assert not clientele.store.served.holds(version)
    assert live(first) == {"1@2"}, "it stays for who comes next"


async def test_where_a_sampler_has_a_successor_it_is_loaded_there(clientele: Clientele) -> None:
    first, second, successor = FakeSampler(), FakeSampler(), FakeSampler()
    machine, loaded = clientele.machine(first, second), LoadedVersions(clientele.store.served)
    endpoints, version = dict(machine.endpoints), named(clientele, "1@2")
    machine.endpoints, (dead, other) = endpoints, endpoints.values()
    await use(loaded, machine, version)
    dead.lost = True
    assert (await use(loaded, machine, version)).replicas.endpoints == (other,)
    endpoints[dead.name] = replace(dead, sampler=successor, lost=False)
    assert len((await use(loaded, machine, version)).replicas.endpoints) == 2 and live(successor) == {"1@2"}
    for endpoint in endpoints.values():
        endpoint.lost = True
    with pytest.raises(WorkerDied):
        await use(loaded, machine, version)


async def test_the_least_recently_used_leaves(clientele: Clientele) -> None:
    sampler = FakeSampler()
    machine, loaded = clientele.machine(sampler), LoadedVersions(clientele.store.served, most=2)
    for name in ("1@0", "1@1", "1@0", "1@2", "1@0", "1@1"):
        await use(loaded, machine, named(clientele, name))
    await settle()
    assert live(sampler) == {"1@0", "1@1"}


class Lost(FakeSampler):
    """Cannot load."""

    async def load(self, version: str, path: str) -> str:
        raise AdapterError("No.")


class Other(FakeSampler):
    """Loads other bytes than it was told to."""

    async def load(self, version: str, path: str) -> str:
        return "0" + await super().load(version, path)


@pytest.mark.parametrize("kind", [Lost, Other])
async def test_what_cannot_be_loaded_is_forgotten(clientele: Clientele, kind: type[FakeSampler]) -> None:
    sound = FakeSampler()
    machine, loaded = clientele.machine(sound, kind()), LoadedVersions(clientele.store.served)
    for _ in range(2):
        with pytest.raises(AdapterError):
            await use(loaded, machine, named(clientele, "1@0"))
        await settle()
        assert not loaded.names and not live(sound)


async def test_a_load_goes_on_without_its_client(clientele: Clientele) -> None:
    sampler, begun, go_on, loads = FakeSampler(), asyncio.Event(), asyncio.Event(), list[str]()
    load = sampler.load

    async def slowly(version: str, path: str) -> str:
        loads.append(version)
        begun.set()
        await go_on.wait()
        return await load(version, path)

    sampler.load = slowly  # type: ignore[method-assign]
    machine, loaded = clientele.machine(sampler), LoadedVersions(clientele.store.served, most=1)

    first, second = named(clientele, "1@0"), named(clientele, "1@1")
    gone = asyncio.ensure_future(use(loaded, machine, first))
    await begun.wait()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    others = [asyncio.ensure_future(use(loaded, machine, first)) for _ in range(2)]
    await settle()
    go_on.set()
    await asyncio.gather(*others)
    assert len(loads) == 1
    for version in (second, first):
        await use(loaded, machine, version)
    assert len(loads) == 3 and live(sampler) == {"1@0"}


async def test_the_base_is_written_by_one_at_a_time(clientele: Clientele) -> None:
    """Also if the client for whom it is written leaves: the thread goes on."""
    begun, go_on, writing = threading.Event(), threading.Event(), list[Path]()
    machine, loaded = clientele.machine(FakeSampler()), LoadedVersions(clientele.store.served)
    write = machine.write_bare

    def slowly(path: Path) -> str:
        assert not writing
        writing.append(path)
        begun.set()
        assert go_on.wait(30)
        written = write(path)
        writing.clear()
        return str(written)

    machine.write_bare = slowly

    gone = asyncio.ensure_future(use(loaded, machine, Named("tiny")))
    await asyncio.to_thread(begun.wait)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    other = asyncio.ensure_future(use(loaded, machine, Named("tiny")))
    await settle()
    go_on.set()
    await other


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
    prompt = clientele.renderer.open([Said("user", "17 + 25 = ?")])
    context = np.array([*prompt, *(token.id for token in choice.tokens)], np.int32)
    (name,) = serving.loaded.names
    scored = await sampler.score(name, context, len(prompt), 0.7)
    np.testing.assert_allclose(logprobs(choice.tokens), scored, atol=TOLERANCE)
    for token in choice.tokens:
        near = [value for _, _, value in token.likeliest]
        assert len(near) == 3 and near == sorted(near, reverse=True) and near[0] >= (token.logprob or 0) - TOLERANCE
        assert all(text == clientele.renderer.vocabulary.decode([id_]) for id_, text, _ in token.likeliest)


@pytest.mark.parametrize("most", [0, 5])
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


async def test_a_call_can_be_forced(answerer: Answerer) -> None:
    pytest.importorskip("llguidance")
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


async def test_a_forced_call_that_is_cut_off_is_a_call(answerer: Answerer) -> None:
    """Its arguments end in the middle, as from OpenAI; beside a form of the answer the call wins."""
    pytest.importorskip("llguidance")
    word: dict[str, object] = {"type": "object", "properties": {"a": {"const": "x" * 500}}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "add", "parameters": {**word, "additionalProperties": False}}}
    asking = chat("base", tool_choice="required", max_tokens=60, schema='{"type": "array"}')
    answered, _ = await talk(answerer, structs.replace(asking, tools=(tool,)))
    (choice,) = answered.choices
    (call,) = choice.tool_calls
    assert (call.name, choice.text, choice.finish) == ("add", "", "length")
    assert "xxx" in call.arguments and '"}' not in call.arguments
    assert answered.notes == ("the form of the answer: a call is forced",)


async def test_what_does_not_hold_is_noted(clientele: Clientele, monkeypatch: pytest.MonkeyPatch) -> None:
    answered, _ = await talk(lab(clientele, Scripted(clientele, "a")), chat("1", thinking=True, max_tokens=9))
    assert answered.notes == ("thinking: the base model's chat template has no such switch",)
    monkeypatch.setattr(clientele.renderer, "shows_tools", False)
    request = structs.replace(chat("1", max_tokens=9), tools=(TOOL,))
    answered, _ = await talk(lab(clientele, sampler := Scripted(clientele, "a")), request)
    assert answered.notes == ("tools: the base model's chat template shows the model none",)
    assert "Adds." not in clientele.renderer.vocabulary.decode(sampler.requests[-1].tokens.tolist())


async def test_tokens_are_counted_without_an_answer(clientele: Clientele) -> None:
    sampler = Scripted(clientele, "a")
    counted, _ = await talk(lab(clientele, sampler), chat("1", max_tokens=0))
    assert not sampler.requests
    answered, pieces = await talk(lab(clientele, sampler), chat("1", max_tokens=9, stream=True))
    assert counted.prompt_tokens == answered.prompt_tokens == pieces[0].prompt_tokens > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_schema_that_cannot_be_followed_is_named(answerer: Answerer, stream: bool) -> None:
    pytest.importorskip("llguidance")
    unmet: dict[str, object] = {"type": "object", "not": {"type": "object"}}
    tool = {"type": "function", "function": {"name": "add", "parameters": unmet}}
    forcing = structs.replace(chat("base", stream=stream, tool_choice="required"), tools=(tool,))
    formed = chat("base", stream=stream, schema=json.dumps(unmet))
    prompted = complete("base", "a", stream=stream, schema=json.dumps(unmet))
    for request, where in ((formed, "response_format"), (prompted, "response_format"), (forcing, "tools")):
        with pytest.raises(Refusal, match="The JSON schema cannot be followed") as refused:
            await talk(answerer, request)
        assert (refused.value.status, refused.value.where) == (400, where)


ROOM = 100_000


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    """One whose tokenizer puts a token before every text."""
    return Renderer(make_base(tmp_path_factory.mktemp("llama"), "llama3", rows=1500).path)


@pytest.mark.parametrize("text", ["17 + 25 = ?", "x" * (SHORT + 1)])
async def test_a_text_begins_as_the_tokenizer_begins_it(llama: Renderer, text: str) -> None:
    (begin,) = llama.vocabulary.beginning
    plain = llama.vocabulary.encode(text)
    assert (await of_prompt(llama, text, ROOM)).tolist() == [begin, *plain]
    named = llama.vocabulary.decode([begin])
    assert (await of_prompt(llama, named + text, ROOM)).tolist() == [begin, *plain], "who has written it knows it"
    assert (await of_prompt(llama, plain, ROOM)).tolist() == plain
    assert (await of_prompt(llama, "", ROOM)).tolist() == [begin]


class Rates:
    """Requests that end at once, on a clock that a test moves."""

    def __init__(self, clientele: Clientele, per_minute: int) -> None:
        self.now = 1000.0
        self._limits = Limits(clientele.store, per_minute, clock=lambda: self.now)

    def wait(self, key: int) -> float:
        """Seconds until the next one may; 0: this one gets through."""
        try:
            with self._limits.admitted(key, "lab"):
                return 0.0
        except Refusal as refusal:
            assert (refusal.status, refusal.code) == (429, "rate_limit") and refusal.retry_after
            return refusal.retry_after


def test_a_minutes_worth_at_once_and_then_one_after_the_other(clientele: Clientele) -> None:
    rates = Rates(clientele, 6)
    assert [rates.wait(1) for _ in range(6)] == [0.0] * 6
    assert [rates.wait(1) for _ in range(2)] == pytest.approx([10, 10]), "one that is refused costs nothing"
    assert not rates.wait(2), "another key has its own"
    rates.now += 10
    assert not rates.wait(1) and rates.wait(1) == pytest.approx(10)
    rates.now += 1000
    assert [rates.wait(1) for _ in range(7)][:6] == [0.0] * 6
