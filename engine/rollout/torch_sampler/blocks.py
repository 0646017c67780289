"""The base's weights as a pass multiplies with them, one ``Block`` for each layer.

In float32 matrices are stored (in, out), the order in which libraries read them fastest where rows are few; in bfloat16
as ``halves`` says. Adapters are added beside them (``mixing``), always in float32.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol, TypeVar

from torch import Tensor

from ...base import Layer, Stacked, product
from .halves import HalfHead, HalfMatrix, times
from .mixing import Mix, Runs

L = TypeVar("L")


class Linear(Protocol):
    """y = x Wᵀ + b, and what each row's adapter adds."""

    def __call__(self, x: Tensor, mix: Mix | Runs | None) -> Tensor:
        """(n, in) → (n, out) in float32"""


Head = Callable[[Tensor], Tensor]
"""From hidden states (n, H) to logits (n, V), both in float32; these may be valid until the next call only."""


@dataclass(frozen=True)
class Exact:
    """In float32."""

    number: int
    """Its index among all fused layers of the base."""
    weight: Tensor
    """Wᵀ, (in, out)"""
    bias: Tensor | None
    """(out,)"""

    def __call__(self, x: Tensor, mix: Mix | Runs | None) -> Tensor:
        """See the protocol."""
        y = product(x, self.weight, self.bias)
        if mix is not None:
            mix.add(self.number, x, y)
        return y


@dataclass(frozen=True)
class Rounded:
    """With W and x in bfloat16."""

    number: int
    matrix: HalfMatrix
    bias: Tensor | None
    alike: bool
    """Whether the last bits of a row depend on nothing but itself (``halves.times``)."""

    def __call__(self, x: Tensor, mix: Mix | Runs | None) -> Tensor:
        """See the protocol."""
        y = times(self.matrix, x.bfloat16(), self.alike)
        if self.bias is not None:
            y += self.bias
        if mix is not None:
            mix.add(self.number, x.float(), y)
        return y


@dataclass(frozen=True)
class Weights:
    """What all passes of one kind multiply with."""

    blocks: Sequence[Layer[Exact] | Layer[Rounded]]
    head: Head


@dataclass(frozen=True)
class Loaded:
    """The weights for both kinds of pass; matrices are there once."""

    alike: Weights
    """The last bits of a row depend on nothing but itself."""
    fast: Weights
    """They may depend on the number of rows."""
    nbytes: int
    """Bytes of the matrices of all layers, which every pass reads."""


def exact(layers: deque[Layer[Stacked]], output: Tensor) -> Loaded:
    """Weights in float32, of layers that were loaded so and the output matrix (V, H): both kinds of pass are one.

    ``layers`` is empty afterwards: each is freed as soon as it is converted.
    """
    numbers, size = count(), _bytes(layers)

    def linear(stacked: Stacked) -> Exact:
        return Exact(next(numbers), stacked.weight.T.contiguous(), stacked.bias)

    weights = Weights(tuple(_converted(layers, linear)), lambda x: product(x, output.T))
    return Loaded(weights, weights, size)


def rounded(layers: deque[Layer[Stacked]], output: Tensor) -> Loaded:
    """As ``exact``, with all matrices in bfloat16; biases and norms stay in float32."""
    numbers, size, head = count(), _bytes(layers), HalfHead(output)

    def linear(stacked: Stacked) -> Rounded:
        return Rounded(next(numbers), HalfMatrix(stacked.weight), stacked.bias, alike=True)

    alike = tuple(_converted(layers, linear))
    fast = tuple(block.map(lambda linear: replace(linear, alike=False)) for block in alike)
    return Loaded(
        Weights(alike, lambda x: head.logits(x.bfloat16(), alike=True)),
        Weights(fast, lambda x: head.logits(x.bfloat16(), alike=False)),
        size,
    )


def _converted(layers: deque[Layer[Stacked]], linear: Callable[[Stacked], L]) -> Iterator[Layer[L]]:
    """All layers; their linear ones are made in the order in which the model applies them."""
    while layers:
        yield layers.popleft().map(linear)


def _bytes(layers: Iterable[Layer[Stacked]]) -> int:
    return sum(stacked.weight.nbytes for layer in layers for stacked in layer.linears)
