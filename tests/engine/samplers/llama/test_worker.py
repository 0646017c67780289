"""The llama.cpp sampler where it lives: in a worker process, behind a proxy."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.adapters.statefile import checksum, read_state
from marlaas.engine.errors import AdapterError, BaseModelError
from marlaas.engine.machine.workers.handle import LocalLauncher
from marlaas.engine.models.find import BaseModel
from marlaas.engine.samplers.options import Wishes
from marlaas.engine.samplers.protocol import NewTokens, Sampler

from ...rollout.contract.asking import State, alone, request, same

pytestmark = pytest.mark.processes
FACTORY = "marlaas.engine.samplers.llama.model:LlamaSampler"


@pytest.mark.torch
async def test_a_sampler_in_a_process_of_its_own(base: BaseModel, state: State, tmp_path: Path) -> None:
    kwargs = {"base": str(base.path), "cache": str(tmp_path / "cache"), "sequences": 16, "context": 256}
    handle = await LocalLauncher().start("sampler", FACTORY, kwargs, (0,), log_path=tmp_path / "sampler.log")
    try:
        sampler = handle.proxy(Sampler)
        assert await sampler.load("v0", str(state(0))) == checksum(read_state(state(0)).adapter)
        one = await alone(sampler, request("a"))
        many = await asyncio.gather(*[alone(sampler, request(f"{n}")) for n in range(30)])
        assert all(same(one, each) for each in many)
        said: list[NewTokens] = []
        wished = request("b").wishing(Wishes(likeliest=3, prompt=True))
        streamed = await sampler.generate(wished, stream_to=said.append)
        assert same(streamed, one) and streamed.extras is not None and streamed.extras.prompt_likeliest is not None
        assert np.concatenate([each.tokens for each in said]).tolist() == one.tokens.tolist()
        with pytest.raises(AdapterError, match="never loaded"):
            await sampler.generate(request("a", version="v1"))
    finally:
        await handle.stop()


async def test_a_missing_base_is_said_clearly(tmp_path: Path) -> None:
    kwargs = {"base": str(tmp_path / "nowhere"), "cache": str(tmp_path)}
    with pytest.raises(BaseModelError, match="There is no base model"):
        await LocalLauncher().start("sampler", FACTORY, kwargs, log_path=tmp_path / "sampler.log")
