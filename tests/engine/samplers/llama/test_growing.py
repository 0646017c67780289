"""Memory for conversations grows while others speak, and changes none of what they say."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.models.find import BaseModel
from marlaas.engine.models.memory import Wanted, key_value_bytes, needs
from marlaas.engine.models.weights import parameters
from marlaas.engine.samplers.llama.context import LlamaContext
from marlaas.engine.samplers.llama.model import LlamaSampler

from ...rollout.contract.asking import State, alone, request

pytestmark = pytest.mark.torch


@pytest.fixture(params=["f32", "f16"])
def samplers(base: BaseModel, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[LlamaSampler]]:
    """One that has all of its memory from the start, and one that begins with two conversations of 256 tokens."""
    made = [
        LlamaSampler(str(base.path), str(tmp_path), 24, 2048, exact=True, weights=request.param, first=first)
        for first in (24, 2)
    ]
    yield made
    for sampler in made:
        asyncio.run(sampler.close())


def room(sampler: LlamaSampler) -> tuple[int, int]:
    """Sequences and tokens of each that there is memory for."""
    context = sampler._context
    assert isinstance(context, LlamaContext)
    return context._room, context._reach


async def test_a_second_task_with_longer_episodes_changes_no_bit(samplers: list[LlamaSampler], state: State) -> None:
    """A deterministic conversation of many turns speaks while a second task asks for more and longer ones."""
    said = []
    for sampler in samplers:
        for version in range(2):
            await sampler.load(f"v{version}", str(state(version)))
        tokens = [5, 6, 7]
        others = []
        for turn in range(4):
            own = request("own", tokens, max_tokens=40, seed=turn)
            first = asyncio.ensure_future(sampler.generate(own))
            if turn in (1, 2):
                long = [
                    request(f"{turn} {n}", [n + 2] * (300 * turn), max_tokens=60, version="v1", seed=n)
                    for n in range(8)
                ]
                others += [asyncio.ensure_future(alone(sampler, each)) for each in long]
            result = await first
            said.append((result.tokens.tolist(), result.logprobs.tobytes()))
            tokens = [*tokens, *result.tokens.tolist(), 9]
        said += [(end.tokens.tolist(), end.logprobs.tobytes()) for end in await asyncio.gather(*others)]
    assert said[: len(said) // 2] == said[len(said) // 2 :]
    (_, most), (count, reach) = map(room, samplers)
    assert most == reach == 768 and 8 <= count <= 26


async def test_no_memory_is_taken_that_nobody_asks_for(samplers: list[LlamaSampler], state: State) -> None:
    sampler = samplers[1]
    await sampler.load("v0", str(state(0)))
    assert room(sampler) == (4, 256)
    await asyncio.gather(*(alone(sampler, request(f"{n}", [3, n + 1], max_tokens=20, seed=n)) for n in range(2)))
    assert room(sampler) == (4, 256)
    await asyncio.gather(*(alone(sampler, request(f"{n}", [3, n + 1], max_tokens=20, seed=n)) for n in range(9)))
    assert 11 <= room(sampler)[0] <= 14 and room(sampler)[1] == 256
    score = await sampler.score("v0", np.arange(1, 400, dtype=np.int32) % 40, 2, 1.0)
    assert len(score) == 397 and room(sampler)[1] == 512
    limits = await sampler.limits()
    assert (limits.sequences, limits.context) == (24, 2048)


async def test_a_small_base_serves_more_at_once(base: BaseModel, tmp_path: Path, state: State) -> None:
    """Its weights stay in the processor's cache, so that calls of more rows are still faster."""
    sampler = LlamaSampler(str(base.path), str(tmp_path), 200, 256, exact=True, first=2)
    await sampler.load("v0", str(state(0)))
    await asyncio.gather(*(alone(sampler, request(f"{n}", [3, n % 40], max_tokens=60, seed=n)) for n in range(140)))
    assert 120 <= room(sampler)[0] < 200
    await sampler.close()


async def test_waiting_conversations_hold_up_nobody(samplers: list[LlamaSampler], state: State) -> None:
    sampler = samplers[1]
    await sampler.load("v0", str(state(0)))
    for n in range(24):  # none is released, as where environments are slow
        await sampler.generate(request(f"{n}", [3, n + 1], max_tokens=4, seed=n))
    assert room(sampler)[0] == 26


async def test_short_memory_makes_turns_wait_rather_than_fail(
    samplers: list[LlamaSampler], state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marlaas.engine.samplers.llama.context.available_memory", lambda: 1)
    sampler = samplers[1]
    await sampler.load("v0", str(state(0)))
    asked = [request(f"{n}", [3, n + 1], max_tokens=20, seed=n) for n in range(20)]
    ends = await asyncio.gather(*(alone(sampler, each) for each in asked))
    assert len(ends) == 20 and room(sampler)[0] < 22
    for n in range(22):  # held by conversations that wait: nothing would continue without more
        await sampler.generate(request(f"kept {n}", [3, n + 1], max_tokens=4, seed=n))
    assert room(sampler)[0] >= 24


def test_two_sequences_are_tried_if_more_do_not_fit(
    samplers: list[LlamaSampler], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, make = samplers[1]._context, LlamaContext._make
    assert isinstance(context, LlamaContext)

    def refused(self: LlamaContext, count: int, reach: int) -> bool:
        if count > 6:
            self._context = None
            return False
        return make(self, count, reach)

    monkeypatch.setattr(LlamaContext, "_make", refused)
    for needed, expected in ((False, 4), (True, 6)):
        context.grow(8, needed)
        assert room(samplers[1]) == (expected, 256)
    with pytest.raises(MemoryError, match="there is none for 8 x 256 tokens"):
        context.grow(8, needed=True)
    assert room(samplers[1]) == (6, 256)


def test_keys_and_values_take_half_where_matrices_are_rounded(base: BaseModel) -> None:
    def held(weights: str, **own: object) -> int:
        wanted = Wanted(base.config, parameters(base), **own)  # type: ignore[arg-type]
        return dict(needs(wanted, weights, 64, 256, 1 << 28, 1))["keys and values of conversations"]

    exact = key_value_bytes(base.config, 66, 256, exact=True)
    assert [held("f32"), held("f16"), held("q8_0")] == [exact, exact // 2, exact // 2]
    assert [held("f32", exact=False), held("f32", gguf_bytes=1)] == [exact // 2] * 2
    assert held("f32", sampler="torch") == exact
