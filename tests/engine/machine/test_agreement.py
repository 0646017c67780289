"""Sampler and trainer are compared for real: llama.cpp on one side, torch on the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marlaas.engine.errors import BaseModelError
from marlaas.engine.machine.routing.router import EXACT, POLICY, ROUNDED, Agreement, Tolerance, compare
from marlaas.engine.models.find import BaseModel
from marlaas.engine.models.gguf import GgufNames
from marlaas.engine.samplers.llama.model import LlamaSampler, ensure_base_gguf
from marlaas.engine.trainer.torch_trainer import TorchTrainer

from ..rollout.random_base import write_base

LLAMA: dict[str, Any] = {"model_type": "llama", "head_dim": 8, "num_attention_heads": 4}
TOKENS = np.random.default_rng(5).integers(0, 50, 40).astype(np.int32)


class Pair:
    """A sampler of one base and a trainer of another, or of the same."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._samplers: list[LlamaSampler] = []
        self._trainers: list[TorchTrainer] = []

    async def compare(self, sampled: BaseModel, trained: BaseModel) -> Agreement:
        sampler = LlamaSampler(str(sampled.path), str(self.folder / "gguf"), 4, 64, exact=True)
        self._samplers.append(sampler)
        trainer = TorchTrainer(str(trained.path), sampled.fingerprint, sync=False)
        self._trainers.append(trainer)
        scratch = self.folder / "scratch"
        scratch.mkdir(exist_ok=True)
        agreement = await compare(sampler, trainer, TOKENS, scratch)
        assert not list(scratch.iterdir())
        with pytest.raises(Exception, match="not open"):
            await trainer.score(POLICY, TOKENS, 1, 1.0)
        return agreement

    async def close(self) -> None:
        for sampler in self._samplers:
            await sampler.close()
        for trainer in self._trainers:
            trainer.shutdown()


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    made = Pair(tmp_path)
    yield made
    await made.close()


@pytest.mark.parametrize("family", [{}, LLAMA])
async def test_the_same_base_agrees(pair: Pair, tmp_path: Path, family: dict[str, Any]) -> None:
    base = write_base(tmp_path / "base", **family)
    agreement = await pair.compare(base, base)
    agreement.check(EXACT, "The file")
    assert agreement.moved > 0.05, "an adapter that changes nothing proves nothing"


async def test_other_weights_are_found_even_where_much_is_rounded(pair: Pair, tmp_path: Path) -> None:
    ours, other = write_base(tmp_path / "ours"), write_base(tmp_path / "other", seed=1)
    agreement = await pair.compare(other, ours)
    with pytest.raises(BaseModelError, match="The file X does not hold the weights of the base model"):
        agreement.check(ROUNDED["q4_k_m"], "The file X")


async def test_adapters_in_another_row_order_are_found(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = write_base(tmp_path / "base", **LLAMA)
    ensure_base_gguf(base, tmp_path / "gguf")  # as it should be: only adapters go wrong
    monkeypatch.setattr(GgufNames, "rows", lambda names, module, array: array)
    agreement = await pair.compare(base, base)
    with pytest.raises(BaseModelError, match="takes adapters in another order"):
        agreement.check(EXACT, "The file")


async def test_a_gap_that_is_not_a_number_is_no_agreement() -> None:
    agreement = Agreement(0.0, 0.0, float("nan"), float("nan"))
    with pytest.raises(BaseModelError):
        agreement.check(Tolerance(), "The file")
