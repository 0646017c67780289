"""The machine: processor, cards, links, and the placement of workers on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["cpu", "cuda", "rocm", "metal", "vulkan"]

Mode = Literal["shared", "exclusive", "prohibited"]
"""How many processes may compute on a card at the same time: any number, one, or none."""


@dataclass(frozen=True)
class Rates:
    """The measured speed of a device."""

    matrix: float
    """Floating-point operations a second in a matrix product, in the base's type on that device."""
    bandwidth: float
    bfloat16: float = 0.0
    """Of a processor (``matrix`` is of float32): operations a second with factors in bfloat16; else 0."""

    @property
    def gain(self) -> float:
        return self.bfloat16 / self.matrix


@dataclass(frozen=True)
class Holder:
    """A process that holds memory of a card."""

    pid: int
    account: str
    """The process's account; empty if it cannot be seen."""
    memory: int
    ours: bool = False
    """True for a worker of this home's engine, or a child of one."""
    screen: bool = False
    """True if it only draws the screen, under a system account (root, gdm)."""


@dataclass(frozen=True)
class Gpu:
    """One card."""

    index: int
    uuid: str
    """A stable id that ``CUDA_VISIBLE_DEVICES`` may hold."""
    name: str
    kind: Kind
    memory: int
    free: int
    capability: tuple[int, int] = (0, 0)
    """CUDA compute capability; (0, 0) for other kinds."""
    utilisation: float | None = None
    """Share of the recent time in which it computed, 0 to 1; None if unknown."""
    holders: tuple[Holder, ...] = ()
    rates: Rates | None = None
    part: int | None = None
    """The part's number on a divided card (MIG). A process computes on one part at most."""
    mode: Mode = "shared"

    @property
    def label(self) -> str:
        """Its name for people: ``gpu 0``, or ``gpu 0:1`` for a part of a divided card."""
        return f"gpu {self.index}" if self.part is None else f"gpu {self.index}:{self.part}"


@dataclass(frozen=True)
class Cpu:
    """The part of the processor that this process may use."""

    cores: tuple[int, ...]
    """Numbers of the cores; empty if the system cannot pin processes to cores."""
    count: int
    """Usable cores' worth of time: fewer than ``cores`` under a quota."""
    memory: int
    name: str = ""
    rates: Rates | None = None


@dataclass(frozen=True)
class Machine:
    """The processor and the cards that workers may be placed on."""

    cpu: Cpu
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True)
class Link:
    """The measured link between the engine and a node; to the engine's own machine it is free."""

    call: float = 0.0
    """Seconds of a call and its answer besides the work."""
    byte: float = 0.0
    """Seconds a byte, one way."""

    def seconds(self, calls: int, bytes_: float) -> float:
        """Seconds on the way of this many calls with ``bytes_`` in all."""
        return calls * self.call + bytes_ * self.byte


@dataclass(frozen=True)
class UsableNode:
    """A node as the placement sees it: its usable part."""

    node: str
    name: str
    machine: Machine
    software: Software
    free: int
    link: Link = Link()
    draining: bool = False
    refused: str = ""
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inventory:
    """What was found on the machine, and what could not be."""

    machine: Machine
    driver: str = ""
    cuda: str = ""
    reason: str = ""
    notes: tuple[str, ...] = ()
    order: tuple[str, ...] | None = None
    """Ids of the cards in CUDA's order; None if unknown."""


@dataclass(frozen=True)
class Software:
    """Devices that the installed libraries can use, and why not others."""

    vllm: str = ""
    """Version of a vLLM that works on this machine's cards, or without cards on its processor; else empty."""
    vllm_build: Kind | None = None
    vllm_reason: str = ""
    torch_cuda: bool = False
    torch_reason: str = ""
    llama_backend: Kind = "cpu"
    """The kind of card that the installed llama.cpp reaches, besides the processor."""
    llama_reason: str = ""
    bitsandbytes: bool = False
    cards: tuple[Gpu, ...] = ()
    """Cards that llama.cpp reaches by another way than CUDA; their ``uuid`` is its name for them."""


SamplerKind = Literal["vllm", "llama.cpp", "torch"]
Sharing = Literal["", "base", "memory"]
"""How sampler and trainer share a card: not at all; in one process with one copy of the base; or with a part of
the memory for each."""
Precision = Literal["f32", "bf16", "nf4"]


@dataclass(frozen=True)
class Place:
    """The devices and memory of a worker."""

    cores: tuple[int, ...] = ()
    """Cores that it is pinned to; it has as many threads, or one."""
    gpus: tuple[str, ...] = ()
    memory: int = 0
    """Bytes of each of these cards, or of main memory; 0: no known limit."""


@dataclass(frozen=True)
class SamplerAssignment:
    """A rollout worker in a placement plan."""

    name: str
    kind: SamplerKind
    place: Place
    sharing: Sharing = ""
    weights: str = ""
    """The form of the base's matrices: for llama.cpp on a card, one of ``models.config.PRECISIONS``; for torch,
    ``bf16``. Empty: as fits main memory, and torch in float32."""
    node: str = ""


@dataclass(frozen=True)
class TrainerAssignment:
    """A training worker in a placement plan: one process with any number of cards."""

    name: str
    place: Place
    precision: Precision = "f32"
    """Precision of the frozen base; adapters, their optimizer and the output head are float32."""
    sharing: Sharing = ""
    node: str = ""


@dataclass(frozen=True)
class EnvironmentHost:
    """A node for environments and scores."""

    node: str
    name: str
    cores: int
    call: float = 0.0


@dataclass(frozen=True)
class Placement:
    """A placement plan."""

    samplers: tuple[SamplerAssignment, ...]
    trainer: TrainerAssignment
    reasons: tuple[str, ...] = ()
    more: tuple[TrainerAssignment, ...] = ()
    hosts: tuple[EnvironmentHost, ...] = ()
    """Hosts of environments and scores, the preferred first; empty: only the engine's machine."""

    @property
    def trainers(self) -> tuple[TrainerAssignment, ...]:
        return (self.trainer, *self.more)

    @property
    def cards(self) -> frozenset[str]:
        return frozenset(uuid for node, uuid in self.devices if not node)

    @property
    def devices(self) -> frozenset[tuple[str, str]]:
        return frozenset((each.node, uuid) for each in self._workers for uuid in each.place.gpus)

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset(each.node for each in self._workers)

    @property
    def _workers(self) -> tuple[SamplerAssignment | TrainerAssignment, ...]:
        return (*self.samplers, *self.trainers)
