"""Policies that share a pass get the gradients and statistics of passes of their own."""

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import HealthCheck, given, settings, strategies as st

from marlaas.engine.models.find import load_base
from marlaas.engine.models.memory import PASS_BYTES, Budget
from marlaas.engine.trainer.decoder.decoder import Decoder, compute_on
from marlaas.engine.trainer.group_pass import add_gradient, add_gradients, make_step
from marlaas.engine.trainer.losses import LOSSES
from marlaas.engine.trainer.protocol import PolicyConfig

from ....examples import examples
from .random_models import random_groups, save_model, shapes
from .test_against_peft import policy

configs = st.builds(
    PolicyConfig,
    rank=st.integers(1, 6),
    alpha=st.sampled_from([1.0, 8.0]),
    loss=st.sampled_from(sorted(LOSSES)),
    kl=st.sampled_from([0.0, 0.0, 0.4]),
    temperature=st.sampled_from([1.0, 1.0, 0.6]),
    seed=st.integers(0, 3),
    epochs=st.integers(1, 2),
)
jobs = st.tuples(configs, st.integers(0, 10_000), st.integers(0, 3), st.integers(1, 4), st.integers(1, 12))


@settings(max_examples=examples(5), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shapes, st.lists(jobs, min_size=2, max_size=8), st.sampled_from([30, 1_000]), st.sampled_from([0, 7, 2048]))
def test_together_is_as_alone(
    shape: dict[str, Any],
    jobs: list[tuple[PolicyConfig, int, int, int, int]],
    max_tokens: int,
    rows: int,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = load_base(save_model(Path(folder), shape, 0))
        exact = compute_on("cpu")
        compute = replace(exact, kept=replace(exact.kept, rows=rows or 1))
        model = Decoder.of(base, compute, room=1 if rows else PASS_BYTES)  # without room, so many rows at a time
    works = [[(policy(model, config), random_groups(seed, *sizes)) for config, seed, *sizes in jobs] for _ in range(2)]
    together, single = works
    with patch.object(Budget, "tokens", lambda *_: max_tokens):
        shared = add_gradients(model, together)
        apart = [add_gradient(model, memory, groups) for memory, groups in single]
    for (ours, _), (theirs, _), stats, expected in zip(together, single, shared, apart, strict=True):
        scale = float(theirs.gradient.abs().max())
        np.testing.assert_allclose(ours.gradient, theirs.gradient, atol=2e-4 * scale + 1e-7, rtol=1e-3)
        assert (ours.tokens, stats.tokens, stats.measured) == (theirs.tokens, expected.tokens, expected.measured)
        for what in ("loss", "entropy", "gap_sum", "gap_max", "kl"):
            assert np.isclose(getattr(stats, what), getattr(expected, what), rtol=2e-3, atol=1e-4), what
        notes = [[s.proximal for group in memory.rehearsal for s in group.sequences] for memory in (ours, theirs)]
        assert len(notes[0]) == len(notes[1])


@settings(max_examples=examples(2), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shapes, st.lists(jobs, min_size=2, max_size=6), st.integers(0, 100))
def test_twenty_steps_together_lead_where_twenty_alone_do(
    shape: dict[str, Any], jobs: list[tuple[PolicyConfig, int, int, int, int]], seed: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = Decoder.of(load_base(save_model(Path(folder), shape, 0)))
    together, single = ([policy(model, config) for config, *_ in jobs] for _ in range(2))
    for step in range(20):
        lessons = [random_groups(seed + 50 * step + own, *sizes) for _, own, *sizes in jobs]
        add_gradients(model, list(zip(together, lessons, strict=True)))
        for memory, groups in zip(single, lessons, strict=True):
            add_gradient(model, memory, groups)
        for memory in (*together, *single):
            memory.adopt(make_step(partial(add_gradients, model), memory).optimised)
    for ours, theirs in zip(together, single, strict=True):
        assert ours.version == 20 and ours.optimised.step == theirs.optimised.step
        expected = theirs.optimised
        scale = float(expected.moment1.abs().max())
        np.testing.assert_allclose(ours.optimised.moment1, expected.moment1, atol=0.02 * scale + 1e-6)
        clear = expected.moment2.sqrt() > 1e-3 * scale  # Adam moves by whole steps along noise, too
        apart = (ours.optimised.weights - expected.weights)[clear].abs()
        farthest = ours.optimised.step * ours.config.learning_rate  # that Adam gets: a step is at most one rate long
        assert apart.numel() == 0 or float(apart.max()) < 0.1 * farthest
