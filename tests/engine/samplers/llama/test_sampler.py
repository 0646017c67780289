"""llama.cpp keeps the sampler contract; and what is particular to it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.errors import AdapterError, BaseModelError, CallFailed
from marlaas.engine.models.find import BaseModel
from marlaas.engine.samplers.batching import context as batching_context
from marlaas.engine.samplers.batching.context import DecodeFailed
from marlaas.engine.samplers.llama.context import LlamaContext
from marlaas.engine.samplers.llama.model import LlamaSampler
from marlaas.engine.samplers.protocol import Sampler

from ....seldom import often
from ...rollout.contract.asking import LONG, State, alike, alone, request, same, until_sampled
from ...rollout.contract.repeatable import RepeatableContract
from ...rollout.contract.whole import PositionalContract
from ...rollout.random_base import write_adapter, write_base


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Files that llama.cpp reads the base from, each written once."""
    return str(tmp_path_factory.mktemp("cache"))


KINDS = ["fast", "exact, one by one", "large", "large, quantised", "large, one by one", "quantised"]
"""Of passes, besides the usual one, which is exact."""


@pytest.fixture
async def llama(
    kind: str, base: BaseModel, state: State, cache: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Sampler]:
    if "large" in kind:
        monkeypatch.setattr(batching_context, "CACHE", 0)
    weights, mixes = "q8_0" if "quantised" in kind else "f32", "one by one" not in kind
    llama = LlamaSampler(
        str(base.path), cache, sequences=64, context=2048, exact="exact" in kind, weights=weights, mixes=mixes
    )
    for number in (0, 1):
        await llama.load(f"v{number}", str(state(number)))
    yield llama
    await llama.close()


@pytest.mark.parametrize("kind", often(["exact"], ["exact", *KINDS]))
class TestLlamaSampler(PositionalContract):
    """The other kinds keep all of it in ``make test-slow``; two of them, between which each trait is met, keep
    the part that depends on the kind every day."""

    @pytest.fixture
    async def sampler(self, llama: Sampler) -> Sampler:
        return llama


@pytest.mark.parametrize("kind", often(["fast", "large, one by one"], KINDS))
class TestOtherKinds(RepeatableContract):
    @pytest.fixture
    async def sampler(self, llama: Sampler) -> Sampler:
        return llama


@pytest.fixture
async def sampler(base: BaseModel, state: State, cache: str) -> AsyncIterator[LlamaSampler]:
    llama = LlamaSampler(str(base.path), cache, sequences=16, context=2048)
    await llama.load("v0", str(state(0)))
    yield llama
    await llama.close()


async def test_limits_are_what_was_allocated(sampler: LlamaSampler, base: BaseModel, tmp_path: Path) -> None:
    limits = await sampler.limits()
    assert (limits.sequences, limits.context) == (16, 2048)
    crowded = LlamaSampler(str(base.path), str(tmp_path / "cache"), sequences=1000, context=100)
    assert (await crowded.limits()).sequences == 254 and (await crowded.limits()).context == 100
    await crowded.close()


async def test_a_group_computes_its_prompt_once(sampler: LlamaSampler) -> None:
    prompt = list(range(1, 31))
    turns = [sampler.generate(request(f"{n}", prompt, seed=n, max_tokens=2)) for n in range(8)]
    results = await asyncio.gather(*turns)
    assert sorted(result.prefilled for result in results) == [0] * 7 + [30]
    stats = await sampler.stats()
    assert (stats.prefilled_tokens, stats.sampled_tokens) == (30, 16)
    assert (stats.active, stats.waiting) == (0, 0) and stats.busy_seconds > 0


async def test_a_member_who_comes_late_copies_the_prompt(sampler: LlamaSampler) -> None:
    prompt = list(range(1, 31))
    expected = await alone(sampler, request("alone", prompt, seed=5))
    computed = (await sampler.stats()).prefilled_tokens
    await sampler.generate(request("first", prompt, seed=1, max_tokens=9))
    assert same(await sampler.generate(request("second", prompt, seed=5)), expected)
    await sampler.release("first")
    assert same(await sampler.generate(request("third", prompt, seed=5)), expected)
    assert (await sampler.stats()).prefilled_tokens == computed + 30
    for name in ("second", "third"):
        await sampler.release(name)
    assert same(await sampler.generate(request("fourth", prompt, seed=5)), expected)
    assert (await sampler.stats()).prefilled_tokens == computed + 60


@pytest.mark.parametrize(("exact", "tolerance"), [(True, 2e-4), (False, 5e-2)])
async def test_a_found_beginning_says_the_same_but_for_rounding(
    base: BaseModel, state: State, cache: str, exact: bool, tolerance: float
) -> None:
    """Float32 sums in another order; float16 keeps 11 bits of what attention adds up."""
    llama = LlamaSampler(str(base.path), cache, sequences=16, context=2048, exact=exact)
    await llama.load("v0", str(state(0)))
    system = [1 + n * n % 41 for n in range(700)]
    for n in range(5):
        asked = request(f"{n}", system + [7] * (2 + 30 * n), seed=n, max_tokens=40, alike=False)
        expected = await alone(llama, replace(asked, alike=True))
        found = await alone(llama, asked)
        assert found.prefilled < 300 or n == 0
        assert alike(expected, found, tolerance)
    await llama.close()


async def test_a_prompt_is_not_copied_for_another_version(sampler: LlamaSampler, state: State) -> None:
    await sampler.load("v1", str(state(1)))
    expected = await alone(sampler, request("alone", version="v1"))
    await sampler.generate(request("first"))
    assert same(await sampler.generate(request("second", version="v1")), expected)
    grown = request("first").tokens.tolist() + (await alone(sampler, request("again"))).tokens.tolist()
    await sampler.generate(request("first", grown, version="v1"))  # computed anew: it holds v0's prompt no longer
    await sampler.release("second")
    assert same(await sampler.generate(request("third")), await alone(sampler, request("fourth")))


async def test_later_turns_compute_only_what_is_new(sampler: LlamaSampler) -> None:
    result = await sampler.generate(request("a", [1, 2, 3, 4], max_tokens=10))
    grown = [1, 2, 3, 4, *result.tokens.tolist(), 5, 6]
    await sampler.generate(request("a", grown, max_tokens=1))
    assert (await sampler.stats()).prefilled_tokens == 4 + 3  # the last sampled token had not been computed yet


async def test_a_turn_under_another_version_computes_everything_anew(sampler: LlamaSampler, state: State) -> None:
    await sampler.load("v1", str(state(1)))
    first = await sampler.generate(request("a", max_tokens=6))
    tokens = request("a").tokens.tolist() + first.tokens.tolist() + [9]
    switched = await sampler.generate(request("a", tokens, version="v1"))
    assert same(switched, await alone(sampler, request("b", tokens, version="v1")))


async def test_a_turn_that_was_cut_can_go_on_with_nothing_new(sampler: LlamaSampler) -> None:
    first = await sampler.generate(request("a", max_tokens=3))
    tokens = request("a").tokens.tolist() + first.tokens.tolist()
    assert len((await sampler.generate(request("a", tokens, max_tokens=2))).tokens) == 2


async def test_a_failed_decode_hits_nobody_else(sampler: LlamaSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = await alone(sampler, request("b", max_tokens=100))
    decode = LlamaContext.decode

    def fragile(self: LlamaContext, tokens: Any, *rest: Any) -> Any:
        if len(tokens) == 13:
            raise DecodeFailed("llama.cpp failed to decode.")
        return decode(self, tokens, *rest)

    monkeypatch.setattr(LlamaContext, "decode", fragile)
    running = asyncio.create_task(sampler.generate(request("a", max_tokens=100)))
    await until_sampled(sampler, 2)
    with pytest.raises(CallFailed):
        await sampler.generate(request("bad", [1] * 13))
    assert same(await running, expected)
    assert len((await sampler.generate(request("bad", [1] * 12))).tokens) == 20


async def test_a_failed_step_fails_its_turns_and_the_sampler_goes_on(
    sampler: LlamaSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await alone(sampler, request("a"))

    def broken(*_: Any) -> Any:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr("marlaas.engine.samplers.batching.context.choose", broken)
        with pytest.raises(CallFailed, match="a bug"):
            await sampler.generate(request("a"))
    assert same(await alone(sampler, request("a")), expected)


async def test_memory_of_retired_versions_is_given_back(
    sampler: LlamaSampler, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[int] = []
    free = LlamaContext.free_adapter

    def counted(self: LlamaContext, adapter: int) -> None:
        freed.append(adapter)
        free(self, adapter)

    monkeypatch.setattr(LlamaContext, "free_adapter", counted)
    for number in range(1, 20):
        await sampler.load(f"v{number}", str(state(number % 3)))
        running = asyncio.create_task(sampler.generate(request("a", version=f"v{number}", max_tokens=LONG)))
        await until_sampled(sampler, 2)
        await sampler.retire(f"v{number}")
        assert len(freed) == number - 1
        await sampler.release("a")
        assert (await running).finish == "abort" and len(freed) == number


async def test_an_adapter_of_another_base_is_refused(sampler: LlamaSampler, tmp_path: Path) -> None:
    other = write_base(tmp_path / "other", seed=5)
    with pytest.raises(AdapterError, match="trained on the base"):
        await sampler.load("other", str(write_adapter(tmp_path / "adapter", other, 0)))


async def test_waiting_turns_can_be_released(sampler: LlamaSampler) -> None:
    sampling = [asyncio.create_task(sampler.generate(request(f"{n}", max_tokens=LONG))) for n in range(16)]
    await until_sampled(sampler, 16)
    waiting = asyncio.create_task(sampler.generate(request("late")))
    while (await sampler.stats()).waiting == 0:
        pass
    await sampler.release("late")
    aborted = await waiting
    assert (aborted.finish, len(aborted.tokens)) == ("abort", 0)
    for n in range(16):
        await sampler.release(f"{n}")
    assert {result.finish for result in await asyncio.gather(*sampling)} <= {"abort", "length"}


async def test_closing_fails_what_is_under_way(base: BaseModel, state: State, tmp_path: Path) -> None:
    llama = LlamaSampler(str(base.path), str(tmp_path / "cache"), sequences=2, context=2000)
    await llama.load("v0", str(state(0)))
    running = asyncio.create_task(llama.generate(request("a", max_tokens=1900)))
    await until_sampled(llama, 2)
    await llama.close()
    with pytest.raises(CallFailed, match="closing"):
        await running


async def test_a_missing_base_is_named(tmp_path: Path) -> None:
    with pytest.raises(BaseModelError, match="no base model"):
        LlamaSampler(str(tmp_path / "nowhere"), str(tmp_path / "cache"))
