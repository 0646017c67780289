"""Which worker goes where: what the placement decides and the supervisor starts. Data alone, with reasons in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SamplerKind = Literal["vllm", "llama.cpp", "torch"]
Sharing = Literal["", "base", "memory", "sleep"]
"""How a card is shared by sampler and trainer: not at all, with one copy of the base in one process, with a part of the
memory for each, or one after the other while the other sleeps."""
Precision = Literal["f32", "bf16", "nf4"]


@dataclass(frozen=True)
class Place:
    """Where a worker computes."""

    cores: tuple[int, ...] = ()
    """That it is pinned to; its threads are as many, or one."""
    gpus: tuple[str, ...] = ()
    """``Gpu.uuid`` of its cards; none: it computes on its cores."""
    memory: int = 0
    """Bytes of each of these cards, or of main memory, that it may take; 0: no limit is known."""


@dataclass(frozen=True)
class SamplerAssignment:
    """A rollout worker."""

    name: str
    """``rollout``, ``rollout-2``, …"""
    kind: SamplerKind
    place: Place
    sharing: Sharing = ""
    weights: str = ""
    """How llama.cpp keeps the base on a card, one of ``base.precision.PRECISIONS``; empty: as fits main memory."""


@dataclass(frozen=True)
class TrainerAssignment:
    """The training worker: one process, whatever number of cards it has."""

    name: str
    place: Place
    precision: Precision = "f32"
    """Of the frozen base; adapters, their optimizer and the output head are float32."""
    sharing: Sharing = ""


@dataclass(frozen=True)
class Placement:
    """A whole plan."""

    samplers: tuple[SamplerAssignment, ...]
    trainer: TrainerAssignment
    reasons: tuple[str, ...] = ()
    """Sentences, each on one decision: what, and why."""

    @property
    def cards(self) -> frozenset[str]:
        """``Gpu.uuid`` of all cards that are given to a worker."""
        places = [assignment.place for assignment in self.samplers] + [self.trainer.place]
        return frozenset(uuid for place in places for uuid in place.gpus)
