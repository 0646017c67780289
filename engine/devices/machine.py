"""The machine: processor, cards, links, and where workers are placed on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Data classes for a machine: processors and cards, their memory, their measured rates, and who holds memory.
#
# The inventory makes them, the rules in ``usable`` narrow them, and the placement, ``marlaas doctor`` and the screen
# read them.

Kind = Literal["cpu", "cuda", "rocm", "metal", "vulkan"]
"""The backend by which a device is used."""

Mode = Literal["shared", "exclusive", "prohibited"]
"""How many processes may compute on a card at the same time: any number, one, or none."""


@dataclass(frozen=True)
class Rates:
    """The measured speed of a device."""

    matrix: float
    """Floating-point operations a second in a matrix product, in the type that a base is kept in on that device."""
    bandwidth: float
    """Bytes of memory a second, read and written."""
    bfloat16: float = 0.0
    """For the processor, whose ``matrix`` is of float32: operations a second with factors in bfloat16; else 0."""

    @property
    def gain(self) -> float:
        """How many times as fast the processor multiplies bfloat16 as float32; 0 for a card."""
        return self.bfloat16 / self.matrix


@dataclass(frozen=True)
class Holder:
    """A process that holds memory of a card."""

    pid: int
    account: str
    """The name of the account whose process it is; empty if it cannot be seen."""
    memory: int
    """Bytes; 0 if the driver does not say."""
    ours: bool = False
    """Whether it is a worker of this home's engine, or a child of one."""
    screen: bool = False
    """Whether it only draws the screen, under an account of the system (root, gdm): then it is nobody's work."""


@dataclass(frozen=True)
class Gpu:
    """One card."""

    index: int
    """Its number in the driver's order."""
    uuid: str
    """An id that stays the same when other cards come and go, and that ``CUDA_VISIBLE_DEVICES`` may hold."""
    name: str
    kind: Kind
    memory: int
    """Bytes in all."""
    free: int
    """Bytes that no process holds."""
    capability: tuple[int, int] = (0, 0)
    """CUDA compute capability; (0, 0) for other kinds."""
    utilisation: float | None = None
    """Share of the time just before in which it computed, 0 to 1; None if the driver does not say."""
    holders: tuple[Holder, ...] = ()
    rates: Rates | None = None
    """None until they are measured."""
    part: int | None = None
    """For a divided card (MIG), the number of the part that this is. A process computes on one part at most."""
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
    """How many cores' worth of time may be used: fewer than ``cores`` under a quota."""
    memory: int
    """Bytes of main memory that are free."""
    name: str = ""
    rates: Rates | None = None
    """The rates of one core; None until they are measured."""


@dataclass(frozen=True)
class Machine:
    """The processor and the cards that workers may be placed on."""

    cpu: Cpu
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True)
class Link:
    """The way between the engine and a node, as measured; that to the engine's own machine takes nothing."""

    call: float = 0.0
    """Seconds that a call and its answer take beside the work."""
    byte: float = 0.0
    """Seconds a byte, one way."""

    def seconds(self, calls: int, bytes_: float) -> float:
        """What this many calls with this many bytes in all take on the way."""
        return calls * self.call + bytes_ * self.byte


@dataclass(frozen=True)
class UsableNode:
    """A node as the placement sees it: one machine of several, as far as the engine may use it."""

    node: str
    """Ray's id of it; empty for the machine of the engine."""
    name: str
    """What people call it."""
    machine: Machine
    software: Software
    free: int
    """Bytes of main memory that may be planned with."""
    link: Link = Link()
    draining: bool = False
    """Whether it is to get nothing new."""
    refused: str = ""
    """Why it cannot be used, in a sentence; empty if it can."""
    reasons: tuple[str, ...] = ()
    """What is left out there, and why, in sentences."""


@dataclass(frozen=True)
class Inventory:
    """What was found on the machine, and what could not be."""

    machine: Machine
    """The whole machine, before rules say what may be used."""
    driver: str = ""
    """Version of the NVIDIA driver; empty if there is none."""
    cuda: str = ""
    """Version of CUDA that the driver brings along; empty if it brings none."""
    reason: str = ""
    """Why there is no NVIDIA card, in words; empty if there is one."""
    notes: tuple[str, ...] = ()
    """Sentences on what is wrong with which card."""
    order: tuple[str, ...] | None = None
    """Ids of the cards in CUDA's order; None if that was not asked, or not answered."""


@dataclass(frozen=True)
class Software:
    """Which devices the installed libraries can use, and why they cannot use others."""

    vllm: str = ""
    """Version of a vLLM that works on this machine's cards, or on its processor where there are none; else empty."""
    vllm_build: Kind | None = None
    """The kind of device that the installed vLLM's binaries are for; None if none is installed."""
    vllm_reason: str = ""
    """Why no vLLM works here, and what to install."""
    torch_cuda: bool = False
    """Whether torch reaches the cards."""
    torch_reason: str = ""
    llama_backend: Kind = "cpu"
    """The kind of card that the installed llama.cpp reaches, beside the processor."""
    llama_reason: str = ""
    """Why llama.cpp reaches no card, if that matters."""
    bitsandbytes: bool = False
    cards: tuple[Gpu, ...] = ()
    """Cards that llama.cpp reaches by another way than CUDA; their ``uuid`` is its name for them."""


# Data classes of the placement plan, which the worker supervisor carries out.

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
