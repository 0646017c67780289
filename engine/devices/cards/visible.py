"""Cards that ``CUDA_VISIBLE_DEVICES`` leaves visible, and those that a worker sees."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from ..machine import Gpu, Kind

# The variable is read as the driver reads it (CUDA C++ Programming Guide; ``torch.cuda._parse_visible_devices``): an
# entry that is no card hides all later ones, and a repeated card hides all.

VARIABLE, ORDER, BY_BUS = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
_NUMBER = re.compile(r"[+-]?\d+", re.ASCII)


@dataclass(frozen=True)
class Mask:
    """The cards that the variable leaves visible."""

    uuids: tuple[str, ...]
    note: str = ""
    """One sentence, if the variable probably does not do what its author meant."""


def masked(value: str | None, gpus: Sequence[Gpu], order: Sequence[str] | None = None) -> Mask:
    """The cards that ``value`` leaves; None (not set) leaves all.

    ``order`` has ids in CUDA's order, if that is not the driver's. The number of a divided card means its first part.
    """
    if value is None:
        return Mask(tuple(gpu.uuid for gpu in gpus))
    kind = next((prefix for prefix in ("GPU-", "MIG-") if value.strip().startswith(prefix)), "")
    texts = [text.strip() for text in value.split(",")] if value.strip() else []
    names = list(takewhile(lambda name: name is not None, (_name(text, kind) for text in texts)))
    chosen = list(takewhile(lambda uuid: uuid is not None, (_meant(name, gpus, order) for name in names)))
    if len(set(names)) < len(names) or len(set(chosen)) < len(chosen):
        return Mask((), f"{VARIABLE} names a card twice, which hides all of them.")
    wrong = texts[len(chosen)] if len(chosen) < len(texts) else "-1"
    note = "" if wrong == "-1" else f"{VARIABLE} names {wrong!r}, which is no card here."
    return Mask(tuple(uuid for uuid in chosen if uuid is not None), note)


def ambiguous(value: str | None, order: str | None, gpus: Sequence[Gpu]) -> bool:
    """True if only CUDA knows which cards ``value`` means.

    By default CUDA numbers the fastest card first (``order`` is ``CUDA_DEVICE_ORDER``), and the driver by place on the
    bus.
    """
    numbered = value is not None and bool(_NUMBER.match(value.strip()))
    return numbered and order != BY_BUS and len({(gpu.name, gpu.memory) for gpu in gpus if gpu.part is None}) > 1


def find(name: str, gpus: Sequence[Gpu]) -> str | None:
    """The one card with an id that begins with ``name``; None if there is none, or more than one."""
    found = [gpu.uuid for gpu in gpus if gpu.uuid.startswith(name)]
    return found[0] if len(found) == 1 else None


def _name(text: str, kind: str) -> int | str | None:
    if kind:
        return text if text.startswith(kind) else None
    number = _NUMBER.match(text)
    return int(number[0]) if number and int(number[0]) >= 0 else None


def _meant(name: int | str | None, gpus: Sequence[Gpu], order: Sequence[str] | None) -> str | None:
    if isinstance(name, str):
        return find(name, gpus)
    if name is None or order is not None:
        return order[name] if order is not None and name is not None and name < len(order) else None
    return next((gpu.uuid for gpu in gpus if gpu.index == name), None)


# For NVIDIA's and AMD's cards an environment variable hides all others; the visible ones are numbered from 0. Vulkan's
# variable has other numbers than its list.

VARIABLES: dict[Kind, str] = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES"}
GGML: dict[Kind, str] = {"cuda": "CUDA", "rocm": "ROCm"}


def environment(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Environment variables for a worker on ``gpus``; empty: on the processor."""
    return {name: ",".join(gpu.uuid for gpu in gpus if gpu.kind == kind) for kind, name in VARIABLES.items()}


def llama_devices(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """llama.cpp's names for ``gpus`` in a process with that environment, for ``LlamaSampler``."""
    counted: dict[Kind, int] = {}
    names = []
    for gpu in gpus:
        if gpu.kind in GGML:
            number = counted.get(gpu.kind, 0)
            counted[gpu.kind] = number + 1
            names.append(f"{GGML[gpu.kind]}{number}")
        else:
            names.append(gpu.uuid)
    return tuple(names)
