"""Answers to clients: what is said, how it is streamed, counted and paid for, and what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from marlaas.engine.errors import WorkerDied
from marlaas.engine.fairness.line import ROLLOUT
from marlaas.engine.gateway.serving.answering import AT_ONCE
from marlaas.engine.gateway.serving.versions import reference
from marlaas.engine.machine.lone_sampler import write_bare
from marlaas.engine.samplers.protocol import OnTokens, SampleRequest, SampleResult
from marlaas.engine.store.rows import HOURS, IDLE, YIELDED, Yielding
from marlaas.engine.wire import Answerer, Chat, Complete, Message, Model, Refusal, Wishes
from marlaas.plugins.messages import Message as Said

from ....examples import examples
from ...rollout.fake import FakeSampler
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


async def test_several_choices_differ_and_a_seed_repeats_them(clientele: Clientele) -> None:
    answerer = lab(clientele)
    first, pieces = await talk(answerer, chat("1", n=3, seed=4, stream=True))
    again, _ = await talk(answerer, chat("1", n=3, seed=4))
    alone, _ = await talk(answerer, chat("1", seed=4))
    other, _ = await talk(answerer, chat("1", seed=5))
    assert first.choices == again.choices and [choice.choice for choice in first.choices] == [0, 1, 2]
    assert len({choice.text for choice in first.choices}) == 3
    assert alone.choices[0].text == first.choices[0].text != other.choices[0].text
    for choice in first.choices:
        assert choice.text.startswith("".join(piece.text for piece in pieces if piece.choice == choice.choice))
    assert first.prompt_tokens == alone.prompt_tokens


async def test_a_request_of_many_choices_does_not_begin_all_at_once(clientele: Clientele) -> None:
    class Counting(FakeSampler):
        running_now = most = 0

        async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
            self.running_now += 1
            self.most = max(self.most, self.running_now)
            try:
                return await super().generate(request, stream_to=stream_to)
            finally:
                self.running_now -= 1

    sampler = Counting(vocabulary=VOCABULARY, sequences=200, context=CONTEXT)
    request = complete("1", *["a"] * 20, n=5, max_tokens=3)
    answered, _ = await talk(lab(clientele, sampler, sequences=200), request)
    assert [choice.choice for choice in answered.choices] == list(range(100)) and sampler.most == AT_ONCE


async def test_versions_answer_as_themselves(clientele: Clientele) -> None:
    answerer = lab(clientele)
    said = {name: (await talk(answerer, chat(name, seed=1)))[0] for name in ("1@0", "1@1", "2/player@1", "base")}
    assert len({answered.choices[0].text for answered in said.values()}) == 4
    assert [answered.model for answered in said.values()] == ["1@0", "1@1", "2/player@1", "tiny"]


async def test_tools_are_offered_and_called(clientele: Clientele) -> None:
    sampler = Scripted(clientele, 'Let me see. <tool_call>{"name": "add", "arguments": {"a": 17}}</tool_call>')
    answerer = lab(clientele, sampler)

    def request(choice: str = "", stream: bool = False) -> Chat:
        wishes = Wishes(tool_choice=choice)
        return Chat(1, "k", "1", (Message("user", "17 + 25 = ?"),), (TOOL,), wishes, stream)

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
    await talk(answerer, Chat(1, "k", "1", history, (TOOL,)))
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
        (chat("1", thinking=True), "invalid_request", "thinking"),
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


async def test_a_tenant_pays_for_its_clients(own: Clientele) -> None:
    answerer = lab(own)
    answered, _ = await talk(answerer, chat("1"))
    used = {usage.stage: usage for usage in own.ledger.take()}[ROLLOUT]
    assert used.task == own.store.tenants.clients("lab") < 0
    assert used.tokens == answered.completion_tokens, "the fake sampler reads no prompt"
    own.store.tenants.add_use([used])
    assert own.store.tenants.tokens_today() == {"lab": used.tokens}
    own.store.tenants.set("lab", tokens_per_day=used.tokens)
    with pytest.raises(Refusal) as refused:
        await talk(answerer, chat("1"))
    assert (refused.value.status, refused.value.code) == (429, "quota_exceeded")
    await talk(own.serving()[0].answerer(client("club")), chat("3"))


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


async def test_a_key_has_so_many_requests_a_minute(clientele: Clientele) -> None:
    serving, _ = clientele.serving()
    serving.limits.per_minute, serving.limits.clock = 2, lambda: 0.0
    answerer = serving.answerer(client("lab", 5))
    for _ in range(2):
        await answerer.answer(chat("1"), print)
    with pytest.raises(Refusal, match="in a minute") as caught:
        await answerer.answer(chat("1"), print)
    assert (caught.value.status, caught.value.code, caught.value.retry_after) == (429, "rate_limit", 30.0)
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
