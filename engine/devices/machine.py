"""What a machine has: processors and cards, their memory, their measured rates, and who holds them. Data alone.

Made by the inventory, narrowed by the rules for guests, read by the placement, by `doctor` and by the screen. Knows
neither how it is found out nor what is done with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["cpu", "cuda", "rocm", "metal", "vulkan"]
"""How a device is spoken to."""

Mode = Literal["shared", "exclusive", "prohibited"]
"""How many processes may compute on a card at the same time: any number, one, or none."""


@dataclass(frozen=True)
class Rates:
    """What a device was measured to reach."""

    matrix: float
    """Floating-point operations a second of a matrix product, in the type that a base is kept in there."""
    bandwidth: float
    """Bytes a second, read and written."""


@dataclass(frozen=True)
class Holder:
    """A process that has memory of a card."""

    pid: int
    account: str
    """Whose process it is, as the system names them; empty where that cannot be seen."""
    memory: int
    """Bytes; 0 where the driver does not say."""
    ours: bool = False
    """Whether it is a worker of this home's engine, or a child of one."""
    screen: bool = False
    """Whether it draws the screen for an account of the system (root, gdm): it belongs to no person, and computes
    nothing."""


@dataclass(frozen=True)
class Gpu:
    """One card."""

    index: int
    """As the driver counts them."""
    uuid: str
    """Stays the same when other cards come and go; what ``CUDA_VISIBLE_DEVICES`` may name it by."""
    name: str
    kind: Kind
    memory: int
    """Bytes in all."""
    free: int
    """Bytes that nobody holds."""
    capability: tuple[int, int] = (0, 0)
    """CUDA compute capability; (0, 0) elsewhere."""
    utilisation: float | None = None
    """Share of the last moments in which it computed; None where the driver does not say."""
    holders: tuple[Holder, ...] = ()
    rates: Rates | None = None
    """None until it is measured."""
    part: int | None = None
    """Of a card that is divided (MIG): which of its parts. A process computes on one part at most."""
    mode: Mode = "shared"

    @property
    def label(self) -> str:
        """For people; a part of a divided card is ``gpu 0:1``."""
        return f"gpu {self.index}" if self.part is None else f"gpu {self.index}:{self.part}"


@dataclass(frozen=True)
class Cpu:
    """The processor, as far as this process may use it."""

    cores: tuple[int, ...]
    """Numbers of the cores; empty where the system pins nothing."""
    count: int
    """How many cores' worth of time may be used: fewer than ``cores`` under a quota."""
    memory: int
    """Bytes that are free."""
    name: str = ""
    rates: Rates | None = None
    """Of one core."""


@dataclass(frozen=True)
class Machine:
    """Everything that work may be placed on."""

    cpu: Cpu
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True)
class Inventory:
    """What was found on the machine, and what could not be."""

    machine: Machine
    """All of it, whoever may use it."""
    driver: str = ""
    """Version of the NVIDIA driver; empty where there is none."""
    cuda: str = ""
    """Version of CUDA that the driver brings along; empty where it brings none."""
    reason: str = ""
    """Why there is no NVIDIA card, in words; empty where there is one."""
    notes: tuple[str, ...] = ()
    """Sentences on what is wrong with which card."""
    order: tuple[str, ...] | None = None
    """Ids in the order in which CUDA counts the cards; None where that was not asked, or not answered."""


@dataclass(frozen=True)
class Software:
    """What is installed that can use which device, or one sentence on why it cannot."""

    vllm: str = ""
    """Version of a vLLM that works on this machine's cards, or on its processor where there are none; else empty."""
    vllm_build: Kind | None = None
    """What the installed vLLM's binaries are for; None where none is installed."""
    vllm_reason: str = ""
    """Why there is none that works, and what to install."""
    torch_cuda: bool = False
    """Whether torch reaches the cards."""
    torch_reason: str = ""
    llama_backend: Kind = "cpu"
    """The kind of card that the installed llama.cpp reaches, beside the processor."""
    llama_reason: str = ""
    """Why it reaches none, where that matters."""
    bitsandbytes: bool = False
    cards: tuple[Gpu, ...] = ()
    """That llama.cpp reaches by another way than CUDA; their ``uuid`` is its name for them."""
