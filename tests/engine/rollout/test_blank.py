"""An adapter of zeros says what an untrained one says: so the untrained policy can be measured without its file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.adapters.statefile import read_state, write_blank, write_state
from marlaas.engine.models.find import BaseModel
from marlaas.engine.samplers.llama.model import LlamaSampler
from marlaas.engine.samplers.protocol import Sampler
from marlaas.engine.samplers.torch.sampler import TorchSampler

from .contract.asking import State, alone, request


@pytest.fixture(params=["llama.cpp", "torch"])
async def sampler(request: pytest.FixtureRequest, base: BaseModel, tmp_path: Path) -> AsyncIterator[Sampler]:
    if request.param == "torch":
        made: LlamaSampler | TorchSampler = TorchSampler(str(base.path), sequences=4, context=256)
    else:
        made = LlamaSampler(str(base.path), str(tmp_path / "cache"), sequences=4, context=256)
    yield made
    await made.close()


async def test_to_the_last_bit(sampler: Sampler, state: State, tmp_path: Path) -> None:
    trained = read_state(state(0))
    fresh = {name: np.zeros_like(a) if name.endswith("lora_B") else a for name, a in trained.adapter.items()}
    write_state(tmp_path / "fresh", replace(trained, adapter=fresh), sync=False)
    files = {"trained": state(0), "fresh": tmp_path / "fresh", "blank": tmp_path / "blank"}
    checksum = write_blank(state(0), files["blank"])
    loaded = {name: await sampler.load(name, str(path)) for name, path in files.items()}
    assert loaded["blank"] == checksum != loaded["fresh"]
    said = {name: await alone(sampler, request(name, version=name, max_tokens=60)) for name in files}
    for part in ("tokens", "logprobs"):
        blank, untrained, other = (getattr(said[name], part).tobytes() for name in ("blank", "fresh", "trained"))
        assert blank == untrained != other
