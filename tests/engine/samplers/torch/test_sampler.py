"""torch keeps the sampler contract; and what is particular to it."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from marlaas.engine.devices.limits import LentCores, Loan
from marlaas.engine.errors import BaseModelError
from marlaas.engine.models.find import BaseModel
from marlaas.engine.samplers.llama.model import LlamaSampler
from marlaas.engine.samplers.protocol import Sampler
from marlaas.engine.samplers.torch.sampler import TorchSampler

from ...rollout.contract.asking import State, alike, alone, request, same
from ...rollout.contract.whole import PositionalContract
from ...rollout.random_base import write_adapter, write_base


@pytest.fixture
async def torch_sampler(base: BaseModel, state: State) -> AsyncIterator[TorchSampler]:
    sampler = TorchSampler(str(base.path), sequences=64, context=2048)
    for number in (0, 1):
        await sampler.load(f"v{number}", str(state(number)))
    yield sampler
    await sampler.close()


class TestTorchSampler(PositionalContract):
    @pytest.fixture
    async def sampler(self, torch_sampler: TorchSampler) -> Sampler:
        return torch_sampler

    @pytest.mark.usefixtures("main_library")
    async def test_late_joiners_change_nothing(self, sampler: Sampler) -> None:
        await super().test_late_joiners_change_nothing(sampler)

    @pytest.mark.usefixtures("main_library")
    async def test_other_versions_change_nothing(self, sampler: Sampler) -> None:
        await super().test_other_versions_change_nothing(sampler)


@pytest.mark.usefixtures("main_library")
@pytest.mark.parametrize("tokens", [[7], [3, 1, 4], list(range(1, 40))])
async def test_it_agrees_with_llama_cpp(
    torch_sampler: TorchSampler, base: BaseModel, state: State, tmp_path: Path, tokens: list[int]
) -> None:
    llama = LlamaSampler(str(base.path), str(tmp_path / "cache"), sequences=2, context=512, exact=True)
    await llama.load("v0", str(state(0)))
    for temperature in (0.0, 1.0):
        asked = request("a", tokens, temperature=temperature, max_tokens=90)
        ours, theirs = await torch_sampler.generate(asked), await llama.generate(asked)
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        assert np.allclose(ours.logprobs, theirs.logprobs, atol=2e-4)
        await torch_sampler.release("a")
        await llama.release("a")
    await llama.close()


async def test_a_prompt_is_computed_once_for_a_group(torch_sampler: TorchSampler) -> None:
    prompt = list(range(1, 31))
    asked = [request(f"{n}", prompt, seed=n, max_tokens=4) for n in range(8)]
    await asyncio.gather(*[torch_sampler.generate(each) for each in asked])
    assert (await torch_sampler.stats()).prefilled_tokens == 30


async def test_a_found_beginning_says_the_same_but_for_rounding(torch_sampler: TorchSampler) -> None:
    system = [1 + n * n % 41 for n in range(700)]
    for n in range(5):
        asked = request(f"{n}", system + [7] * (2 + 30 * n), seed=n, max_tokens=40, alike=False)
        expected = await alone(torch_sampler, replace(asked, alike=True))
        found = await alone(torch_sampler, asked)
        assert found.prefilled < 300 or n == 0
        assert alike(expected, found, 2e-4)  # as between the samplers


def test_an_architecture_that_only_llama_cpp_knows_is_refused(tmp_path: Path) -> None:
    other = write_base(tmp_path / "gemma", model_type="gemma")
    with pytest.raises(BaseModelError, match="its architecture is gemma"):
        TorchSampler(str(other.path))


@pytest.fixture
async def rounded_sampler(base: BaseModel, state: State) -> AsyncIterator[TorchSampler]:
    sampler = TorchSampler(str(base.path), sequences=64, context=2048, weights="bf16")
    for number in (0, 1):
        await sampler.load(f"v{number}", str(state(number)))
    yield sampler
    await sampler.close()


@pytest.mark.slow
class TestRoundedSampler(PositionalContract):
    """With the base's matrices in bfloat16; what depends on them most is tested every day, below."""

    apart = rounding = 5e-2  # other parts have other sums, and each layer rounds them to 8 bits

    @pytest.fixture
    async def sampler(self, rounded_sampler: TorchSampler) -> Sampler:
        return rounded_sampler


@pytest.fixture
async def wide_sampler(tmp_path: Path) -> AsyncIterator[TorchSampler]:
    """With a base of which products of few rows have other bits than those of many, on processors with AMX."""
    wide = write_base(tmp_path / "wide", hidden_size=512, intermediate_size=2048)
    sampler = TorchSampler(str(wide.path), sequences=64, context=128, weights="bf16")
    for number in (0, 1):
        await sampler.load(f"v{number}", str(write_adapter(tmp_path / f"wide-{number}", wide, number)))
    yield sampler
    await sampler.close()


async def test_fast_turns_leave_others_alike(wide_sampler: TorchSampler) -> None:
    prompt = [5, 4, 3, 2, 1, 2, 3]
    asked = [request(f"{n}", prompt, version=f"v{n % 2}", seed=n, max_tokens=30) for n in range(4)]
    expected = [await alone(wide_sampler, each) for each in asked]
    others = [request(f"other {n}", prompt[: 1 + n % 7], seed=n, max_tokens=9 + n, alike=False) for n in range(20)]
    results = await asyncio.gather(*(alone(wide_sampler, each) for each in (*others, *asked)))
    assert all(map(same, results[len(others) :], expected))


async def test_fast_turns_say_the_same_but_for_rounding(wide_sampler: TorchSampler) -> None:
    asked = [request(f"{n}", version=f"v{n % 3 // 2}", seed=n, max_tokens=20) for n in range(30)]
    exact = [await alone(wide_sampler, each) for each in asked]
    free = await asyncio.gather(*(alone(wide_sampler, replace(each, alike=False)) for each in asked))
    # each product is rounded to 8 bits
    assert all(alike(one, other, 0.1) for one, other in zip(exact, free, strict=True))


async def test_an_alike_turn_takes_no_prompt_of_a_fast_one(wide_sampler: TorchSampler) -> None:
    prompt = list(range(1, 31))
    asked = [request(f"{n}", prompt, seed=n, max_tokens=4, alike=n < 4) for n in range(8)]
    await asyncio.gather(*[wide_sampler.generate(each) for each in asked])
    assert (await wide_sampler.stats()).prefilled_tokens == 60


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system cannot pin threads")
async def test_idle_cores_are_borrowed_for_fast_turns_alone(
    base: BaseModel, state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    set_threads = torch.set_num_threads
    cores = sorted(os.sched_getaffinity(0)) * 2
    path, first, second = str(tmp_path / "cores"), cores[:1], cores[1:2]
    trainer = LentCores(Loan(path, 1, tuple(second), tuple(first)))

    def told(count: int) -> None:
        threads.append(count)
        set_threads(count)

    monkeypatch.setattr(torch, "set_num_threads", told)
    loan = Loan(path, 0, tuple(first), tuple(second))
    sampler = TorchSampler(str(base.path), sequences=4, context=64, weights="bf16", loan=loan)
    await sampler.load("v0", str(state(0)))
    threads.clear()
    exact = await sampler.generate(request("exact", [1, 2, 3], max_tokens=4))
    assert threads == [], "its last bits depend on the number of threads"
    fast = await sampler.generate(request("fast", [1, 2, 3], max_tokens=4, alike=False))
    await sampler.stats()
    assert threads[0] == 2 and len(exact.tokens) == len(fast.tokens)
    trainer.work()
    threads.clear()
    await sampler.generate(request("beside", [1, 2, 3], max_tokens=4, alike=False))
    assert 2 not in threads, "the trainer is at work"
    await sampler.close()
