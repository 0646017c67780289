"""What each card can do for a base: which sampler, which trainer, and why not, in words. Pure.

Looks at one card at a time; who does what is decided over all of them, in ``place``.

vLLM is built for cards of compute capability 7.5 and more, and computes bfloat16, which is what the base is kept in
here, from 8.0 on (``vllm/platforms/cuda.py: check_if_supports_dtype``, 0.26 to 0.33).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ...base import LEAST, PRECISIONS, SAMPLERS, Wanted
from ...devices import Gpu, Machine, Precision, Rates, SamplerKind, Software
from .room import SamplerRoom, TrainerRoom, context_of, llama_room, trainer_room, usable, vllm_rooms
from .speed import rates_of
from .wishes import TORCH_KINDS, Choices
from .words import size

KINDS = tuple(cast(SamplerKind, kind) for kind, traits in SAMPLERS.items() if traits.cards)
"""Samplers on cards, the preferred one first; all cards of a plan have the same."""
BF16_FROM = (8, 0)
"""Compute capability from which vLLM and torch multiply bfloat16."""
NF4_FROM = (7, 5)
"""Compute capability from which bitsandbytes, and current builds of torch, have kernels."""


@dataclass(frozen=True)
class Card:
    """A card, and what it could do if all of it were free for that."""

    gpu: Gpu
    rates: Rates
    """Measured, or assumed."""
    usable: int
    """Bytes that may be planned with."""
    samplers: tuple[tuple[SamplerKind, SamplerRoom], ...]
    """Samplers that fit, the preferred one first."""
    trainers: tuple[tuple[Precision, TrainerRoom], ...]
    """Trainers that fit, by how they keep the base, the preferred one first."""
    no_sampler: str
    """Why nothing can sample there, as a clause; empty where something can."""
    no_trainer: str


def look(gpu: Gpu, machine: Machine, software: Software, wanted: Wanted, choices: Choices) -> Card:
    """What ``gpu`` can do."""
    rooms = _sampler_rooms(gpu, software, wanted, choices)
    bases = _trainer_rooms(gpu, software, wanted, choices)
    room = usable(gpu)
    samplers = tuple((kind, need) for kind, need in rooms if need.least <= room)
    trainers = tuple((precision, need) for precision, need in bases if need.least <= room)
    return Card(
        gpu=gpu,
        rates=rates_of(gpu, machine.gpus),
        usable=room,
        samplers=samplers,
        trainers=trainers,
        no_sampler="" if samplers else _sampler_missing(gpu, software, wanted, rooms, room),
        no_trainer="" if trainers else _trainer_missing(gpu, software, bases, room),
    )


def _sampler_rooms(
    gpu: Gpu, software: Software, wanted: Wanted, choices: Choices
) -> list[tuple[SamplerKind, SamplerRoom]]:
    found: list[tuple[SamplerKind, SamplerRoom]] = []
    if choices.sampler in ("auto", "vllm") and not choices.llama and software.vllm and _bfloat(gpu):
        found += [("vllm", room) for room in vllm_rooms(wanted)]
    if choices.sampler in ("auto", "llama.cpp") and software.llama_backend == gpu.kind:
        types = (wanted.weights,) if wanted.weights != "auto" else PRECISIONS[PRECISIONS.index("q8_0") :]
        found += [("llama.cpp", llama_room(wanted, stored)) for stored in types]
    return found


def _trainer_rooms(
    gpu: Gpu, software: Software, wanted: Wanted, choices: Choices
) -> list[tuple[Precision, TrainerRoom]]:
    if not software.torch_cuda or gpu.kind not in TORCH_KINDS:
        return []
    allowed: list[Precision] = ["bf16"] if gpu.kind == "rocm" or _bfloat(gpu) else ["f32"]
    if gpu.kind == "cuda" and gpu.capability >= NF4_FROM and software.bitsandbytes:
        allowed.append("nf4")
    if choices.precision == "f32":
        allowed = ["f32"]
    elif choices.precision != "auto":
        allowed = [precision for precision in allowed if precision == choices.precision]
    return [(precision, trainer_room(wanted, precision)) for precision in allowed]


def _bfloat(gpu: Gpu) -> bool:
    return gpu.kind == "cuda" and gpu.capability >= BF16_FROM


def _sampler_missing(
    gpu: Gpu, software: Software, wanted: Wanted, rooms: list[tuple[SamplerKind, SamplerRoom]], room: int
) -> str:
    if rooms:
        least = min((need for _, need in rooms), key=lambda need: need.least)
        return (
            f"a sampler of this base takes {size(least.least)} for {LEAST} conversations of {context_of(wanted)} "
            f"tokens and adapters of {wanted.tasks} tasks, and {size(room)} of it may be used"
        )
    if gpu.kind != "cuda":
        return f"no installed sampler reaches a card by way of {gpu.kind}"
    if software.vllm and not _bfloat(gpu):
        return f"vLLM serves bfloat16 from compute capability 8.0 on, and it has {_capability(gpu)}"
    return "the installed llama.cpp does not reach it, and there is no vLLM"


def _trainer_missing(gpu: Gpu, software: Software, bases: list[tuple[Precision, TrainerRoom]], room: int) -> str:
    if bases:
        least = min(need.least for _, need in bases)
        return f"training this base takes {size(least)}, and {size(room)} of it may be used"
    if gpu.kind not in TORCH_KINDS:
        return f"torch does not train here by way of {gpu.kind}"
    if not software.torch_cuda:
        return "torch does not reach it"
    return f"it has compute capability {_capability(gpu)}, which does not go with the precision"


def _capability(gpu: Gpu) -> str:
    return ".".join(str(number) for number in gpu.capability)
