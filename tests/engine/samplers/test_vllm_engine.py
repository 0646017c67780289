"""vLLM keeps the sampler contract, for real, on its build for processors; and what is particular to it."""

import asyncio
import shutil
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.errors import CallFailed
from marlaas.engine.models.find import BaseModel
from marlaas.engine.samplers.protocol import Sampler, SampleResult
from marlaas.engine.samplers.vllm.sampler import Engine, EngineSampler, Progress, VllmSettings
from tests.engine.rollout.contract.asking import LONG, State, alike, alone, request, until_sampled
from tests.engine.rollout.contract.whole import SamplerContract
from tests.engine.rollout.random_base import write_base

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300), pytest.mark.vllm]
TOLERANCE = 1e-4
"""Between a turn alone and with others, in float32."""
SLOTS = 6


def close(one: SampleResult, other: SampleResult) -> bool:
    return alike(one, other, TOLERANCE)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    """With heads as large as vLLM's attention on processors wants them at least."""
    return write_base(tmp_path_factory.mktemp("vllm") / "base", head_dim=32)


@pytest.fixture(scope="module")
def engine(base: BaseModel) -> Iterator[Engine]:
    """One for all tests: a process holds one vLLM."""
    settings = VllmSettings(str(base.path), base.config, sequences=64, context=2048, largest_rank=16, slots=SLOTS)
    engine = Engine(settings)
    yield engine
    engine.close()


@pytest.fixture
async def vllm_sampler(engine: Engine, base: BaseModel, state: State, tmp_path: Path) -> AsyncIterator[EngineSampler]:
    sampler = EngineSampler(base, engine, tmp_path / "scratch")
    for number in (0, 1):
        await sampler.load(f"v{number}", str(state(number)))
    yield sampler
    await sampler.close()


class TestVllmSampler(SamplerContract):
    @pytest.fixture
    async def sampler(self, vllm_sampler: EngineSampler) -> Sampler:
        return vllm_sampler

    def same(self, one: SampleResult, other: SampleResult) -> bool:
        return close(one, other)


async def test_deleted_folders_are_missed_by_nobody(vllm_sampler: EngineSampler, state: State, tmp_path: Path) -> None:
    names = [f"v{number}" for number in range(SLOTS + 4)]  # more than fit at once: vLLM swaps them from its own memory
    for number, name in enumerate(names[2:], 2):
        await vllm_sampler.load(name, str(state(number)))
    before = [await alone(vllm_sampler, request("a", version=name)) for name in names]
    running = asyncio.create_task(vllm_sampler.generate(request("long", max_tokens=300)))
    await until_sampled(vllm_sampler, 2)
    shutil.rmtree(tmp_path / "scratch")
    after = await asyncio.gather(*[alone(vllm_sampler, request(name, version=name)) for name in names])
    assert all(map(close, before, after))
    assert (await running).finish == "length"
    await vllm_sampler.load("later", str(state(1)))
    (folder,) = (tmp_path / "scratch").iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in (*names, "later"):
        await vllm_sampler.retire(name)


async def test_retired_adapters_leave_vllm_and_the_disk(
    vllm_sampler: EngineSampler, state: State, tmp_path: Path
) -> None:
    (folder,) = (tmp_path / "scratch").iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    held = vllm_sampler.engine.llm.list_loras()
    await vllm_sampler.load("v2", str(state(2)))
    running = asyncio.create_task(vllm_sampler.generate(request("a", version="v2", max_tokens=LONG)))
    await until_sampled(vllm_sampler, 2)
    await vllm_sampler.retire("v2")
    assert len(vllm_sampler.engine.llm.list_loras()) == len(held) + 1
    await vllm_sampler.release("a")
    assert (await running).finish == "abort"
    await vllm_sampler.stats()
    assert vllm_sampler.engine.llm.list_loras() == held
    assert len(list(folder.iterdir())) == len(held) + 1  # and the lock


async def test_a_score_of_a_full_context_and_of_nothing(vllm_sampler: EngineSampler) -> None:
    room = (await vllm_sampler.limits()).context
    full = np.array([1 + n % 40 for n in range(room)], np.int32)
    assert len(await vllm_sampler.score("v0", full, room - 3, 1.0)) == 3
    assert len(await vllm_sampler.score("v0", full, room - 3, 0.5)) == 3
    assert len(await vllm_sampler.score("v0", full, room, 1.0)) == 0
    for start in (0, room + 1):
        with pytest.raises(ValueError, match="start"):
            await vllm_sampler.score("v0", full, start, 1.0)


async def test_a_temperature_that_vllm_would_change_is_refused(vllm_sampler: EngineSampler) -> None:
    with pytest.raises(ValueError, match=r"vLLM knows 0, and 0\.01 or more"):
        await vllm_sampler.generate(request("a", temperature=0.001))


async def test_a_step_that_fails_ends_the_process(vllm_sampler: EngineSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons: list[str] = []
    step = Engine.step

    def broken(self: Engine) -> list[Progress]:
        if not reasons:
            raise RuntimeError("CUDA out of memory")
        return step(self)

    monkeypatch.setattr(Engine, "step", broken)
    monkeypatch.setattr(
        "marlaas.engine.samplers.vllm.sampler.end_process", lambda reason, error: reasons.append(reason)
    )
    assert len((await vllm_sampler.generate(request("a"))).tokens) == 20
    assert reasons == ["vLLM's engine has failed: CUDA out of memory"]


async def test_closing_fails_what_is_under_way(engine: Engine, base: BaseModel, state: State, tmp_path: Path) -> None:
    sampler = EngineSampler(base, engine, tmp_path / "other")
    await sampler.load("v0", str(state(0)))
    running = asyncio.create_task(sampler.generate(request("a", max_tokens=LONG)))
    scoring = asyncio.create_task(sampler.score("v0", np.arange(1, 41, dtype=np.int32), 1, 0.5))
    await until_sampled(sampler, 2)
    await sampler.close()
    with pytest.raises(CallFailed, match="closing"):
        await running
    assert isinstance((await asyncio.gather(scoring, return_exceptions=True))[0], (CallFailed, np.ndarray))
    assert not list((tmp_path / "other").iterdir())
