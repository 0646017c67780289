"""Facts about this machine that need no library: memory, cores, account, base."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache

from marlaas.engine.devices.limits import available_memory
from marlaas.engine.errors import MarlaasError
from marlaas.engine.models.weights import count_parameters

# Read in the feed's thread; nothing raises.


@dataclass(frozen=True)
class Memory:
    """Bytes."""

    total: int
    free: int
    """Within the container's limits."""


def memory() -> Memory:
    """The memory at this moment."""
    import psutil  # here, because only this view needs it

    return Memory(int(psutil.virtual_memory().total), available_memory())


def cores() -> int:
    """Cores that this program may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def account() -> str:
    """This process's account, as holders of cards are named."""
    from marlaas.engine.devices.survey import own_account

    return own_account()


@lru_cache(8)
def base_size(name: str) -> int | None:
    """Parameters of a base, counted from its headers; None if they cannot be read."""

    try:
        return count_parameters(name)
    except (MarlaasError, OSError, ValueError):  # the name may be anything
        return None
