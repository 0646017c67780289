"""How much of the processor this process may use, by its affinity and the quotas of control groups.

A quota is time, not cores (https://docs.kernel.org/admin-guide/cgroup-v2.html, ``cpu.max``; version 1:
https://docs.kernel.org/scheduler/sched-bwc.html): a container with a quota of two cores on a machine of 64 still sees
64, and threads on all of them would be stopped most of the time. Knows no settings.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

from .machine import Cpu
from .memory import MEMBERSHIP, MOUNTED, Group, available_memory, groups, number


def read_processor() -> Cpu:
    """The part of the processor that this process may use."""
    cores = affinity()
    count = len(cores) or os.cpu_count() or 1
    return Cpu(cores, whole(count, quota()), available_memory(), processor_name())


def affinity() -> tuple[int, ...]:
    """The cores that this process may run on; empty if the system cannot pin processes to cores."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def own_cores(limit: int = 0) -> tuple[int, ...]:
    """Cores of this process, as many as a quota keeps busy and, unless it is 0, at most ``limit``.

    Empty where the system cannot pin processes to cores.
    """
    cores = affinity()
    return cores[: min(whole(len(cores), quota()), limit or len(cores))]


def keep_within(limit: int) -> None:
    """Make this process, and all that it starts, run on at most ``limit`` cores; 0 is no limit."""
    cores = affinity()
    if limit and limit < len(cores):
        os.sched_setaffinity(0, cores[:limit])


def whole(count: int, worth: float | None) -> int:
    """How many of ``count`` cores can be kept busy under a quota of ``worth`` cores; at least one."""
    return count if worth is None else max(1, min(count, int(worth)))


def quota(membership: Path = MEMBERSHIP, mounted: Path = MOUNTED) -> float | None:
    """How many cores' worth of time the control groups allow; None without a quota. Arguments as of ``groups``."""
    found = (quota_of(group) for group in groups("cpu", membership, mounted))
    return min((worth for worth in found if worth is not None), default=None)


def quota_of(group: Group) -> float | None:
    """How many cores' worth of time one control group has; None if it has no quota."""
    if group.version == 1:
        words = [group.read("cpu.cfs_quota_us"), group.read("cpu.cfs_period_us")]
    else:
        words = group.read("cpu.max").split()
    spent, period = (number(word) for word in words) if len(words) == 2 else (None, None)
    return spent / period if spent and period else None  # -1 and "max" are no numbers: no quota


def processor_name() -> str:
    """The system's name for the processor; empty if it has none."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
