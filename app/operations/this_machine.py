"""Facts about this machine and its bases that need no library."""

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

# What the machine reports where the application runs: memory, cores, a home's disk, if processes may run.
#
# It is read in the feed's thread; nothing is ever raised. If the application runs elsewhere than the engine, only
# the disk is that of the home.


@dataclass(frozen=True)
class Memory:
    """Memory of this machine in bytes."""

    total: int
    free: int
    """What a process may still take, within the limits of its container."""


@dataclass(frozen=True)
class Disk:
    """The disk of a home, in bytes."""

    free: int
    taken: HomeSize
    reserve: float
    """What is to stay free: with less, tasks wait."""
    limit: float
    """Most bytes of the home; 0: no limit."""


def memory() -> Memory:
    """The memory at this moment."""
    import psutil  # here, because only this view needs it

    return Memory(int(psutil.virtual_memory().total), available_memory())


def disk(home: Home) -> Disk | None:
    """Counts the files of the home, which takes its time if there are many; None if it cannot be looked at."""

    settings = DiskSettings()
    with suppress(MarlaasError):
        settings = load_settings(home).disk
    try:
        free = shutil.disk_usage(home.root).free
    except OSError:
        return None
    return Disk(free, home_size(home), settings.reserve_gb * GB, settings.limit_gb * GB)


def cores() -> int:
    """Cores of the machine that this program may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def account() -> str:
    """The account of this process, in the form in which holders of cards are named."""
    from marlaas.engine.devices.survey import own_account

    return own_account()


def pinned(processes: Collection[int]) -> dict[int, frozenset[int]]:
    """Cores that each process may run on; those that have ended, and systems that do not tell, are left out."""
    found = {}
    for process in processes:
        with suppress(OSError, AttributeError):
            found[process] = frozenset(os.sched_getaffinity(process))
    return found


# How large a base is, for screens: counted once from the headers of its weights.


@lru_cache(8)
def base_size(name: str) -> int | None:
    """The number of parameters of the base of this name; None if its files are not here, or cannot be read."""

    try:
        return count_parameters(name)
    except (MarlaasError, OSError, ValueError):  # the name may be anything
        return None
