"""torch keeps the sampler contract; its memory, long sequences, adapters' terms and products in bfloat16."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from marlaas.engine.devices.limits import LentCores, Loan
from marlaas.engine.errors import BaseModelError
from marlaas.engine.models.find import BaseModel
from marlaas.engine.samplers.batching.context import PIECE
from marlaas.engine.samplers.protocol import Sampler
from marlaas.engine.samplers.torch import blocks
from marlaas.engine.samplers.torch.blocks import CHUNK, HalfHead, HalfMatrix
from marlaas.engine.samplers.torch.context import TorchContext, TorchWeights
from marlaas.engine.samplers.torch.sampler import TorchSampler
from tests.engine.rollout.contract.asking import State, alone, request, same
from tests.engine.rollout.contract.repeatable import RepeatableContract
from tests.engine.rollout.contract.whole import PositionalContract
from tests.engine.rollout.random_base import write_adapter, write_base
from tests.engine.trainer.held import Held
from tests.seldom import seldom


@pytest.fixture
async def torch_sampler(base: BaseModel, state: State) -> AsyncIterator[TorchSampler]:
    sampler = TorchSampler(str(base.path), sequences=64, context=2048)
    for number in (0, 1):
        await sampler.load(f"v{number}", str(state(number)))
    yield sampler
    await sampler.close()


@pytest.mark.slow
class TestTorchSampler(PositionalContract):
    """All of it: every day compiled passes and llama.cpp keep what does not depend on the kind of passes."""

    @pytest.fixture
    async def sampler(self, torch_sampler: TorchSampler) -> Sampler:
        return torch_sampler


class TestRepeatableTorchSampler(RepeatableContract):
    @pytest.fixture
    async def sampler(self, torch_sampler: TorchSampler) -> Sampler:
        return torch_sampler

    @pytest.mark.usefixtures("main_library")
    async def test_late_joiners_change_nothing(self, sampler: Sampler) -> None:
        await super().test_late_joiners_change_nothing(sampler)

    @pytest.mark.usefixtures("main_library")
    async def test_other_versions_change_nothing(self, sampler: Sampler) -> None:
        await super().test_other_versions_change_nothing(sampler)


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
    asked = [request(f"{n}", prompt, version=f"v{n % 2}", seed=n, max_tokens=8) for n in range(4)]
    expected = [await alone(wide_sampler, each) for each in asked]
    others = [request(f"other {n}", prompt[: 1 + n % 7], seed=n, max_tokens=3 + n, alike=False) for n in range(6)]
    results = await asyncio.gather(*(alone(wide_sampler, each) for each in (*others, *asked)))
    assert all(map(same, results[len(others) :], expected))


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

    def noted(count: int) -> None:
        threads.append(count)
        set_threads(count)

    monkeypatch.setattr(torch, "set_num_threads", noted)
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


def resident() -> int:
    """Bytes that this process holds in memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError("The kernel does not say what is resident.")


def written(sampler: TorchSampler) -> int:
    """Sequences that have held a token."""
    context = sampler._context
    assert isinstance(context, TorchContext)
    return int(context._memory[0, 0, :, 0, 0].any(-1).sum())


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel's own count")
async def test_a_second_task_with_longer_episodes_changes_no_bit(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", num_hidden_layers=4, num_key_value_heads=4, head_dim=32)
    before = resident()
    sampler = TorchSampler(str(base.path), sequences=768, context=2048)  # 3.2 GB of keys and values
    for version in range(2):
        await sampler.load(f"v{version}", str(write_adapter(tmp_path / f"{version}", base, version)))
    asked = [request(f"first {n}", [5, 6, n + 1], max_tokens=60, seed=n) for n in range(4)]
    expected = [await alone(sampler, each) for each in asked]
    assert resident() - before < 200 << 20 and written(sampler) <= 16
    first = [asyncio.ensure_future(alone(sampler, each)) for each in asked]
    await asyncio.sleep(0)
    longer = [request(f"{n}", [n + 2] * 300, max_tokens=20, version="v1", seed=n) for n in range(16)]
    await asyncio.gather(*(alone(sampler, each) for each in longer))
    assert all(map(same, expected, await asyncio.gather(*first)))
    assert resident() - before < 400 << 20 and 16 <= written(sampler) <= 24
    await sampler.close()


@pytest.fixture(scope="module")
def long_base(tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    return write_base(tmp_path_factory.mktemp("long") / "base", max_position_embeddings=8192)


def logits(opened: TorchContext, runs: list[tuple[int, list[int]]], begins: list[int] | None = None) -> np.ndarray:
    """Of the last two tokens of each run, which are appended to their sequences, from 0 on unless ``begins`` says."""
    begins = begins or [0] * len(runs)
    counts = [len(tokens) for _, tokens in runs]
    ends = np.cumsum(counts)
    outputs = np.zeros(ends[-1], np.int8)
    outputs[np.concatenate([ends - 2, ends - 1])] = 1
    return opened.decode(
        np.concatenate([tokens for _, tokens in runs]).astype(np.int32),
        np.concatenate([np.arange(b, b + n) for b, n in zip(begins, counts, strict=True)]).astype(np.int32),
        np.repeat([sequence for sequence, _ in runs], counts).astype(np.int32),
        outputs,
    ).copy()


def text(count: int, seed: int = 0) -> list[int]:
    drawn: list[int] = np.random.default_rng(seed).integers(0, 40, count).tolist()
    return drawn


@pytest.mark.parametrize(("weights", "apart"), [("f32", 1e-4), ("bf16", 0.1)])
def test_tiles_change_nothing_but_roundings(
    long_base: BaseModel, monkeypatch: pytest.MonkeyPatch, weights: TorchWeights, apart: float
) -> None:
    """Logits of about 1; in bfloat16 keys and values have 8 bits, and each layer rounds what it adds."""
    runs = [(0, text(1200)), (1, text(30, 1))]
    more = [(0, text(40, 2)), (1, text(5, 3))]
    found = []
    for used in (True, False):
        for name in ("TILED", "TILED_HALVED") if not used else ():
            monkeypatch.setattr(blocks, name, 1 << 30)
        opened = TorchContext(long_base, 2, 2048, weights)
        found.append([logits(opened, runs), logits(opened, more, [1200, 30])])
    for ours, plain in zip(*found, strict=True):
        assert np.abs(ours - plain).max() < apart * np.abs(plain).max()


def test_memory_of_a_prompt_grows_with_its_length(long_base: BaseModel) -> None:
    most = []
    for tokens in (2048, 8192):
        opened = TorchContext(long_base, 1, 8192)
        with torch.inference_mode(), Held() as held:
            for begin in range(0, tokens, PIECE):  # as prompts are read
                logits(opened, [(0, text(PIECE, begin))], [begin])
        most.append(held.most)
    assert most[1] < 2.5 * most[0], "with all scores it would be 4 times as much"


INPUTS, OUTPUTS = 300, 200


@pytest.fixture(params=["packed", "widened"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where oneDNN multiplies bfloat16, and where it cannot."""
    if request.param == "widened":
        monkeypatch.setattr(blocks, "packs", lambda: False)
    elif not blocks.packs():
        pytest.skip("oneDNN does not multiply bfloat16 here")
    yield


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize(("rows", "alike"), [(1, True), (8, False), (100, True), (100, False)])
def test_a_product_has_float32_sums(rows: int, alike: bool) -> None:
    x, weight = drawn(rows, INPUTS), drawn(OUTPUTS, INPUTS, seed=1)
    exact = x.double() @ weight.double().T
    found = HalfMatrix(weight.float()).times(x, alike)
    assert found.dtype == torch.float32 and found.shape == (rows, OUTPUTS)
    # half of the last of 8 bits, and for small results float32 sums of terms that cancel
    assert ((found - exact).abs() <= 2.0**-8 * exact.abs() + 1e-4).all()


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize(("rows", "alike"), [(1000, True), (1000, False)])
def test_terms_far_below_the_last_bits_of_a_product_count(rows: int, alike: bool) -> None:
    """Added after rounding, and rounded again for the cache, a small adapter's term would be lost."""
    x, matrix = drawn(rows, INPUTS), HalfMatrix(drawn(OUTPUTS, INPUTS, seed=1))
    terms = 1e-2 * drawn(rows, OUTPUTS, seed=2).float()
    change = matrix.times(x, alike, terms).bfloat16().float() - matrix.times(x, alike).bfloat16().float()
    assert float((change * terms).sum() / terms.square().sum()) == pytest.approx(1.0, abs=0.05)


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize(("rows", "alike"), [(1, True), (8, False), (100, True), (100, False)])
def test_logits_are_not_rounded_to_bfloat16(rows: int, alike: bool) -> None:
    x, weight = drawn(rows, 64), drawn(CHUNK + 500, 64, seed=1)
    exact = x.double() @ weight.double().T
    found = HalfHead(weight).logits(x, alike)
    assert found.dtype == torch.float32 and found.shape == exact.shape
    # logits of up to 40, of which bfloat16 alone would lose 0.1
    assert (found - exact).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("each_way", "outputs", "inputs"),
    [("packed", 9728, 896), seldom("packed", 896, 4864), ("widened", 300, 100)],
    indirect=["each_way"],
)
@pytest.mark.usefixtures("each_way")
def test_rows_alike_do_not_depend_on_other_rows(outputs: int, inputs: int) -> None:
    """Of Qwen2.5-0.5B's shape: with AMX, calls of other sizes give other bits."""
    matrix, x = HalfMatrix(drawn(outputs, inputs)), drawn(150, inputs, seed=1)
    whole = matrix.times(x, alike=True)
    for rows in (1, 2, 8, 31, 64, 65, 128):
        for begin in (0, 22):
            part = slice(begin, begin + rows)
            assert torch.equal(matrix.times(x[part], alike=True), whole[part])
    order = torch.randperm(150, generator=torch.Generator().manual_seed(2))
    assert torch.equal(matrix.times(x[order], alike=True), whole[order])
    head, x = HalfHead(drawn(CHUNK + 500, 128)), drawn(150, 128, seed=1)
    logits = head.logits(x, alike=True).clone()
    for rows in (1, 8, 64, 65):
        assert torch.equal(head.logits(x[40 : 40 + rows], alike=True), logits[40 : 40 + rows])
