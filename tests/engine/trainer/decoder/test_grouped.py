"""Adapters of several policies in grouped products give what each gives on its own rows."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from marlaas.engine.trainer.decoder.linear import Adapters, Jagged, Kernel, Padded, Views, grouped, separate
from marlaas.engine.trainer.decoder.packing import Spans

from ....examples import examples

MODULES, OUTPUTS, INPUTS = ("q", "k"), (24, 8), 16
KERNELS: list[Jagged] = [Padded(), Kernel(torch.float32), Padded(torch.bfloat16), Kernel()]


def spans_of(counts: list[int]) -> Spans:
    stops = np.cumsum(counts)
    rows = tuple(slice(int(stop) - count, int(stop)) for count, stop in zip(counts, stops, strict=True))
    return Spans(rows, torch.tensor(stops, dtype=torch.int32))


def policies(ranks: list[int]) -> list[Views]:
    """Random ones, whose gradients are not empty."""
    draw = torch.Generator().manual_seed(sum(ranks))
    found = []
    for rank in ranks:
        shapes = {f"{name}.lora_A": (rank, INPUTS) for name in MODULES}
        shapes |= {f"{name}.lora_B": (out, rank) for name, out in zip(MODULES, OUTPUTS, strict=True)}
        weights, gradients = (
            {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()} for _ in range(2)
        )
        found.append(Views(0.5 + rank, weights, gradients))
    return found


def passed(adapters: Adapters, x: Tensor, grad: Tensor, spans: Spans) -> tuple[Tensor, Tensor]:
    """What is added to outputs and to gradients by the input."""
    y, by_x = torch.ones(len(x), sum(OUTPUTS)), torch.ones(len(x), INPUTS)
    downs = adapters.add(y, x, spans)
    adapters.backward(grad, x, downs, by_x, spans)
    return y, by_x


@settings(max_examples=examples(8), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 11), st.integers(0, 9)), min_size=1, max_size=6), st.integers(0, 3))
def test_all_at_once_is_as_one_by_one(drawn: list[tuple[int, int]], unused: int) -> None:
    ranks, counts = [rank for rank, _ in drawn], [count for _, count in drawn]
    if not sum(counts):
        counts[0] = 1
    spans, rows = spans_of(counts), sum(counts) + unused
    x, grad = torch.randn(rows, INPUTS), torch.randn(rows, sum(OUTPUTS))
    plain = policies(ranks)
    expected = passed(separate(MODULES, OUTPUTS, plain), x, grad, spans)
    for kernel in KERNELS:
        own = policies(ranks)
        reads = kernel.dtype
        found = passed(grouped(kernel, MODULES, OUTPUTS, own), x.to(reads), grad, spans)
        tolerance = 1e-5 if reads == torch.float32 else 3e-2
        for ours, theirs in zip(found, expected, strict=True):
            assert float((ours - theirs).norm()) <= tolerance * (1 + float(theirs.norm()))
        for one, other in zip(own, plain, strict=True):
            for name, gradient in other.gradients.items():
                error = float((one.gradients[name] - gradient).norm())
                assert error <= tolerance * (1 + float(gradient.norm())), name


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_is_not_finite_stays_with_whose_it_is(kernel: Jagged) -> None:
    spans, own = spans_of([3, 4, 2]), policies([2, 3, 2])
    x, grad = torch.randn(9, INPUTS), torch.randn(9, sum(OUTPUTS))
    x[4], grad[3] = torch.inf, torch.nan
    y, by_x = passed(grouped(kernel, MODULES, OUTPUTS, own), x.to(kernel.dtype), grad, spans)
    for found in (y, by_x):
        assert not found[3:7].isfinite().all()
        assert found[:3].isfinite().all() and found[7:].isfinite().all()
    clean = [all(gradient.isfinite().all() for gradient in views.gradients.values()) for views in own]
    assert clean == [True, False, True]
