"""A policy survives its rest in a file, and its matrices are views of aligned vectors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from marlaas.engine.adapters.statefile import PolicyState, StateHeader
from marlaas.engine.errors import AdapterError
from marlaas.engine.trainer.memory import ALIGNMENT, AdamState, Layout, PolicyMemory, adamw, fresh, from_state, to_state
from marlaas.engine.trainer.protocol import PolicyConfig

CONFIG = PolicyConfig(rank=2, alpha=4.0)
LAYOUT = Layout.of({"q": (3, 5), "v": (4, 1)}, rank=2)


def state() -> PolicyState:
    torch.manual_seed(0)
    moments = torch.rand(LAYOUT.size), torch.rand(LAYOUT.size)
    return to_state(AdamState(fresh(CONFIG, LAYOUT).weights, *moments, 7), 5, CONFIG, LAYOUT, "base")


def test_a_policy_survives_rest_to_the_last_bit() -> None:
    at_rest = state()
    again = to_state(from_state(at_rest, CONFIG, LAYOUT, "base"), 5, CONFIG, LAYOUT, "base")
    assert again.header == at_rest.header == StateHeader(2, 4.0, 5, "base", updates=7)
    for part in ("adapter", "moment1", "moment2"):
        before, after = getattr(at_rest, part), getattr(again, part)
        assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_file_that_counts_no_updates_made_one_in_each_step() -> None:
    older = replace(state(), header=StateHeader(2, 4.0, 5, "base"))
    assert from_state(older, CONFIG, LAYOUT, "base").step == 5


def test_waking_a_policy_leaves_the_arrays_it_came_from() -> None:
    at_rest = state()
    from_state(at_rest, CONFIG, LAYOUT, "base").weights.zero_()
    assert at_rest.adapter["q.lora_A"].any()


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (replace(state(), header=replace(state().header, base="other")), "belongs to base model other"),
        (replace(state(), header=replace(state().header, alpha=8.0)), "rank 2 and alpha 8, the policy"),
        (replace(state(), moment1={}), "holds no optimizer moments"),
        (replace(state(), adapter={}), "adapter do not fit the base model: q.lora_A differs"),
        (
            replace(state(), moment2=state().moment2 | {"v.lora_B": np.zeros((2, 2), np.float32)}),
            "second moments do not fit the base model: v.lora_B differs",
        ),
    ],
)
def test_a_state_that_does_not_fit_is_refused(broken: PolicyState, message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        from_state(broken, CONFIG, LAYOUT, "base")


def test_gradients_collect_in_one_vector_and_a_step_clears_them() -> None:
    memory = PolicyMemory.of(CONFIG, LAYOUT, fresh(CONFIG, LAYOUT))
    for _ in range(2):
        sum((p * 3.0).sum() for p in memory.parameters.values()).backward()  # type: ignore[union-attr]
    assert memory.gradient.sum().item() == 6.0 * sum(p.numel() for p in memory.parameters.values())
    stepped = adamw(memory.optimised, memory.gradient, 0.1, (0.9, 0.95), 0.0)
    memory.adopt(stepped)
    assert (memory.optimised.step, memory.version) == (1, 1)
    assert not memory.gradient.any()
    assert torch.equal(memory.parameters["q.lora_B"], torch.full((5, 2), -0.1))  # the parameters see the step


SIZES = st.integers(1, 40)


@given(st.lists(st.tuples(SIZES, SIZES), min_size=1, max_size=6), st.integers(1, 9))
def test_matrices_are_aligned_and_do_not_overlap(shapes: list[tuple[int, int]], rank: int) -> None:
    layout = Layout.of({f"layer{n}": shape for n, shape in enumerate(shapes)}, rank)
    vector = np.zeros(layout.size, dtype=np.float32)
    for view in layout.views(vector).values():
        assert np.shares_memory(view, vector)
        view += 1
    assert vector.max() == 1
    assert vector.sum() == sum(rank * (inputs + outputs) for inputs, outputs in shapes)
    assert all(entry.start % ALIGNMENT == 0 for entry in layout.entries)
