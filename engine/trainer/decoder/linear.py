"""Linear layers of the frozen base with LoRA adapters of one or several policies."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ...devices.machine import Precision
from ...errors import BaseModelError
from ...models.kernels import add_bfloat16_product, product as kernel_product
from ...models.tensors import Layer
from ..memory import PolicyMemory

Spans = tuple[slice, ...]
"""The rows of each policy, in order from 0; rows after the last span belong to no policy."""

# Residual stream and norms are float32. On a card sums are float32, too: with bfloat16 factors the error is a third
# smaller than with sums of 16 bits (log-probabilities of the shipped base: 0.008 instead of 0.011 on average; sixteen
# random layers: 0.022 instead of 0.031). A processor rounds these sums in any case. There the adapter's term must be in
# the sum before it is rounded: added afterwards, what is smaller than half of a last bit is always lost. Of the change
# of log-probabilities by the first steps of SmolLM2-135M half remained. The backward pass may lose its term of dx: that
# is a thousandth of the rest then.


@dataclass(frozen=True)
class Matrix:
    """A matrix W (out, in) of the frozen base, and the two products of a pass."""

    weight: Tensor
    """(out, in) in float32 or bfloat16, or the codes of four bits, two in each byte."""
    writes: torch.dtype = torch.float32
    """The type of both products."""
    widen: Callable[[Tensor], Tensor] | None = None
    """Makes bfloat16 of four bits, for each product."""

    @property
    def reads(self) -> torch.dtype:
        return self.weight.dtype if self.widen is None else torch.bfloat16

    @property
    def wide(self) -> Tensor:
        return self.weight if self.widen is None else self.widen(self.weight)

    @property
    def rounds(self) -> bool:
        """Products are rounded: terms have to be in ``sums`` before them."""
        return self.writes != torch.float32

    def times(self, x: Tensor, sums: Tensor | None = None) -> Tensor:
        """x Wᵀ (T, out), for ``x`` (T, in) of the type that it reads; added to ``sums`` of a matrix that rounds."""
        return product(x, self.wide.T, self.writes) if sums is None else sums.addmm_(x, self.wide.T)

    def back(self, grad: Tensor) -> Tensor:
        """grad W (T, in), for ``grad`` (T, out)."""
        return product(grad.to(self.reads), self.wide, self.writes)


def quantising(device: torch.device, writes: torch.dtype) -> Callable[[Tensor], Matrix]:
    """The function that quantises matrices on ``device`` to four bits: NormalFloat (Dettmers et al., arXiv 2305.14314).

    A quarter of bfloat16's memory. Raises ``BaseModelError`` if the optional bitsandbytes does not work.
    """
    try:
        functional: Any = importlib.import_module("bitsandbytes.functional")
    except (ImportError, OSError, RuntimeError) as error:
        raise BaseModelError(
            f'`precision = "nf4"` needs bitsandbytes, which cannot be imported here: {error}.',
            "Install it with `pip install 'marlaas[nf4]'`, or choose another `precision` under [training] in "
            "marlaas.toml.",
        ) from error

    def quantised(weight: Tensor) -> Matrix:
        wide = weight.to(device, torch.bfloat16)
        codes, state = functional.quantize_4bit(wide, quant_type="nf4", compress_statistics=True)
        return Matrix(codes, writes, lambda packed: functional.dequantize_4bit(packed, state))

    return quantised


def product(left: Tensor, right: Tensor, writes: torch.dtype) -> Tensor:
    """(n, m) in type ``writes`` of (n, k) and (k, m) in one type.

    A card returns the float32 sums of a bfloat16 product as they are; a processor rounds them first.
    """
    if left.dtype == torch.float32:
        return kernel_product(left, right)
    if left.device.type == "cpu":
        return torch.mm(left, right).to(writes)
    return torch.mm(left, right, out_dtype=writes)


def loaded_as(precision: Precision) -> torch.dtype:
    """The type in which the base is loaded for a precision."""
    return torch.float32 if precision == "f32" else torch.bfloat16


# LoRA (Hu et al., arXiv 2106.09685): y = x (W + s B A)ᵀ + b. The base's weights are multiplied with the rows of all
# policies in one product, each policy's thin matrices with its own contiguous span (mLoRA, arXiv 2312.02515), so that
# infinities never reach another policy. One by one is fastest on a processor; for cards see ``Stacked``. Layers that
# read the same input (q, k, v; gate, up) are fused.
#
# Backward: dx = s grad B A, dB = s · gradᵀ (x Aᵀ) and dA = s · (grad B)ᵀ x.


Policy = tuple[float, dict[str, Tensor], dict[str, Tensor]]
"""Its scale, and the views of its weights and of its gradient by name."""


@dataclass(frozen=True)
class LayerAdapter:
    """The adapter of one layer: its outputs among those of a fused layer, and its columns of x Aᵀ."""

    outputs: slice
    columns: slice
    b: Tensor
    """(outputs, r)"""
    grad_a: Tensor
    """(r, in): every backward pass adds to it."""
    grad_b: Tensor
    """(outputs, r): likewise."""


def _matrix(views: dict[str, Tensor], name: str, empty: tuple[int, int]) -> Tensor:
    """The matrix of that name; one of rank 0 for a layer that is no target of the policy."""
    if name in views:
        return views[name]
    device = next(iter(views.values())).device
    return torch.empty(empty, device=device)


@dataclass(frozen=True)
class Adapter:
    """One policy's matrices on layers with the same input, in the type of the products y and dx."""

    scale: float
    a: Tensor
    """(ranks, in): the parts' A, stacked."""
    parts: tuple[LayerAdapter, ...]

    @classmethod
    def of(cls, policy: Policy, linear: Linear) -> Adapter:
        scale, weights, gradients = policy
        parts, downs, output, column = [], [], 0, 0
        for module, count in zip(linear.modules, linear.outputs, strict=True):
            a, grad_a = (_matrix(each, f"{module}.lora_A", (0, linear.inputs)) for each in (weights, gradients))
            b, grad_b = (_matrix(each, f"{module}.lora_B", (count, 0)) for each in (weights, gradients))
            outputs, columns = slice(output, output + count), slice(column, column + len(a))
            parts.append(LayerAdapter(outputs, columns, b.to(linear.matrix.writes), grad_a, grad_b))
            downs.append(a)
            output, column = outputs.stop, columns.stop
        return cls(scale, torch.cat(downs).to(linear.matrix.writes), tuple(parts))

    def store(self, y: Tensor, x: Tensor) -> Tensor:
        """As ``add``, but over what stands in ``y``."""
        down = torch.mm(x, self.a.T)
        scaled = down * self.scale
        for part in self.parts:
            torch.mm(scaled[:, part.columns], part.b.T, out=y[:, part.outputs])
        return down

    def add(self, y: Tensor, x: Tensor) -> Tensor:
        """Add s x Aᵀ Bᵀ to ``y`` (T, out) for ``x`` (T, in); return x Aᵀ (T, ranks)."""
        down = torch.mm(x.to(self.a.dtype), self.a.T)
        for part in self.parts:
            y[:, part.outputs].addmm_(down[:, part.columns], part.b.T, alpha=self.scale)
        return down

    def backward(self, grad: Tensor, x: Tensor, down: Tensor, by_x: Tensor) -> None:
        """Add the gradients of A and B to the policy's, and that of the input to ``by_x`` (T, in)."""
        by_down = torch.empty_like(down)  # grad B
        for part in self.parts:
            own = grad[:, part.outputs]
            torch.mm(own, part.b, out=by_down[:, part.columns])
            if own.dtype == part.grad_b.dtype:
                part.grad_b.addmm_(own.T, down[:, part.columns], alpha=self.scale)
            else:
                add_bfloat16_product(part.grad_b, own.T, down[:, part.columns], self.scale)
        by_a = torch.mm(by_down.T, x.to(self.a.dtype))  # (ranks, in)
        for part in self.parts:
            part.grad_a.add_(by_a[part.columns], alpha=self.scale)
        by_x.addmm_(by_down, self.a, alpha=self.scale)


@lru_cache(maxsize=8)
def _slots(bounds: tuple[tuple[int, int], ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Each policy's rows, (policies, longest), padded with the row after all of them; and the slot of each row."""
    longest, rows = max(stop - start for start, stop in bounds), bounds[-1][1]
    slots = torch.full((len(bounds), longest), rows)
    for number, (start, stop) in enumerate(bounds):
        slots[number, : stop - start] = torch.arange(start, stop)
    places = torch.nonzero(slots.flatten() < rows).flatten()
    return slots.to(device), places.to(device)


@dataclass(frozen=True)
class Stacked:
    """Adapters of several policies in batched products, for cards.

    One by one, 32 policies need some 30,000 launches a pass, each as long as thousands of multiplications. Ranks are
    padded to the largest and spans to the longest, with zeros. No product mixes rows of two policies.
    """

    adapters: tuple[Adapter, ...]
    a: Tensor
    """(policies, parts · ranks, in)"""
    b: tuple[Tensor, ...]
    """s B of each part, (policies, outputs, ranks)."""

    @classmethod
    def of(cls, adapters: tuple[Adapter, ...]) -> Stacked:
        parts, ranks = len(adapters[0].parts), max(part.b.shape[1] for each in adapters for part in each.parts)
        a = adapters[0].a.new_zeros(len(adapters), parts, ranks, adapters[0].a.shape[1])
        b = [a.new_zeros(len(adapters), len(part.b), ranks) for part in adapters[0].parts]
        for number, adapter in enumerate(adapters):
            for place, part in enumerate(adapter.parts):
                rank = part.b.shape[1]
                a[number, place, :rank] = adapter.a[part.columns]
                torch.mul(part.b, adapter.scale, out=b[place][number, :, :rank])
        return cls(adapters, a.flatten(1, 2), tuple(b))

    def add(self, y: Tensor, x: Tensor, spans: Spans) -> Tensor:
        """As ``Adapter.add``; x Aᵀ is (policies, longest, parts · ranks)."""
        down = torch.bmm(self._by_policy(x, spans), self.a.mT)
        for part, b, own in zip(self.adapters[0].parts, self.b, down.chunk(len(self.b), 2), strict=True):
            self._add_rows(y[:, part.outputs], torch.bmm(own, b.mT), spans)
        return down

    def backward(self, grad: Tensor, x: Tensor, down: Tensor, by_x: Tensor, spans: Spans) -> None:
        """As ``Adapter.backward``."""
        grad, by_downs = self._by_policy(grad, spans), []  # s grad B
        scales = [adapter.scale for adapter in self.adapters]
        for place, own in enumerate(down.chunk(len(self.b), 2)):
            parts = [adapter.parts[place] for adapter in self.adapters]
            by_output = grad[..., parts[0].outputs]
            by_downs.append(torch.bmm(by_output, self.b[place]))
            by_b = list(torch.bmm(by_output.mT, own).float())
            torch._foreach_mul_(by_b, scales)
            sums = [sum_[:, : part.grad_b.shape[1]] for sum_, part in zip(by_b, parts, strict=True)]
            torch._foreach_add_([part.grad_b for part in parts], sums)
        by_down = torch.cat(by_downs, 2)
        by_a = torch.bmm(by_down.mT, self._by_policy(x, spans)).float()
        for place, own in enumerate(by_a.chunk(len(self.b), 1)):
            grads = [adapter.parts[place].grad_a for adapter in self.adapters]
            torch._foreach_add_(grads, [rows[: len(each)] for rows, each in zip(own, grads, strict=True)])
        self._add_rows(by_x, torch.bmm(by_down, self.a), spans)

    def _by_policy(self, rows: Tensor, spans: Spans) -> Tensor:
        """(policies, longest, k) of (T, k)."""
        slots, _ = _slots(tuple((span.start, span.stop) for span in spans), rows.device)
        rows = rows[: spans[-1].stop].to(self.a.dtype)
        return torch.cat([rows, rows.new_zeros(1, rows.shape[1])])[slots]

    def _add_rows(self, sums: Tensor, terms: Tensor, spans: Spans) -> None:
        _, places = _slots(tuple((span.start, span.stop) for span in spans), sums.device)
        sums[: spans[-1].stop] += terms.flatten(0, 1).index_select(0, places)


@dataclass(frozen=True)
class Applied:
    """What the backward pass of a linear layer needs."""

    x: Tensor
    """(T, in): its input, in the type that the matrix reads."""
    downs: tuple[Tensor, ...]
    """x Aᵀ, (rows, ranks), of each policy; of all at once if ``Stacked``."""


@dataclass(frozen=True)
class Linear:
    """One or more layers with the same input, and the adapters of the mounted policies."""

    modules: tuple[str, ...]
    outputs: tuple[int, ...]
    inputs: int
    matrix: Matrix
    """(sum of outputs, in)"""
    bias: Tensor | None
    """(sum of outputs,)"""
    adapters: tuple[Adapter, ...] | Stacked = ()

    def forward(self, x: Tensor, spans: Spans) -> tuple[Tensor, Applied]:
        """(T, in) → (T, out) of the type that the matrix writes, and what ``backward`` needs."""
        x = x.to(self.matrix.reads)
        if self.matrix.rounds and not isinstance(self.adapters, Stacked) and self.adapters:
            y = x.new_empty(len(x), sum(self.outputs))
            y[spans[-1].stop :] = 0
            downs = tuple(adapter.store(y[span], x[span]) for adapter, span in zip(self.adapters, spans, strict=False))
            self.matrix.times(x, y)
            return y if self.bias is None else y.add_(self.bias), Applied(x, downs)
        y = self.matrix.times(x)
        if self.bias is not None:
            y.add_(self.bias)
        if isinstance(self.adapters, Stacked):
            return y, Applied(x, (self.adapters.add(y, x, spans),))
        downs = tuple(adapter.add(y[span], x[span]) for adapter, span in zip(self.adapters, spans, strict=False))
        return y, Applied(x, downs)

    def backward(self, grad: Tensor, applied: Applied, spans: Spans) -> Tensor:
        """Add the gradients of A and B; return that by the input, (T, in), from ``grad``, (T, out)."""
        grad = grad.to(self.matrix.writes)
        by_x = self.matrix.back(grad)
        if isinstance(self.adapters, Stacked):
            self.adapters.backward(grad, applied.x, applied.downs[0], by_x, spans)
            return by_x
        for adapter, span, down in zip(self.adapters, spans, applied.downs, strict=False):
            if span.start < span.stop:
                adapter.backward(grad[span], applied.x[span], down, by_x[span])
        return by_x


def adapted(
    layers: Sequence[Layer[Linear]], policies: Sequence[PolicyMemory], stacked: bool = False
) -> tuple[Layer[Linear], ...]:
    """The same layers with these policies' adapters; make them again when the weights have changed."""
    views = [(p.scale, p.layout.views(p.optimised.weights), p.layout.views(p.gradient)) for p in policies]

    def over(linear: Linear) -> Linear:
        adapters = tuple(Adapter.of(policy, linear) for policy in views)
        return replace(linear, adapters=Stacked.of(adapters) if stacked and len(views) > 1 else adapters)

    return tuple(layer.map(over) for layer in layers)
