"""How much memory this process and its children may still take: the least of what machine, container and limits leave.

Each control group on the way up may have a limit of its own (https://docs.kernel.org/admin-guide/cgroup-v2.html,
section "Memory"; cgroup-v1/memory.html). Memory of cached files that have not been read lately counts as free.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from .cgroups import MEMBERSHIP, MOUNTED, Group, groups, number

UNLIMITED = 1 << 62
"""Limits above this are none: version 1 of control groups writes "no limit" as a very large number of bytes."""


@dataclass(frozen=True)
class _Names:
    """File names in one version of control groups."""

    limit: str
    usage: str
    cached: str
    """The name of a line in ``memory.stat``: cached files that have not been read lately."""


_NAMES = {
    1: _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: _Names("memory.max", "memory.current", "inactive_file"),
}


def available_memory(gigabytes: float = 0.0) -> int:
    """Free memory in bytes; at most ``gigabytes`` times 1e9, unless that is 0."""
    import psutil  # here, to keep the command line fast

    bounds = [int(psutil.virtual_memory().available), address_space(), container_room(MEMBERSHIP, MOUNTED)]
    bounds.append(int(gigabytes * 1e9) if gigabytes else None)
    return max(0, min(bound for bound in bounds if bound is not None))


def address_space() -> int | None:
    """The limit on a process's address space in bytes (``ulimit -v``), which children inherit; None without one."""
    if sys.platform == "win32":
        return None
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def container_room(membership: Path, mounted: Path) -> int | None:
    """Bytes that the control groups of this process leave; None where none has a limit. Arguments as of ``groups``."""
    rooms = (_room(group) for group in groups("memory", membership, mounted))
    return min((room for room in rooms if room is not None), default=None)


def _room(group: Group) -> int | None:
    names = _NAMES[group.version]
    limit, usage = number(group.read(names.limit)), number(group.read(names.usage))
    if limit is None or usage is None or limit >= UNLIMITED:
        return None
    statistics = dict(line.split(maxsplit=1) for line in group.read("memory.stat").splitlines() if " " in line)
    return max(0, limit - usage + (number(statistics.get(names.cached, "")) or 0))
