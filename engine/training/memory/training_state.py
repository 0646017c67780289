"""All of a policy's training on the host: what is paged out of a trainer, and what moves from one trainer to another.

A policy whose state was moved, also in the middle of an accumulation, goes on to the last bit as if it had stayed. A
trainer keeps no random state: what is drawn for a policy is drawn when it is opened. Knows no tensors and no devices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..inputs import PolicyConfig, TrainGroup
from .layout import Layout

Numbers: TypeAlias = "NDArray[np.float32]"


@dataclass(frozen=True, eq=False)
class TrainingState:
    """A policy between two of its calls."""

    config: PolicyConfig
    layout: Layout
    weights: Numbers
    """float32 (P,), as are both moments."""
    moment1: Numbers
    moment2: Numbers
    gradient: Numbers | None
    """float32 (P,): the sum over the groups of the step so far; None while there are none, where it is zero."""
    reference: Numbers | None
    """float32 (P,): the adapter that the KL term pulls to; None: the base."""
    updates: int
    """Optimizer updates made."""
    version: int
    """Steps made."""
    tokens: int
    """Trained tokens of the groups in the gradient."""
    rehearsal: tuple[TrainGroup, ...]
    """With several epochs: the groups in the gradient, with the log-probabilities of the first epoch."""
    fault: str
    """Where a loss was not finite, in words."""

    @property
    def size(self) -> int:
        """Bytes of its vectors."""
        return sum(vector.nbytes for vector in self.vectors)

    @property
    def vectors(self) -> tuple[Numbers, ...]:
        """Weights, both moments, and the gradient and the reference if there are any."""
        vectors = (self.weights, self.moment1, self.moment2, self.gradient, self.reference)
        return tuple(vector for vector in vectors if vector is not None)

    def checksum(self) -> str:
        """SHA-256 over all of it, as 64 hex digits; equal for equal states, in whatever process they are."""
        digest = hashlib.sha256()
        for piece in self._pieces():
            digest.update(piece)
        return digest.hexdigest()

    def _pieces(self) -> Iterator[bytes | memoryview]:
        present = (self.gradient is not None, self.reference is not None)
        plain = (self.config, self.layout, self.updates, self.version, self.tokens, self.fault, present)
        yield repr(plain).encode()
        for vector in self.vectors:
            yield _bytes(vector)
        for group in self.rehearsal:
            yield repr((group.number, len(group.sequences))).encode()
            for sequence in group.sequences:
                for field in fields(sequence):
                    value = getattr(sequence, field.name)
                    yield f"{field.name} {value.shape if isinstance(value, np.ndarray) else value!r} ".encode()
                    if isinstance(value, np.ndarray):
                        yield _bytes(value)


@dataclass(frozen=True)
class MovedState:
    """A state on its way to another trainer, with the checksum that it was sent with."""

    state: TrainingState
    checksum: str


def _bytes(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).data
