"""Data classes of the placement plan, which the worker supervisor carries out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SamplerKind = Literal["vllm", "llama.cpp", "torch"]
Sharing = Literal["", "base", "memory", "sleep"]
"""How sampler and trainer share a card: not at all; in one process with one copy of the base; with a part of the memory
for each; or in turns, while the other's memory is released."""
Precision = Literal["f32", "bf16", "nf4"]


@dataclass(frozen=True)
class Place:
    """A worker assignment: the devices and memory of a worker."""

    cores: tuple[int, ...] = ()
    """Cores that it is pinned to; it has as many threads, or one."""
    gpus: tuple[str, ...] = ()
    """``Gpu.uuid`` of its cards; empty: it computes on its cores."""
    memory: int = 0
    """Bytes that it may take of each of these cards, or of main memory; 0: no limit is known."""


@dataclass(frozen=True)
class SamplerAssignment:
    """A rollout worker in a placement plan."""

    name: str
    """``rollout``, ``rollout-2``, …"""
    kind: SamplerKind
    place: Place
    sharing: Sharing = ""
    weights: str = ""
    """How it keeps the base's matrices: llama.cpp on a card, one of ``base.precision.PRECISIONS``; torch, ``bf16``.
    Empty: as fits main memory, and torch in float32."""


@dataclass(frozen=True)
class TrainerAssignment:
    """A training worker in a placement plan: one process, however many cards it has."""

    name: str
    place: Place
    precision: Precision = "f32"
    """Precision of the frozen base; adapters, their optimizer and the output head are float32."""
    sharing: Sharing = ""


@dataclass(frozen=True)
class Placement:
    """A placement plan."""

    samplers: tuple[SamplerAssignment, ...]
    trainer: TrainerAssignment
    """The first training worker, which is the only one unless there are ``more``."""
    reasons: tuple[str, ...] = ()
    """One sentence on each decision: what, and why."""
    more: tuple[TrainerAssignment, ...] = ()
    """Further training workers: ``training-2``, …"""

    @property
    def trainers(self) -> tuple[TrainerAssignment, ...]:
        """All training workers."""
        return (self.trainer, *self.more)

    @property
    def cards(self) -> frozenset[str]:
        """``Gpu.uuid`` of all cards that are assigned to a worker."""
        places = [assignment.place for assignment in self.samplers] + [each.place for each in self.trainers]
        return frozenset(uuid for place in places for uuid in place.gpus)
