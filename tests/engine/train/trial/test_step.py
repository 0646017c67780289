"""A step of the default task is really run: llama.cpp and torch on the shipped base, in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.errors import AdapterError
from marlaas.engine.machine.routing.router import comparison_tokens
from marlaas.engine.models.find import load_base
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.samplers.llama.model import LlamaSampler
from marlaas.engine.train import trial
from marlaas.engine.train.trial import POLICY, TASK, Trial, measure
from marlaas.engine.trainer.torch_trainer import TorchTrainer


@pytest.mark.parametrize("patience", [trial.PATIENCE, 0.0])
async def test_a_step_is_measured_whole_or_by_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    monkeypatch.setattr(trial, "PATIENCE", patience)
    base = load_base("tiny")
    sampler = LlamaSampler(str(base.path), str(tmp_path / "gguf"), 64, 256, exact=True)
    trainer = TorchTrainer(str(base.path), base.fingerprint, sync=False)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    try:
        found = await measure(sampler, trainer, Renderer(base.path), scratch)
        stats = await sampler.stats()
        with pytest.raises(AdapterError, match="not open"):
            await trainer.close(POLICY)
            await trainer.step(POLICY, str(scratch / "x"))
    finally:
        await sampler.close()
        trainer.shutdown()
    assert found.whole == (patience > 0) and found.groups == (8 if found.whole else 1)
    assert found.sampled_tokens == TASK.group_episodes * TASK.sampling.max_tokens, "of a whole step, either way"
    assert found.sampling > 0 and found.training > 0
    assert 0 < found.gap_mean <= found.gap_max < 1e-3, "what was sampled is what was trained on"
    assert not list(scratch.iterdir())
    assert (stats.active, stats.waiting) == (0, 0)


def test_stages_overlap() -> None:
    assert Trial(8, 10, 2048, sampling=3.0, training=2.0, gap_mean=0.0, gap_max=0.0).seconds == 3.0


def test_comparisons_are_of_ordinary_words() -> None:
    tokens = comparison_tokens(Renderer(load_base("tiny").path), 64)
    assert tokens.shape == (64,) and len(set(tokens.tolist())) > 10
