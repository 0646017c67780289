"""Sizes, devices and proportions as the plan's sentences say them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ...devices import Gpu, Place

SHARED = {
    "base": "both over one copy of the base",
    "memory": "each with a part of its memory",
    "sleep": "taking turns, the weights of one in main memory meanwhile",
}
"""How a card is shared, by ``Sharing``."""


def size(bytes_: float) -> str:
    """Gigabytes, as cards are sold."""
    return f"{bytes_ / 1e9:.1f} GB"


def card(gpu: Gpu) -> str:
    """``gpu 0 (NVIDIA H200)``."""
    return f"{gpu.label} ({gpu.name})" if gpu.name else gpu.label


def cards(gpus: Sequence[Gpu]) -> str:
    """A few cards by label: ``gpu 0, gpu 1 and gpu 3``."""
    return together([gpu.label for gpu in gpus])


def together(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def cores(place: Place) -> str:
    """The cores of a worker on the processor."""
    if not place.cores:
        return "the processor"
    return "1 core" if len(place.cores) == 1 else f"{len(place.cores)} cores"


def times(factor: float) -> str:
    """``2.0 times``."""
    return f"{factor:.1f} times" if factor < 100 else f"{factor:.0f} times"
