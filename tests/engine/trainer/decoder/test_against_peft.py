"""The decoder gives what transformers and PEFT give, on models and groups of any shape."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from marlaas.engine.models.config import unsupported
from marlaas.engine.models.find import load_base
from marlaas.engine.models.memory import PASS_BYTES, Budget
from marlaas.engine.trainer.decoder.decoder import Decoder
from marlaas.engine.trainer.group_pass import add_gradient
from marlaas.engine.trainer.memory import PolicyMemory, fresh
from marlaas.engine.trainer.model import Model
from marlaas.engine.trainer.peft_model import PeftModel
from marlaas.engine.trainer.protocol import GroupStats, PolicyConfig, TrainGroup

from ....examples import examples
from ..samples import sequence_logprobs
from .random_models import random_groups, save_model, shapes


def policy(model: Model[Any], config: PolicyConfig, device: str = "cpu") -> PolicyMemory:
    """Open, with B away from zero so that A has a gradient, too."""
    layout = model.layout(config.rank)
    state = fresh(config, layout)
    generator = torch.Generator().manual_seed(config.seed)
    for name, view in layout.views(state.weights).items():
        if name.endswith(".lora_B"):
            view.copy_(torch.randn(view.shape, generator=generator) * 0.1)
    return PolicyMemory.of(config, layout, state.to(device))


def outcome(model: Model[Any], config: PolicyConfig, groups: list[TrainGroup]) -> tuple[GroupStats, dict[str, Any]]:
    memory = policy(model, config)
    stats = add_gradient(model, memory, groups)
    return stats, memory.layout.views(memory.gradient.numpy())


@settings(max_examples=examples(6), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    shapes,
    st.integers(0, 10_000),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 12),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.4]),
    st.sampled_from([1.0, 0.6]),
    st.sampled_from([20, 1_000]),
    st.booleans(),
)
def test_gradients_and_statistics_are_those_of_peft(
    shape: dict[str, Any],
    seed: int,
    groups: int,
    members: int,
    longest: int,
    rank: int,
    kl: float,
    temperature: float,
    max_tokens: int,
    short_of_memory: bool,
) -> None:
    config = PolicyConfig(
        rank=rank, alpha=2.0 * rank, kl=kl, temperature=temperature, seed=seed, denominator=float(groups * members)
    )
    some = random_groups(seed, groups, members, longest)
    with tempfile.TemporaryDirectory() as folder:
        base = save_model(Path(folder), shape, seed)
        decoder, peft = Decoder.of(load_base(base), room=1 if short_of_memory else PASS_BYTES), PeftModel(base)
    assert decoder.layout(rank) == peft.layout(rank)
    with patch.object(Budget, "tokens", lambda *_: max_tokens):  # small ones divide families
        ours, our_gradients = outcome(decoder, config, some)
    theirs, their_gradients = outcome(peft, config, some)
    largest = max(float(np.abs(gradient).max()) for gradient in their_gradients.values())
    for name, gradient in their_gradients.items():
        assert np.allclose(our_gradients[name], gradient, atol=2e-4 * largest + 1e-7, rtol=1e-3), name
    assert (ours.tokens, ours.measured) == (theirs.tokens, theirs.measured)
    for what in ("loss", "entropy", "gap_sum", "gap_max", "kl"):
        assert np.isclose(getattr(ours, what), getattr(theirs, what), rtol=2e-3, atol=1e-4), what


@settings(max_examples=examples(3), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shapes, st.integers(0, 10_000))
def test_log_probabilities_are_those_of_peft(shape: dict[str, Any], seed: int) -> None:
    config = PolicyConfig(rank=4, seed=seed)
    sequence = random_groups(seed, 1, 1, 30)[0].sequences[0].tokens
    with tempfile.TemporaryDirectory() as folder:
        base = save_model(Path(folder), shape, seed)
        models: list[Model[Any]] = [Decoder.of(load_base(base)), PeftModel(base)]
    ours, theirs = (sequence_logprobs(model, policy(model, config), sequence, 1, 0.8) for model in models)
    assert np.allclose(ours, theirs, atol=5e-5)


def test_what_the_decoder_does_not_compute_is_named(base: str) -> None:
    config = load_base(base).config
    assert unsupported(config) == ""
    assert unsupported(replace(config, architecture="gpt2")) == "its architecture is gpt2"
    assert "scaled by dynamic" in unsupported(replace(config, rope_scaling={"rope_type": "dynamic"}))
    assert "sliding window" in unsupported(replace(config, sliding_window=True))
