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
    node: str = ""
    """``UsableNode.node`` of where it runs; empty: the machine of the engine."""


@dataclass(frozen=True)
class TrainerAssignment:
    """A training worker in a placement plan: one process, however many cards it has."""

    name: str
    place: Place
    precision: Precision = "f32"
    """Precision of the frozen base; adapters, their optimizer and the output head are float32."""
    sharing: Sharing = ""
    node: str = ""
    """As for a sampler."""


@dataclass(frozen=True)
class EnvironmentHost:
    """A node on which environments and scores may run."""

    node: str
    """As for a sampler."""
    name: str
    """What people call it."""
    cores: int
    """Processes that may compute there at the same time."""
    call: float = 0.0
    """Seconds that a message and its answer take on the way."""


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
    hosts: tuple[EnvironmentHost, ...] = ()
    """Where environments and scores may run, the first ones preferred; empty: on the engine's machine alone."""

    @property
    def trainers(self) -> tuple[TrainerAssignment, ...]:
        """All training workers."""
        return (self.trainer, *self.more)

    @property
    def cards(self) -> frozenset[str]:
        """``Gpu.uuid`` of all cards of the engine's machine that are assigned to a worker."""
        return frozenset(uuid for node, uuid in self.devices if not node)

    @property
    def devices(self) -> frozenset[tuple[str, str]]:
        """All cards that are assigned to a worker: the node and ``Gpu.uuid`` of each."""
        return frozenset((each.node, uuid) for each in self._workers for uuid in each.place.gpus)

    @property
    def nodes(self) -> frozenset[str]:
        """Nodes that have a worker, the engine's own machine as the empty name."""
        return frozenset(each.node for each in self._workers)

    @property
    def _workers(self) -> tuple[SamplerAssignment | TrainerAssignment, ...]:
        return (*self.samplers, *self.trainers)
