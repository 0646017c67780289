"""How fast rotary positions turn is what transformers computes, for any settings of each kind of scaling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from marlaas.engine.models.config import BaseConfig
from marlaas.engine.models.find import load_base
from marlaas.engine.models.rope import attention_factor, frequencies, yarn_share

BASE = load_base("tiny").config

sizes = st.sampled_from([16, 24, 64, 128])
thetas = st.sampled_from([1e4, 5e5, 1e6])
lengths = st.integers(32, 40_000)
factors = st.floats(1.0, 64.0)
maybe_scale = st.none() | st.floats(0.5, 2.0)
yarn = st.fixed_dictionaries(
    {"rope_type": st.just("yarn"), "factor": factors, "original_max_position_embeddings": lengths},
    optional={
        "attention_factor": maybe_scale,
        "beta_fast": st.floats(4.0, 64.0),
        "beta_slow": st.floats(0.5, 3.0),
        "mscale": maybe_scale,
        "mscale_all_dim": maybe_scale,
        "truncate": st.booleans(),
    },
)
linear = st.fixed_dictionaries({"rope_type": st.just("linear"), "factor": factors})
bands = st.fixed_dictionaries(
    {
        "rope_type": st.just("llama3"),
        "factor": factors,
        "low_freq_factor": st.floats(0.5, 2.0),
        "high_freq_factor": st.floats(3.0, 8.0),
        "original_max_position_embeddings": lengths,
    }
)


def sized(size: int, theta: float, scaling: dict[str, Any]) -> BaseConfig:
    return replace(BASE, head_dim=size, rope_theta=theta, rope_scaling=scaling, context_length=100_000)


@given(sizes, thetas, yarn | linear | bands)
def test_frequencies_and_attention_are_those_of_transformers(size: int, theta: float, scaling: dict[str, Any]) -> None:
    make: Any = LlamaConfig
    theirs = make(head_dim=size, rope_parameters={**scaling, "rope_theta": theta}, max_position_embeddings=100_000)
    expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](theirs, None)
    ours = sized(size, theta, scaling)
    assert np.allclose(frequencies(ours), expected.numpy(), rtol=2e-5)
    assert attention_factor(ours) == pytest.approx(factor, rel=1e-6)


@given(sizes, thetas, yarn)
def test_slower_frequencies_are_stretched_more(size: int, theta: float, scaling: dict[str, Any]) -> None:
    share = yarn_share(sized(size, theta, scaling))
    assert share.shape == (size // 2,)
    assert ((share >= 0) & (share <= 1)).all()
    assert (np.diff(share) >= 0).all()
