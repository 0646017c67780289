"""The usable part of the processor, by affinity and the quotas of control groups.

A quota is time, not cores (https://docs.kernel.org/admin-guide/cgroup-v2.html, ``cpu.max``; version 1:
https://docs.kernel.org/scheduler/sched-bwc.html): a container with a quota of two cores on a machine of 64 still sees
64.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

from .machine import Cpu
from .memory import MEMBERSHIP, MOUNTED, Group, available_memory, groups, number


def read_processor() -> Cpu:
    """The usable part of the processor."""
    cores = affinity()
    count = len(cores) or os.cpu_count() or 1
    return Cpu(cores, whole(count, quota()), available_memory(), processor_name())


def affinity() -> tuple[int, ...]:
    """The cores that this process may run on; empty if the system cannot pin processes to cores."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def own_cores(limit: int = 0) -> tuple[int, ...]:
    """Cores of this process: as many as a quota keeps busy, at most ``limit`` unless it is 0.

    Empty if the system cannot pin processes to cores.
    """
    cores = affinity()
    return cores[: min(whole(len(cores), quota()), limit or len(cores))]


def keep_within(limit: int) -> None:
    """Make this process, and all that it starts, run on at most ``limit`` cores; 0 is no limit."""
    cores = affinity()
    if limit and limit < len(cores):
        os.sched_setaffinity(0, cores[:limit])


def whole(count: int, worth: float | None) -> int:
    """How many of ``count`` cores a quota of ``worth`` cores keeps busy; at least one."""
    return count if worth is None else max(1, min(count, int(worth)))


def quota(membership: Path = MEMBERSHIP, mounted: Path = MOUNTED) -> float | None:
    """The control groups' quota in cores; None without one. Arguments as of ``groups``."""
    found = (quota_of(group) for group in groups("cpu", membership, mounted))
    return min((worth for worth in found if worth is not None), default=None)


def quota_of(group: Group) -> float | None:
    """The quota of one control group in cores; None if it has none."""
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
