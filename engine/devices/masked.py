"""``CUDA_VISIBLE_DEVICES`` of this process: its text and all cards flow in, those that it leaves flow out.

Pure. As the driver reads it (CUDA C++ Programming Guide, "CUDA Environment Variables"; torch reads it alike in
``torch.cuda._parse_visible_devices``): what is no card hides all that comes after it, and a card that is named twice
hides all. What workers are given to see is made in ``visible``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from .machine import Gpu

VARIABLE, ORDER, BY_BUS = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
_NUMBER = re.compile(r"[+-]?\d+", re.ASCII)
"""As C's ``strtol`` reads: ``1st`` is 1."""


@dataclass(frozen=True)
class Mask:
    """What the variable leaves."""

    uuids: tuple[str, ...]
    """In the order in which CUDA counts them then."""
    note: str = ""
    """What about the variable is not as its author will have meant it, in one sentence."""


def masked(value: str | None, gpus: Sequence[Gpu], order: Sequence[str] | None = None) -> Mask:
    """The cards that ``value`` leaves; None (not set) leaves all.

    ``order`` has ids in the order in which CUDA counts the cards, where that is not the driver's order. A number that
    means a divided card means the first of its parts.
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
    """Whether CUDA alone knows which cards ``value`` means: unless ``order`` (``CUDA_DEVICE_ORDER``) says otherwise it
    counts the fastest first, and the driver by their places on the bus."""
    numbered = value is not None and bool(_NUMBER.match(value.strip()))
    return numbered and order != BY_BUS and len({(gpu.name, gpu.memory) for gpu in gpus if gpu.part is None}) > 1


def find(name: str, gpus: Sequence[Gpu]) -> str | None:
    """The one card whose id begins with ``name``; None where there is none, or more than one."""
    found = [gpu.uuid for gpu in gpus if gpu.uuid.startswith(name)]
    return found[0] if len(found) == 1 else None


def _name(text: str, kind: str) -> int | str | None:
    """A number, or, where the first entry is one, the beginning of an id; None for what is neither."""
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
