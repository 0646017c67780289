"""Linear layers of the frozen base with LoRA adapters of one or several policies."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
# random layers: 0.022 instead of 0.031). A processor rounds these sums in any case.


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

    def times(self, x: Tensor) -> Tensor:
        """x Wᵀ (T, out), for ``x`` (T, in) of the type that it reads."""
        return product(x, self.wide.T, self.writes)

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
# infinities never reach another policy. Layers that read the same input (q, k, v; gate, up) are fused.
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
        parts, output, column = [], 0, 0
        for module, count in zip(linear.modules, linear.outputs, strict=True):
            a, b = f"{module}.lora_A", f"{module}.lora_B"
            columns = slice(column, column + len(weights[a]))
            factor = weights[b].to(linear.matrix.writes)
            parts.append(LayerAdapter(slice(output, output + count), columns, factor, gradients[a], gradients[b]))
            output, column = output + count, columns.stop
        stacked = torch.cat([weights[f"{module}.lora_A"] for module in linear.modules])
        return cls(scale, stacked.to(linear.matrix.writes), tuple(parts))

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


@dataclass(frozen=True)
class Applied:
    """What the backward pass of a linear layer needs."""

    x: Tensor
    """(T, in): its input, in the type that the matrix reads."""
    downs: tuple[Tensor, ...]
    """x Aᵀ, (rows, ranks), of each policy."""


@dataclass(frozen=True)
class Linear:
    """One or more layers with the same input, and the adapters of the mounted policies."""

    modules: tuple[str, ...]
    outputs: tuple[int, ...]
    matrix: Matrix
    """(sum of outputs, in)"""
    bias: Tensor | None
    """(sum of outputs,)"""
    adapters: tuple[Adapter, ...] = ()

    def forward(self, x: Tensor, spans: Spans) -> tuple[Tensor, Applied]:
        """(T, in) → (T, out) of the type that the matrix writes, and what ``backward`` needs."""
        x = x.to(self.matrix.reads)
        y = self.matrix.times(x)
        if self.bias is not None:
            y.add_(self.bias)
        downs = [adapter.add(y[span], x[span]) for adapter, span in zip(self.adapters, spans, strict=False)]
        return y, Applied(x, tuple(downs))

    def backward(self, grad: Tensor, applied: Applied, spans: Spans) -> Tensor:
        """Add the gradients of A and B; return that by the input, (T, in), from ``grad``, (T, out)."""
        grad = grad.to(self.matrix.writes)
        by_x = self.matrix.back(grad)
        for adapter, span, down in zip(self.adapters, spans, applied.downs, strict=False):
            if span.start < span.stop:
                adapter.backward(grad[span], applied.x[span], down, by_x[span])
        return by_x


def adapted(layers: Sequence[Layer[Linear]], policies: Sequence[PolicyMemory]) -> tuple[Layer[Linear], ...]:
    """The same layers with these policies' adapters; make them again when the weights have changed."""

    views = [(p.scale, p.layout.views(p.optimised.weights), p.layout.views(p.gradient)) for p in policies]

    def over(linear: Linear) -> Linear:
        return replace(linear, adapters=tuple(Adapter.of(policy, linear) for policy in views))

    return tuple(layer.map(over) for layer in layers)
