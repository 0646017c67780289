"""Stretched rotary positions, biases, odd heads: llama.cpp and our trainer compute what transformers does, or refuse.

Of 240 tokens, nearly four times what the stretched models are said to have been made for.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from marlaas.engine.adapters.statefile import read_state
from marlaas.engine.errors import BaseModelError
from marlaas.engine.models.find import BaseModel
from marlaas.engine.models.gguf import names_of, write_base
from marlaas.engine.models.tensors import load
from marlaas.engine.samplers.llama.model import BaseFile, open_base
from marlaas.engine.trainer.protocol import PolicyConfig, TrainGroup, TrainSequence
from marlaas.engine.trainer.torch_trainer import TorchTrainer
from tests.engine.trainer.oracle import Oracle
from tools.random_base.make import make_base

from .made import gap, logprobs_of, scores, transformers

TOKENS = np.random.default_rng(0).integers(0, 600, 240).astype(np.int32)
CLOSE = 1e-4
SHORT = {"factor": 4.0, "original_max_position_embeddings": 64}
BANDS = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **SHORT, "factor": 32.0}

Changes = dict[str, Any]

RIGHT: dict[str, tuple[str, Changes]] = {
    "yarn, old key": ("qwen2.5", {"rope_scaling": {"type": "yarn", **SHORT}}),
    "yarn": ("qwen3", {"rope_scaling": {"rope_type": "yarn", **SHORT}}),
    "yarn, llama": ("llama3", {"rope_scaling": {"rope_type": "yarn", **SHORT}}),
    "yarn, original length unsaid": (
        "qwen3",
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "max_position_embeddings": 64},
    ),
    "yarn, usual bounds": (
        "qwen3",
        {"rope_scaling": {"rope_type": "yarn", **SHORT, "beta_fast": 32, "beta_slow": 1.0}},
    ),
    "yarn, own attention": ("qwen3", {"rope_scaling": {"rope_type": "yarn", **SHORT, "attention_factor": 1.0}}),
    "yarn, two scales": (
        "qwen3",
        {"rope_scaling": {"rope_type": "yarn", **SHORT, "mscale": 1.0, "mscale_all_dim": 0.5}},
    ),
    "new keys": (
        "qwen3",
        {"rope_theta": None, "rope_parameters": {"rope_type": "yarn", "rope_theta": 10_000.0, **SHORT}},
    ),
    "linear, old key": ("qwen2", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    "linear, llama": ("llama3", {"rope_scaling": {"rope_type": "linear", "factor": 3.0}}),
    "bands": ("llama3", {"rope_scaling": BANDS}),
    "nothing, by name": ("qwen2", {"rope_scaling": {"type": "default"}}),
    "biases everywhere": ("llama3", {"attention_bias": True, "mlp_bias": True, "rope_scaling": BANDS}),
    "heads of an odd size": ("llama3", {"head_dim": 24, "rope_scaling": BANDS}),
}
REFUSED: dict[str, tuple[str, Changes, str]] = {
    "bounds": ("qwen3", {"rope_scaling": {"rope_type": "yarn", **SHORT, "beta_slow": 2}}, "with beta_slow = 2"),
    "ramp": ("qwen3", {"rope_scaling": {"rope_type": "yarn", **SHORT, "truncate": False}}, "with truncate = False"),
    "bands": ("qwen2", {"rope_scaling": BANDS}, "'llama3' in the architecture 'qwen2'"),
    "type": ("llama3", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "of type 'dynamic'"),
    "biases": ("qwen3", {"attention_bias": True}, "qwen3 has no biases"),
}


def make(folder: Path, family: str, changes: Changes) -> BaseModel:
    return make_base(folder, family, rows=600, changes={"max_position_embeddings": 256, **changes})


async def trained(base: BaseModel, folder: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    trainer = TorchTrainer(str(base.path), base.fingerprint, sync=False)
    try:
        await trainer.open("a", PolicyConfig(rank=2), str(folder / "state"), resume=False)
        return await trainer.score("a", TOKENS, 1, 1.0)
    finally:
        trainer.shutdown()


@pytest.mark.parametrize("case", RIGHT)
async def test_llama_cpp_and_trainer_match_transformers(case: str, tmp_path: Path) -> None:
    base = make(tmp_path / "base", *RIGHT[case])
    reference = logprobs_of(transformers(base), TOKENS, 1)
    write_base(base, tmp_path / "base.gguf")
    context = open_base(BaseFile(tmp_path / "base.gguf", names_of(base.config), ours=True), 2, 256, exact=True).context
    assert gap(scores(context, TOKENS, 1), reference) < CLOSE
    context.close()
    assert gap(await trained(base, tmp_path), reference) < CLOSE


@pytest.mark.parametrize("case", REFUSED)
async def test_what_llama_cpp_gets_wrong_can_only_be_trained(case: str, tmp_path: Path) -> None:
    family, changes, words = REFUSED[case]
    base = make(tmp_path / "base", family, changes)
    with pytest.raises(BaseModelError, match=words):
        write_base(base, tmp_path / "base.gguf")
    assert gap(await trained(base, tmp_path), logprobs_of(transformers(base), TOKENS, 1)) < CLOSE


async def test_a_step_with_stretched_positions_is_that_of_peft(tmp_path: Path) -> None:
    base = make(tmp_path / "base", *RIGHT["yarn, two scales"])
    config = PolicyConfig(rank=4, learning_rate=0.01, denominator=500.0)
    mask = (np.arange(len(TOKENS)) >= 40).astype(np.uint8)
    sequence = TrainSequence(TOKENS, mask, -5 * mask.astype(np.float32), 0.5)
    groups = (TrainGroup(1, (sequence, replace(sequence, tokens=TOKENS[::-1].copy(), advantage=-0.5))),)
    trainer = TorchTrainer(str(base.path), base.fingerprint, sync=False)
    await trainer.open("a", config, str(tmp_path / "0"), resume=False)
    oracle = Oracle(str(base.path), tmp_path / "0")
    (norm,) = oracle.steps([groups], config)
    await trainer.accumulate("a", groups)
    stepped = await trainer.step("a", str(tmp_path / "1"))
    trainer.shutdown()
    assert stepped.grad_norm == pytest.approx(norm, rel=1e-3)
    assert oracle.distance(read_state(tmp_path / "1")) < config.learning_rate / 20


@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3"])
def test_a_kind_without_its_settings_is_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(BaseModelError, match=f"of type '{kind}' have no factor"):
        make(tmp_path, "llama3", {"rope_scaling": {"rope_type": kind}})


def test_a_head_that_lacks_is_refused_and_one_too_many_left_out(tmp_path: Path) -> None:
    def claim(name: str, tied: bool) -> BaseModel:
        make(tmp_path / name, "qwen2", {"tie_word_embeddings": tied})
        return make(tmp_path / f"{name} in truth", "qwen2", {"tie_word_embeddings": not tied})

    for name, tied in (("lacking", True), ("one too many", False)):
        base = claim(name, tied)
        for file in base.weight_files:  # the weights of the one, the configuration of the other
            file.unlink()
        for file in (tmp_path / name).glob("*.safetensors"):
            (base.path / file.name).write_bytes(file.read_bytes())
        if tied:
            with pytest.raises(BaseModelError, match=r"hold no lm_head\.weight"):
                write_base(base, tmp_path / "base.gguf")
            with pytest.raises(BaseModelError, match=r"hold no lm_head\.weight"):
                load(base, torch.device("cpu"))
        else:
            write_base(base, tmp_path / "base.gguf")
            loaded = load(base, torch.device("cpu"))
            assert loaded.head is loaded.embedding
