"""A step of the default task is really estimated: llama.cpp and torch on the shipped base, in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.errors import AdapterError
from marlaas.engine.machine.routing.router import comparison_tokens
from marlaas.engine.models.find import load_base
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.samplers.llama.model import LlamaSampler
from marlaas.engine.train import trial
from marlaas.engine.train.trial import POLICY, Trial, loaded, time_sampling, time_training
from marlaas.engine.trainer.torch_trainer import TorchTrainer


@pytest.mark.parametrize("patience", [trial.PATIENCE, 0.0])
async def test_a_step_is_estimated_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    monkeypatch.setattr(trial, "PATIENCE", patience)
    base = load_base("tiny")
    sampler = LlamaSampler(str(base.path), str(tmp_path / "gguf"), 64, 256, exact=True)
    trainer = TorchTrainer(str(base.path), base.fingerprint, sync=False)
    renderer, scratch = Renderer(base.path), tmp_path / "scratch"
    scratch.mkdir()
    try:
        async with loaded([sampler], trainer, scratch) as (version, folder):
            (sampling,) = await time_sampling([sampler], renderer, version, 1)
            training = await time_training(trainer, renderer, folder)
        stats = await sampler.stats()
        with pytest.raises(AdapterError, match="not open"):
            await trainer.step(POLICY, str(scratch / "x"))
    finally:
        await sampler.close()
        trainer.shutdown()
    assert sampling > 0 and training > 0
    assert not list(scratch.iterdir())
    assert (stats.active, stats.waiting) == (0, 0)


def test_stages_overlap() -> None:
    assert Trial(10, sampling=3.0, training=2.0, gap_mean=0.0, gap_max=0.0).seconds == 3.0


def test_comparisons_are_of_ordinary_words() -> None:
    tokens = comparison_tokens(Renderer(load_base("tiny").path), 64)
    assert tokens.shape == (64,) and len(set(tokens.tolist())) > 10
