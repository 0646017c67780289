"""Linear layers of the frozen base with LoRA adapters of one or several policies."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ...devices.machine import Precision
from ...errors import BaseModelError
from ...models.kernels import add_bfloat16_product, product as kernel_product
from ...models.tensors import Layer
from ..memory import PolicyMemory
from .packing import Spans

# Four bits (NormalFloat, Dettmers et al., arXiv 2305.14314), by the optional bitsandbytes: a quarter of bfloat16's
# memory. For each product a matrix is widened to bfloat16 and dropped again.


@dataclass(frozen=True)
class Quantised:
    """Implements ``Matrix`` in four bits."""

    functional: Any
    codes: Tensor
    """uint8: two values in each element."""
    state: Any
    writes: torch.dtype = torch.float32

    @property
    def reads(self) -> torch.dtype:
        return torch.bfloat16

    def times(self, x: Tensor) -> Tensor:
        return product(x, self.wide().T, self.writes)

    def back(self, grad: Tensor) -> Tensor:
        return product(grad.to(torch.bfloat16), self.wide(), self.writes)

    def wide(self) -> Tensor:
        weight: Tensor = self.functional.dequantize_4bit(self.codes, self.state)
        return weight


def quantising(device: torch.device, writes: torch.dtype) -> Callable[[Tensor], Quantised]:
    """The function that quantises matrices on ``device``. Raises ``BaseModelError`` if bitsandbytes does not work."""
    try:
        functional: Any = importlib.import_module("bitsandbytes.functional")
    except (ImportError, OSError, RuntimeError) as error:
        raise BaseModelError(
            f'`precision = "nf4"` needs bitsandbytes, which cannot be imported here: {error}.',
            "Install it with `pip install 'marlaas[nf4]'`, or choose another `precision` under [training] in "
            "marlaas.toml.",
        ) from error

    def quantised(weight: Tensor) -> Quantised:
        wide = weight.to(device, torch.bfloat16)
        codes, state = functional.quantize_4bit(wide, quant_type="nf4", compress_statistics=True)
        return Quantised(functional, codes, state, writes)

    return quantised


# Residual stream and norms are float32. On a card sums are float32, too: with bfloat16 factors the error is a third
# smaller than with sums of 16 bits (log-probabilities of the shipped base: 0.008 instead of 0.011 on average; sixteen
# random layers: 0.022 instead of 0.031). A processor rounds these sums in any case.


class Matrix(Protocol):
    """A matrix W (out, in) of the frozen base, and the two products of a pass, in its stored precision."""

    @property
    def reads(self) -> torch.dtype:
        """The type of its other factor."""

    @property
    def writes(self) -> torch.dtype:
        """The type of both products."""

    def times(self, x: Tensor) -> Tensor:
        """x Wᵀ (T, out), for ``x`` (T, in) of the type that it reads."""

    def back(self, grad: Tensor) -> Tensor:
        """grad W (T, in), for ``grad`` (T, out)."""


@dataclass(frozen=True)
class Dense:
    """A matrix that is kept in the type in which it is multiplied."""

    weight: Tensor
    """(out, in): float32 or bfloat16."""
    writes: torch.dtype = torch.float32

    @property
    def reads(self) -> torch.dtype:
        return self.weight.dtype

    def times(self, x: Tensor) -> Tensor:
        return product(x, self.weight.T, self.writes)

    def back(self, grad: Tensor) -> Tensor:
        return product(grad.to(self.weight.dtype), self.weight, self.writes)


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


# Each policy's adapter is multiplied with its own span of rows: infinities never reach another policy. Fastest on a
# processor; for cards see ``grouped``.

Downs = tuple[Tensor, ...]
"""x Aᵀ, (rows, ranks): one for each span, or one for all rows."""


class Adapters(Protocol):
    """The adapters of one linear layer, or of several with the same input."""

    def add(self, y: Tensor, x: Tensor, spans: Spans) -> Downs:
        """Add s x Aᵀ Bᵀ to ``y`` (T, out) for ``x`` (T, in); return what ``backward`` needs besides x."""

    def backward(self, grad: Tensor, x: Tensor, downs: Downs, by_x: Tensor, spans: Spans) -> None:
        """Add the gradients of A and B to the policies', and that of the input to ``by_x`` (T, in).

        ``grad`` is (T, out), of the type of ``by_x``. dx = s grad B A, dB = s · gradᵀ (x Aᵀ) and dA = s · (grad B)ᵀ x.
        """


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
    """One policy's matrices on layers with the same input."""

    scale: float
    a: Tensor
    """(ranks, in): the parts' A, stacked."""
    parts: tuple[LayerAdapter, ...]


@dataclass(frozen=True)
class Separate:
    """Implements ``Adapters`` with products for one policy at a time, in the type of its matrices, y and dx."""

    policies: tuple[Adapter, ...]

    def add(self, y: Tensor, x: Tensor, spans: Spans) -> Downs:
        downs = []
        for adapter, span in zip(self.policies, spans.rows, strict=True):
            down = torch.mm(x[span].to(adapter.a.dtype), adapter.a.T)
            for part in adapter.parts:
                y[span, part.outputs].addmm_(down[:, part.columns], part.b.T, alpha=adapter.scale)
            downs.append(down)
        return tuple(downs)

    def backward(self, grad: Tensor, x: Tensor, downs: Downs, by_x: Tensor, spans: Spans) -> None:
        for adapter, span, down in zip(self.policies, spans.rows, downs, strict=True):
            if span.start < span.stop:
                _backward(adapter, grad[span], x[span].to(adapter.a.dtype), down, by_x[span])


def _backward(adapter: Adapter, grad: Tensor, x: Tensor, down: Tensor, by_x: Tensor) -> None:
    by_down = torch.empty_like(down)  # grad B
    for part in adapter.parts:
        torch.mm(grad[:, part.outputs], part.b, out=by_down[:, part.columns])
        _add_product(part.grad_b, grad[:, part.outputs].T, down[:, part.columns], adapter.scale)
    by_a = torch.mm(by_down.T, x)  # (ranks, in)
    for part in adapter.parts:
        part.grad_a.add_(by_a[part.columns], alpha=adapter.scale)
    by_x.addmm_(by_down, adapter.a, alpha=adapter.scale)


def _add_product(sums: Tensor, left: Tensor, right: Tensor, scale: float) -> None:
    if left.dtype == sums.dtype:
        sums.addmm_(left, right, alpha=scale)
    else:
        add_bfloat16_product(sums, left, right, scale)


@dataclass(frozen=True)
class Views:
    """A policy's weights and gradient as matrices by name: views of its vectors."""

    scale: float
    weights: dict[str, Tensor]
    gradients: dict[str, Tensor]

    @classmethod
    def of(cls, policy: PolicyMemory) -> Views:
        layout = policy.layout
        return cls(policy.scale, layout.views(policy.optimised.weights), layout.views(policy.gradient))


def separate(
    modules: Sequence[str], outputs: Sequence[int], policies: Sequence[Views], dtype: torch.dtype = torch.float32
) -> Separate:
    """The policies' adapters on these layers; make them again when the weights have changed."""
    return Separate(tuple(_adapter(modules, outputs, views, dtype) for views in policies))


def _adapter(modules: Sequence[str], outputs: Sequence[int], views: Views, dtype: torch.dtype) -> Adapter:
    a = torch.cat([views.weights[f"{module}.lora_A"] for module in modules]).to(dtype)
    return Adapter(views.scale, a, tuple(_parts(modules, outputs, views, dtype)))


def _parts(modules: Sequence[str], outputs: Sequence[int], views: Views, dtype: torch.dtype) -> Iterator[LayerAdapter]:
    output = column = 0
    for module, count in zip(modules, outputs, strict=True):
        b, grad_a, grad_b = (
            views.weights[f"{module}.lora_B"],
            views.gradients[f"{module}.lora_A"],
            views.gradients[f"{module}.lora_B"],
        )
        rank = b.shape[1]
        yield LayerAdapter(slice(output, output + count), slice(column, column + rank), b.to(dtype), grad_a, grad_b)
        output, column = output + count, column + rank


# LoRA (Hu et al., arXiv 2106.09685): y = x (W + s B A)ᵀ + b. The base's weights are multiplied with the rows of all
# policies in one product, each policy's thin matrices with its own contiguous span (mLoRA, arXiv 2312.02515). Layers
# that read the same input (q, k, v; gate, up) are fused.

Stack = Callable[[Sequence[str], Sequence[int], Sequence[Views]], Adapters]
"""Makes the policies' adapters on layers with one input."""


@dataclass(frozen=True)
class Applied:
    """What the backward pass of a linear layer needs."""

    x: Tensor
    """(T, in): its input, in the type that the matrix reads."""
    downs: Downs = ()


@dataclass(frozen=True)
class Linear:
    """One or more layers with the same input, and the adapters of the mounted policies."""

    modules: tuple[str, ...]
    outputs: tuple[int, ...]
    matrix: Matrix
    """(sum of outputs, in)"""
    bias: Tensor | None
    """(sum of outputs,)"""
    adapters: Adapters | None = None

    def forward(self, x: Tensor, spans: Spans) -> tuple[Tensor, Applied]:
        """(T, in) → (T, out) of the type that the matrix writes, and what ``backward`` needs."""
        x = x.to(self.matrix.reads)
        y = self.matrix.times(x)
        if self.bias is not None:
            y.add_(self.bias)
        return y, Applied(x, self.adapters.add(y, x, spans) if self.adapters is not None else ())

    def backward(self, grad: Tensor, applied: Applied, spans: Spans) -> Tensor:
        """Add the gradients of A and B; return that by the input, (T, in), from ``grad``, (T, out)."""
        grad = grad.to(self.matrix.writes)
        by_x = self.matrix.back(grad)
        if self.adapters is not None:
            self.adapters.backward(grad, applied.x, applied.downs, by_x, spans)
        return by_x


def adapted(
    layers: Sequence[Layer[Linear]], policies: Sequence[PolicyMemory], stack: Stack
) -> tuple[Layer[Linear], ...]:
    """The same layers with these policies' adapters; make them again when the weights have changed."""
    views = [Views.of(policy) for policy in policies]

    def over(linear: Linear) -> Linear:
        return replace(linear, adapters=stack(linear.modules, linear.outputs, views))

    return tuple(layer.map(over) for layer in layers)


# A kernel launch costs as much as thousands of multiplications, and 32 policies one by one need some 30,000 launches a
# pass. So matrices are stacked, with zeros to the largest rank: grouped products if the card has kernels for them
# (``Kernel``), else batched ones over padded spans (``Padded``). Products never mix the rows of two policies.

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
    """Grouped products of torch: bfloat16 and compute capability 9.0 or newer.

    Otherwise they would be a loop that waits for the card at each call.
    """

    dtype: torch.dtype = torch.bfloat16

    def times(self, x: Tensor, matrices: Tensor, spans: Spans) -> Tensor:
        return torch.nn.functional.grouped_mm(x[: spans.end], matrices, offs=spans.stops)

    def outer(self, left: Tensor, right: Tensor, spans: Spans) -> Tensor:
        result = torch.nn.functional.grouped_mm(left[: spans.end].T, right[: spans.end], offs=spans.stops)
        for number in spans.empty:
            result[number].zero_()
        return result


@dataclass(frozen=True)
class Padded:
    """Batched products over spans padded to the longest with zeros: any card, any type."""

    dtype: torch.dtype = torch.float32

    def times(self, x: Tensor, matrices: Tensor, spans: Spans) -> Tensor:
        product = torch.bmm(_in_slots(x, spans), matrices)
        return product.view(-1, product.shape[-1]).index_select(0, spans.places)

    def outer(self, left: Tensor, right: Tensor, spans: Spans) -> Tensor:
        return torch.bmm(_in_slots(left, spans).mT, _in_slots(right, spans))


def _in_slots(x: Tensor, spans: Spans) -> Tensor:
    """The rows of ``x`` by policy, (policies, longest, k), padded with zeros."""
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
    """Implements ``Adapters``."""

    jagged: Jagged
    scales: tuple[float, ...]
    a: Tensor
    """(policies, layers · ranks, in)"""
    layers: tuple[Layered, ...]
    grad_a: tuple[Tensor, ...]
    """The gradient of A of each policy and layer, (r, in)."""
    ranks: tuple[int, ...]

    def add(self, y: Tensor, x: Tensor, spans: Spans) -> Downs:
        down = self.jagged.times(x.to(self.jagged.dtype), self.a.mT, spans)
        for layer, part in zip(self.layers, self._parts(down), strict=True):
            y[: spans.end, layer.outputs] += self.jagged.times(part, layer.b.mT, spans)
        return (down,)

    def backward(self, grad: Tensor, x: Tensor, downs: Downs, by_x: Tensor, spans: Spans) -> None:
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
        return [part.contiguous() for part in down.chunk(len(self.layers), 1)]


def _add(gradients: Sequence[Tensor], more: Sequence[Tensor]) -> None:
    torch._foreach_add_(list(gradients), list(more))


def grouped(jagged: Jagged, modules: Sequence[str], outputs: Sequence[int], policies: Sequence[Views]) -> Grouped:
    """The policies' adapters on these layers; make them again when the weights have changed."""
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
