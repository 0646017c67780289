"""The place of each LoRA matrix in a policy's flat vector.

One vector per policy makes clipping, optimizer step and state file single operations. Every matrix begins at a multiple
of 64 bytes, so that vectorised kernels take the same path, and give the same bits, for each policy. Knows shapes and
names only; its views work on numpy arrays and torch tensors alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

ALIGNMENT = 16
"""In float32 elements: 64 bytes, a cache line and an AVX-512 register."""


class Vector(Protocol):
    """A one-dimensional numpy array or torch tensor, of which views are made."""

    def __getitem__(self, index: slice, /) -> Self: ...

    def reshape(self, shape: tuple[int, int], /) -> Self:
        """Reshape without copying, for a contiguous piece."""


V = TypeVar("V", bound=Vector)


@dataclass(frozen=True)
class Entry:
    """One matrix: ``<module>.lora_A`` (r, in) or ``<module>.lora_B`` (out, r)."""

    name: str
    shape: tuple[int, int]
    start: int

    @property
    def stop(self) -> int:
        """Index after its last element."""
        return self.start + self.shape[0] * self.shape[1]


@dataclass(frozen=True)
class Layout:
    """All matrices of an adapter, in the order of the model's modules."""

    entries: tuple[Entry, ...]
    size: int
    """Elements of the vector, padding included."""

    @classmethod
    def of(cls, modules: Mapping[str, tuple[int, int]], rank: int) -> Layout:
        """Lay out A and B of each module, given as name → (in features, out features)."""
        entries, start = [], 0
        for module, (inputs, outputs) in modules.items():
            for suffix, shape in (("lora_A", (rank, inputs)), ("lora_B", (outputs, rank))):
                entry = Entry(f"{module}.{suffix}", shape, start)
                entries.append(entry)
                start = -(-entry.stop // ALIGNMENT) * ALIGNMENT
        return cls(tuple(entries), start)

    def views(self, vector: V) -> dict[str, V]:
        """Each matrix as a view into ``vector`` (size,), by name."""
        return {entry.name: vector[entry.start : entry.stop].reshape(entry.shape) for entry in self.entries}
