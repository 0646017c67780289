"""llama.cpp keeps the sampler contract; and what is particular to it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from marlaas.engine.base.model import BaseModel
from marlaas.engine.rollout.llama.sampler import LlamaSampler
from marlaas.engine.rollout.protocol import Sampler

from .contract import SamplerContract, State


class TestLlamaSampler(SamplerContract):
    @pytest.fixture(params=[False, True], ids=["fast", "exact"])
    async def sampler(
        self, request: pytest.FixtureRequest, base: BaseModel, state: State, tmp_path: Path
    ) -> AsyncIterator[Sampler]:
        llama = LlamaSampler(str(base.path), str(tmp_path / "cache"), sequences=64, context=256, exact=request.param)
        for number in (0, 1):
            await llama.load(f"v{number}", str(state(number)))
        yield llama
        await llama.close()
