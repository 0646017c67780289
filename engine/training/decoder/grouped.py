"""The adapters of several policies on layers with one input, all policies in each product: for cards.

A kernel launch costs as much as thousands of multiplications, and 32 policies one by one need some 30,000 launches a
pass. So their matrices are stacked, with zeros to the largest rank, and each of the five products is one call: a
grouped one where the card has kernels for it (``Kernel``), else a batched one over rows padded to the longest span
(``Padded``). Products never mix the rows of two policies, so infinities of one never reach another. Memory: a copy of
the mounted adapters, and of the gradients of one layer at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .adapters import Downs, Views
from .spans import Spans

ROUND_RANK = 8
"""Ranks are rounded up to this: grouped kernels want rows of whole 16 bytes."""


class Jagged(Protocol):
    """Products of the rows of several policies with a matrix for each policy."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of all factors."""

    def times(self, x: Tensor, matrices: Tensor, spans: Spans) -> Tensor:
        """(end, m): each row of ``x`` (T, k) times its policy's matrix of ``matrices`` (policies, k, m)."""

    def outer(self, left: Tensor, right: Tensor, spans: Spans) -> Tensor:
        """leftᵀ right over each policy's rows of (T, m) and (T, k): (policies, m, k)."""


@dataclass(frozen=True)
class Kernel:
    """Grouped products of torch, which on a card take bfloat16 and compute capability 9.0 or newer.

    With other types or cards they would fall back to a loop that waits for the card at each call.
    """

    dtype: torch.dtype = torch.bfloat16

    def times(self, x: Tensor, matrices: Tensor, spans: Spans) -> Tensor:
        """See ``Jagged``."""
        return torch.nn.functional.grouped_mm(x[: spans.end], matrices, offs=spans.stops)

    def outer(self, left: Tensor, right: Tensor, spans: Spans) -> Tensor:
        """See ``Jagged``."""
        result = torch.nn.functional.grouped_mm(left[: spans.end].T, right[: spans.end], offs=spans.stops)
        for number in spans.empty:  # kernels need not write the part of an empty span
            result[number].zero_()
        return result


@dataclass(frozen=True)
class Padded:
    """Batched products over spans padded to the longest with zeros: any card, any type."""

    dtype: torch.dtype = torch.float32

    def times(self, x: Tensor, matrices: Tensor, spans: Spans) -> Tensor:
        """See ``Jagged``."""
        product = torch.bmm(_in_slots(x, spans), matrices)
        return product.view(-1, product.shape[-1]).index_select(0, spans.places)

    def outer(self, left: Tensor, right: Tensor, spans: Spans) -> Tensor:
        """See ``Jagged``."""
        return torch.bmm(_in_slots(left, spans).mT, _in_slots(right, spans))


def _in_slots(x: Tensor, spans: Spans) -> Tensor:
    """The rows of ``x`` by policy, (policies, longest, k), with zeros where a policy has fewer."""
    room = x.new_zeros(spans.end + 1, x.shape[1])
    room[:-1] = x[: spans.end]
    return room[spans.slots]


@dataclass(frozen=True)
class Layered:
    """One adapted layer among those with the same input."""

    outputs: slice
    b: Tensor
    """(policies, outputs, ranks): s B."""
    grad_b: tuple[Tensor, ...]
    """The gradient of B of each policy, (outputs, r)."""


@dataclass(frozen=True)
class Grouped:
    """Implements ``adapters.Adapters``."""

    jagged: Jagged
    scales: tuple[float, ...]
    """The factor s of each policy."""
    a: Tensor
    """(policies, layers · ranks, in)"""
    layers: tuple[Layered, ...]
    grad_a: tuple[Tensor, ...]
    """The gradient of A of each policy and layer, (r, in)."""
    ranks: tuple[int, ...]
    """The rank of each policy."""

    def add(self, y: Tensor, x: Tensor, spans: Spans) -> Downs:
        """See ``Adapters``."""
        down = self.jagged.times(x.to(self.jagged.dtype), self.a.mT, spans)
        for layer, part in zip(self.layers, self._parts(down), strict=True):
            y[: spans.end, layer.outputs] += self.jagged.times(part, layer.b.mT, spans)
        return (down,)

    def backward(self, grad: Tensor, x: Tensor, downs: Downs, by_x: Tensor, spans: Spans) -> None:
        """See ``Adapters``."""
        (down,), grad = downs, grad.to(self.jagged.dtype)
        by_downs = []  # s grad B
        for layer, part in zip(self.layers, self._parts(down), strict=True):
            own = grad[:, layer.outputs].contiguous()
            by_downs.append(self.jagged.times(own, layer.b, spans))
            by_b = self.jagged.outer(own, part, spans).float()
            torch._foreach_mul_(list(by_b), self.scales)
            _add(layer.grad_b, [one[:, :rank] for one, rank in zip(by_b, self.ranks, strict=True)])
        by_down = torch.cat(by_downs, 1)
        by_a = self.jagged.outer(by_down, x.to(self.jagged.dtype), spans).float()
        own_rows = zip(by_a, self.ranks, strict=True)
        _add(self.grad_a, [rows[:rank] for one, rank in own_rows for rows in one.chunk(len(self.layers))])
        by_x[: spans.end] += self.jagged.times(by_down, self.a, spans)

    def _parts(self, down: Tensor) -> list[Tensor]:
        """The columns of each layer."""
        return [part.contiguous() for part in down.chunk(len(self.layers), 1)]


def _add(gradients: Sequence[Tensor], more: Sequence[Tensor]) -> None:
    """Add to the gradients, in as few launches as possible."""
    torch._foreach_add_(list(gradients), list(more))


def grouped(jagged: Jagged, modules: Sequence[str], outputs: Sequence[int], policies: Sequence[Views]) -> Grouped:
    """The policies' adapters on these layers; to be made again when their weights have changed."""
    first = policies[0].weights[f"{modules[0]}.lora_A"]
    own = [views.weights[f"{modules[0]}.lora_A"].shape[0] for views in policies]
    ranks = -(-max(own) // ROUND_RANK) * ROUND_RANK
    a = first.new_zeros(len(policies), len(modules), ranks, first.shape[1])
    bs = [first.new_zeros(len(policies), count, ranks) for count in outputs]
    slots, values = [], []
    for number, (views, rank) in enumerate(zip(policies, own, strict=True)):
        for index, module in enumerate(modules):
            slots += [a[number, index, :rank], bs[index][number, :, :rank]]
            values += [views.weights[f"{module}.lora_A"], views.weights[f"{module}.lora_B"]]
    torch._foreach_copy_(slots, values)
    scales = tuple(views.scale for views in policies)
    for b in bs:
        torch._foreach_mul_(list(b), scales)
    stops = torch.tensor(outputs).cumsum(0).tolist()
    layers = tuple(
        Layered(
            slice(stop - count, stop),
            b.to(jagged.dtype),
            tuple(views.gradients[f"{module}.lora_B"] for views in policies),
        )
        for module, count, stop, b in zip(modules, outputs, stops, bs, strict=True)
    )
    grad_a = tuple(views.gradients[f"{module}.lora_A"] for views in policies for module in modules)
    return Grouped(jagged, scales, a.flatten(1, 2).to(jagged.dtype), layers, grad_a, tuple(own))
