"""All that a pass computes in other ways on a card gives what the processor's kernels give. Runs on the processor."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from marlaas.engine.models.find import load_base
from marlaas.engine.models.memory import Budget
from marlaas.engine.trainer.decoder.decoder import Decoder, compute_on, for_card
from marlaas.engine.trainer.decoder.linear import product
from marlaas.engine.trainer.group_pass import add_gradients
from marlaas.engine.trainer.protocol import PolicyConfig

from ....examples import examples
from ..samples import sequence_logprobs
from .random_models import random_groups, save_model, shapes
from .test_against_peft import policy

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
"""A card's kernels run on both."""
CONFIGS = [
    PolicyConfig(rank=3, seed=1),
    PolicyConfig(rank=5, alpha=8.0, kl=0.3, temperature=0.7, seed=2),
    PolicyConfig(rank=1, loss="cispo", seed=3),
]


def gradients(
    model: Decoder, configs: list[PolicyConfig], seed: int, longest: int, device: str = "cpu"
) -> list[np.ndarray]:
    work = [
        (policy(model, config, device), random_groups(seed + number, 2, 4, longest))
        for number, config in enumerate(configs)
    ]
    add_gradients(model, work)
    return [memory.gradient.cpu().numpy() for memory, _ in work]


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=examples(4), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shapes, st.integers(0, 10_000), st.integers(1, 20), st.integers(1, 3), st.booleans())
def test_gradients_and_log_probabilities_are_the_same(
    device: str, shape: dict[str, Any], seed: int, longest: int, policies: int, short_of_memory: bool
) -> None:
    room, compute = 1 if short_of_memory else 1 << 30, for_card(torch.device(device), "f32")
    if short_of_memory:  # then some rows at a time, of which the last ones may be no policy's
        compute = replace(compute, kept=replace(compute.kept, rows=7))
    with tempfile.TemporaryDirectory() as folder:
        base = load_base(save_model(Path(folder), shape, seed))
        plain, card = Decoder.of(base), Decoder.of(base, compute, room)
    expected = gradients(plain, CONFIGS[:policies], seed, longest)
    found = gradients(card, CONFIGS[:policies], seed, longest, device)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-4 * np.abs(theirs).max() + 1e-7, rtol=1e-3)
    tokens = random_groups(seed, 1, 1, 30)[0].sequences[0].tokens
    ours, theirs = (
        sequence_logprobs(model, policy(model, CONFIGS[1], on), tokens, 1, 0.8)
        for model, on in ((card, device), (plain, "cpu"))
    )
    np.testing.assert_allclose(ours, theirs, atol=5e-5)


def test_a_card_multiplies_into_float32() -> None:
    """What torch promises of such a product, on a device that computes nothing."""
    left, right = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((5, 8), (8, 3)))
    found = product(left, right, torch.float32)
    assert (found.dtype, found.shape) == (torch.float32, (5, 3))


def test_what_is_chosen_follows_the_device() -> None:
    assert compute_on("meta", "bf16").most > compute_on("cpu").most == Budget().most
