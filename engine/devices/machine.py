"""The machine, and the placement of workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["cpu", "cuda", "rocm", "metal", "vulkan"]

Mode = Literal["shared", "exclusive", "prohibited"]
"""Processes that may compute on a card at once: any number, one, none."""


@dataclass(frozen=True)
class Rates:
    """A device's measured speed."""

    matrix: float
    """Operations a second in a matrix product, in the base's type."""
    bandwidth: float
    bfloat16: float = 0.0
    """A processor's operations a second in bfloat16; else 0."""

    @property
    def gain(self) -> float:
        return self.bfloat16 / self.matrix


@dataclass(frozen=True)
class Holder:
    """A process that holds a card's memory."""

    pid: int
    account: str
    """Empty: unseen."""
    memory: int
    ours: bool = False
    """Of this home's engine."""
    screen: bool = False
    """Only draws the screen, under a system account (root, gdm)."""


@dataclass(frozen=True)
class Gpu:
    """A card."""

    index: int
    uuid: str
    """For ``CUDA_VISIBLE_DEVICES``."""
    name: str
    kind: Kind
    memory: int
    free: int
    capability: tuple[int, int] = (0, 0)
    """CUDA's; (0, 0) for others."""
    utilisation: float | None = None
    """Of recent time, 0 to 1; None: unknown."""
    holders: tuple[Holder, ...] = ()
    rates: Rates | None = None
    part: int | None = None
    """On a divided card (MIG); a process computes on one part."""
    mode: Mode = "shared"

    @property
    def label(self) -> str:
        """``gpu 0``, or ``gpu 0:1`` for a part."""
        return f"gpu {self.index}" if self.part is None else f"gpu {self.index}:{self.part}"


@dataclass(frozen=True)
class Cpu:
    """This process's part of the processor."""

    cores: tuple[int, ...]
    """Empty: cannot pin."""
    count: int
    """Cores' worth of time; fewer than ``cores`` under a quota."""
    memory: int
    name: str = ""
    rates: Rates | None = None


@dataclass(frozen=True)
class Machine:
    """Processor and cards for workers."""

    cpu: Cpu
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True)
class Link:
    """A measured link to a node; free to the engine's machine."""

    call: float = 0.0
    """Seconds of call and answer, without work."""
    byte: float = 0.0
    """Seconds a byte."""

    def seconds(self, calls: int, bytes_: float) -> float:
        return calls * self.call + bytes_ * self.byte


@dataclass(frozen=True)
class UsableNode:
    """A node's usable part."""

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
    """Ids in CUDA's order; None: unknown."""


@dataclass(frozen=True)
class Software:
    """Devices that libraries can use, and why not others."""

    vllm: str = ""
    """Works on the cards, or without cards on the processor; else empty."""
    vllm_reason: str = ""
    torch_cuda: bool = False
    torch_reason: str = ""
    llama_backend: Kind = "cpu"
    """Kind of card that llama.cpp reaches."""
    llama_reason: str = ""
    bitsandbytes: bool = False
    cards: tuple[Gpu, ...] = ()
    """Without CUDA; ``uuid`` is llama.cpp's name."""


SamplerKind = Literal["vllm", "llama.cpp", "torch"]
Precision = Literal["f32", "bf16", "nf4"]


@dataclass(frozen=True)
class Place:
    """A worker's devices and memory."""

    cores: tuple[int, ...] = ()
    """Pinned."""
    gpus: tuple[str, ...] = ()
    memory: int = 0
    """Bytes of each card or of main memory; 0: no known limit."""


@dataclass(frozen=True)
class SamplerAssignment:
    """A rollout worker's placement."""

    name: str
    kind: SamplerKind
    place: Place
    weights: str = ""
    """llama.cpp on a card: of ``models.config.PRECISIONS``; torch: ``bf16``. Empty: as main memory allows, torch in
    float32."""
    node: str = ""


@dataclass(frozen=True)
class TrainerAssignment:
    """A training worker's placement, with any number of cards."""

    name: str
    place: Place
    precision: Precision = "f32"
    """Of the base; adapters, optimizer and head are float32."""
    node: str = ""


@dataclass(frozen=True)
class Placement:
    """A placement plan."""

    samplers: tuple[SamplerAssignment, ...]
    trainer: TrainerAssignment
    reasons: tuple[str, ...] = ()
    more: tuple[TrainerAssignment, ...] = ()

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
    def shared(self) -> bool:
        """True if a card samples and trains."""
        sampling, training = (
            {(each.node, uuid) for each in stage for uuid in each.place.gpus}
            for stage in (self.samplers, self.trainers)
        )
        return bool(sampling & training)

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset(each.node for each in self._workers)

    @property
    def _workers(self) -> tuple[SamplerAssignment | TrainerAssignment, ...]:
        return (*self.samplers, *self.trainers)
