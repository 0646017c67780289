"""Facts about this machine that need no library: memory, cores, disk, base."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from marlaas.engine.devices.limits import available_memory
from marlaas.engine.errors import MarlaasError
from marlaas.engine.home.disk import GB, HomeSize, home_size
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import DiskSettings, load_settings
from marlaas.engine.models.weights import count_parameters

# Read in the feed's thread; nothing raises. On another machine than the engine's, only the disk is the home's.


@dataclass(frozen=True)
class Memory:
    """Bytes."""

    total: int
    free: int
    """Within the container's limits."""


@dataclass(frozen=True)
class Disk:
    """Bytes of a home's disk."""

    free: int
    taken: HomeSize
    reserve: float
    """With less free, tasks wait."""
    limit: float
    """The home's limit; 0: none."""


def memory() -> Memory:
    """The memory at this moment."""
    import psutil  # here, because only this view needs it

    return Memory(int(psutil.virtual_memory().total), available_memory())


def disk(home: Home) -> Disk | None:
    """Count the files of a home; None if that fails. Slow for many files."""

    settings = DiskSettings()
    with suppress(MarlaasError):
        settings = load_settings(home).disk
    try:
        free = shutil.disk_usage(home.root).free
    except OSError:
        return None
    return Disk(free, home_size(home), settings.reserve_gb * GB, settings.limit_gb * GB)


def cores() -> int:
    """Cores that this program may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def account() -> str:
    """This process's account, as holders of cards are named."""
    from marlaas.engine.devices.survey import own_account

    return own_account()


def pinned(processes: Collection[int]) -> dict[int, frozenset[int]]:
    """Cores that each process may run on, as far as the system tells."""
    found = {}
    for process in processes:
        with suppress(OSError, AttributeError):
            found[process] = frozenset(os.sched_getaffinity(process))
    return found


@lru_cache(8)
def base_size(name: str) -> int | None:
    """Parameters of a base, counted from its headers; None if they cannot be read."""

    try:
        return count_parameters(name)
    except (MarlaasError, OSError, ValueError):  # the name may be anything
        return None
