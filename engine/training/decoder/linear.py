"""Linear layers with LoRA adapters (Hu et al., arXiv 2106.09685): y = x (W + s B A)ᵀ + b, and the gradients of A and B.

The rows of a pass may belong to several policies, each a contiguous span of them: the base's weights are multiplied
with all rows in one product (``matrix``), each policy's thin matrices with its own span (mLoRA, arXiv 2312.02515;
``adapters``, and ``grouped`` for cards). Layers that read the same input (q, k, v; gate, up) are fused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ...base import Layer
from ..memory.policy_memory import PolicyMemory
from .adapters import Adapters, Downs, Views
from .matrix import Matrix
from .spans import Spans

Stack = Callable[[Sequence[str], Sequence[int], Sequence[Views]], Adapters]
"""Makes the adapters of some policies on layers with one input, given the layers' names and numbers of outputs."""


@dataclass(frozen=True)
class Applied:
    """What the backward pass of a linear layer needs."""

    x: Tensor
    """(T, in): its input, in the type that the matrix reads."""
    downs: Downs = ()


@dataclass(frozen=True)
class Linear:
    """One or more layers with the same input, and the adapters of the mounted policies; none for the base alone."""

    modules: tuple[str, ...]
    """Their paths in the Hugging Face model."""
    outputs: tuple[int, ...]
    """Rows of each layer."""
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
    """The same layers with these policies' adapters; to be made again when their weights have changed.

    Backward passes add to the policies' gradients.
    """
    views = [Views.of(policy) for policy in policies]

    def over(linear: Linear) -> Linear:
        return replace(linear, adapters=stack(linear.modules, linear.outputs, views))

    return tuple(layer.map(over) for layer in layers)
