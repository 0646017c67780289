"""The shipped base in a wider shape: the same function, and what llama.cpp stores of it in each precision."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from benchmarks.many_tasks.wide_base import make_wide
from marlaas.engine.base import BaseModel, load_base
from marlaas.engine.rollout.llama.model import ensure_base_gguf
from marlaas.engine.training.decoder.decoder import Decoder
from marlaas.engine.training.group_pass import sequence_logprobs
from marlaas.engine.training.inputs import PolicyConfig
from marlaas.engine.training.memory.policy_memory import PolicyMemory, fresh
from marlaas.engine.trajectories import Logprobs


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    return make_wide(tmp_path_factory.mktemp("wide"))


def said(base: BaseModel) -> Logprobs:
    """Log-probabilities of a few tokens."""
    config, model = PolicyConfig(rank=4), Decoder.of(base)
    layout = model.layout(config.rank)
    tokens = np.random.default_rng(0).integers(8, 264, 24).astype(np.int32)
    return sequence_logprobs(model, PolicyMemory.of(config, layout, fresh(config, layout)), tokens, 1, 1.0)


def test_the_wider_base_says_the_same(wide: BaseModel) -> None:
    # float32 sums over 256 instead of 160 places: a few last bits of logits up to about 15
    assert np.abs(said(wide) - said(load_base("tiny"))).max() < 2e-5


def test_all_its_matrices_are_k_quants(wide: BaseModel, tmp_path: Path) -> None:
    path = ensure_base_gguf(wide, tmp_path, "q4_k_m")
    kinds = {tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors if len(tensor.shape) > 1}
    assert kinds == {"Q4_K", "Q6_K"}


def test_the_same_seed_makes_the_same_base(wide: BaseModel, tmp_path: Path) -> None:
    assert make_wide(tmp_path / "again").fingerprint == wide.fingerprint
    assert make_wide(tmp_path / "other", seed=1).fingerprint != wide.fingerprint
