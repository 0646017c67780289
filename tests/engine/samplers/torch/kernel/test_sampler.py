"""Compiled passes keep the sampler contract, and agree with those of torch."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.models.find import BaseModel
from marlaas.engine.samplers.batching.context import SPARE
from marlaas.engine.samplers.batching.sampler import BatchingSampler
from marlaas.engine.samplers.protocol import Sampler, SampleResult
from marlaas.engine.samplers.torch.kernel.context import CompiledContext
from marlaas.engine.samplers.torch.kernel.library import Library
from marlaas.engine.samplers.torch.sampler import TorchSampler

from ....rollout.contract.asking import State, alone, request, same
from ....rollout.contract.whole import PositionalContract


def sampler_of(base: BaseModel, library: Library) -> BatchingSampler:
    return BatchingSampler(base, CompiledContext(base, 64 + SPARE, 2048, library), 2048)


@pytest.fixture
async def compiled_sampler(base: BaseModel, state: State, library: Library) -> AsyncIterator[BatchingSampler]:
    sampler = sampler_of(base, library)
    for number in (0, 1):
        await sampler.load(f"v{number}", str(state(number)))
    yield sampler
    await sampler.close()


class TestCompiledSampler(PositionalContract):
    apart = rounding = 1e-4

    @pytest.fixture
    async def sampler(self, compiled_sampler: BatchingSampler) -> Sampler:
        return compiled_sampler


@pytest.mark.parametrize("tokens", [[7], [3, 1, 4], list(range(1, 40))])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
async def test_it_agrees_with_torch(
    compiled_sampler: BatchingSampler, base: BaseModel, state: State, tokens: list[int], temperature: float
) -> None:
    torch = TorchSampler(str(base.path), sequences=2, context=512)
    await torch.load("v0", str(state(0)))
    asked = request("a", tokens, temperature=temperature, max_tokens=90)
    ours, theirs = await compiled_sampler.generate(asked), await torch.generate(asked)
    await torch.close()
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    # sums of float32 in another order
    np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=2e-5)


async def test_bits_do_not_depend_on_the_parts_of_a_conversation(compiled_sampler: BatchingSampler) -> None:
    """More than torch promises: there, what is computed in other parts has other last bits."""

    async def spoken(parts: int) -> SampleResult:
        tokens = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
        for end in range(parts, len(tokens), parts):
            await compiled_sampler.generate(request("a", tokens[:end], max_tokens=1))
            await compiled_sampler.release("a")
        return await alone(compiled_sampler, request("a", tokens))

    assert all([same(await spoken(parts), await spoken(12)) for parts in (1, 2, 5)])


async def test_turns_that_are_not_alike_have_the_same_bits(compiled_sampler: BatchingSampler) -> None:
    asked = [request(f"{n}", version=f"v{n % 2}", seed=n, max_tokens=9) for n in range(20)]
    expected = [await alone(compiled_sampler, each) for each in asked]
    together = await asyncio.gather(*(alone(compiled_sampler, replace(each, alike=False)) for each in asked))
    assert all(map(same, expected, together))


async def test_the_worker_compiles_into_its_cache(base: BaseModel, state: State, compiled_files: Path) -> None:
    sampler = TorchSampler(str(base.path), sequences=4, context=64, cache=str(compiled_files))
    assert isinstance(sampler._context, CompiledContext)
    await sampler.load("v0", str(state(0)))
    assert len((await sampler.generate(request("a"))).tokens) == 20
    await sampler.close()
