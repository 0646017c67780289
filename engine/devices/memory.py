"""How much memory this process and its children may still take: the least of what machine, container and limits leave.

Files of the system flow in, bytes flow out. Each control group on the way up may have a limit of its own (https://
docs.kernel.org/admin-guide/cgroup-v2.html, section "Memory"; cgroup-v1/memory.html), and memory of cached files that
nobody has read lately is as good as free. Knows nothing of models.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from .cgroups import MEMBERSHIP, MOUNTED, Group, groups, number

UNLIMITED = 1 << 62
"""Version 1 writes "no limit" as the largest number of whole pages."""


@dataclass(frozen=True)
class _Names:
    """What one version of control groups calls its files."""

    limit: str
    usage: str
    cached: str
    """A line in ``memory.stat``."""


_NAMES = {
    1: _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: _Names("memory.max", "memory.current", "inactive_file"),
}


def available_memory(gigabytes: float = 0.0) -> int:
    """Bytes; no more than ``gigabytes`` of 1e9 bytes, where that is not 0."""
    import psutil  # here, because the command line waits for nothing that it does not need

    bounds = [int(psutil.virtual_memory().available), address_space(), container_room(MEMBERSHIP, MOUNTED)]
    bounds.append(int(gigabytes * 1e9) if gigabytes else None)
    return max(0, min(bound for bound in bounds if bound is not None))


def address_space() -> int | None:
    """The limit on a process's addresses (``ulimit -v``), which children inherit; None without one."""
    if sys.platform == "win32":
        return None
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def container_room(membership: Path, mounted: Path) -> int | None:
    """What the control groups of this process leave; None where none has a limit. Arguments: see ``groups``."""
    rooms = (_room(group) for group in groups("memory", membership, mounted))
    return min((room for room in rooms if room is not None), default=None)


def _room(group: Group) -> int | None:
    names = _NAMES[group.version]
    limit, usage = number(group.read(names.limit)), number(group.read(names.usage))
    if limit is None or usage is None or limit >= UNLIMITED:
        return None
    statistics = dict(line.split(maxsplit=1) for line in group.read("memory.stat").splitlines() if " " in line)
    return max(0, limit - usage + (number(statistics.get(names.cached, "")) or 0))
