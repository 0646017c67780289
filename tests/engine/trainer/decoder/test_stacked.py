"""Adapters of several policies in batched products give what each gives on its own rows."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from marlaas.engine.trainer.decoder.linear import Adapter, Linear, Matrix, Policy, Spans, Stacked

from ....examples import examples

MODULES, OUTPUTS, INPUTS = ("q", "k"), (24, 8), 16


def spans_of(counts: list[int]) -> Spans:
    return tuple(slice(begin, end) for begin, end in pairwise([0, *np.cumsum(counts).tolist()]))


def policies(ranks: list[int]) -> list[Policy]:
    """Random, with gradients that are not empty."""
    draw = torch.Generator().manual_seed(sum(ranks))
    drawn = []
    for rank in ranks:
        shapes = {f"{name}.lora_A": (rank, INPUTS) for name in MODULES}
        shapes |= {f"{name}.lora_B": (out, rank) for name, out in zip(MODULES, OUTPUTS, strict=True)}
        weights, gradients = (
            {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()} for _ in range(2)
        )
        drawn.append((0.5 + rank, weights, gradients))
    return drawn


def passed(drawn: list[Policy], stacked: bool, x: Tensor, grad: Tensor, spans: Spans) -> tuple[Tensor, Tensor]:
    """Outputs, and gradients by the input."""
    linear = Linear(MODULES, OUTPUTS, Matrix(torch.zeros(sum(OUTPUTS), INPUTS)), None)
    adapters = tuple(Adapter.of(each, linear) for each in drawn)
    linear = Linear(MODULES, OUTPUTS, linear.matrix, None, Stacked.of(adapters) if stacked else adapters)
    y, applied = linear.forward(x, spans)
    return y, linear.backward(grad, applied, spans)


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 11), st.integers(0, 9)), min_size=1, max_size=6), st.integers(0, 3))
def test_all_at_once_is_as_one_by_one(drawn: list[tuple[int, int]], unused: int) -> None:
    ranks, counts = [rank for rank, _ in drawn], [count for _, count in drawn]
    spans, rows = spans_of(counts), sum(counts) + unused
    x, grad = torch.randn(rows, INPUTS), torch.randn(rows, sum(OUTPUTS))
    plain, ours = policies(ranks), policies(ranks)
    expected, found = (passed(each, stacked, x, grad, spans) for each, stacked in ((plain, False), (ours, True)))
    for result, right in zip(found, expected, strict=True):
        torch.testing.assert_close(result, right, rtol=1e-4, atol=1e-3)
    for (_, _, gradients), (_, _, others) in zip(ours, plain, strict=True):
        for name, gradient in others.items():
            torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("stacked", [False, True])
def test_values_that_are_not_finite_stay_with_their_policy(stacked: bool) -> None:
    spans, drawn = spans_of([3, 4, 2]), policies([2, 3, 2])
    x, grad = torch.randn(9, INPUTS), torch.randn(9, sum(OUTPUTS))
    x[4], grad[3], drawn[1][1]["q.lora_A"][0, 0] = torch.inf, torch.nan, torch.inf
    drawn[1][1]["k.lora_B"][0, 0] = torch.nan
    for result in passed(drawn, stacked, x, grad, spans):
        assert not result[3:7].isfinite().all()
        assert result[:3].isfinite().all() and result[7:].isfinite().all()
    clean = [all(gradient.isfinite().all() for gradient in gradients.values()) for _, _, gradients in drawn]
    assert clean == [True, False, True]
