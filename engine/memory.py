"""How much memory this process and its children may still take: the least of what machine, container and limits leave.

Files of the system flow in, bytes flow out. Containers are control groups (https://docs.kernel.org/admin-guide/
cgroup-v2.html, section "Memory"; cgroup-v1/memory.html): each group on the way up may have a limit of its own, and
memory of cached files that nobody has read lately is as good as free. Knows nothing of models.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

MEMBERSHIP, MOUNTED = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
UNLIMITED = 1 << 62
"""Version 1 writes "no limit" as the largest number of whole pages."""


@dataclass(frozen=True)
class _Version:
    """Where one version of control groups keeps what."""

    folders: tuple[str, ...]
    """Of the memory controller, below the mount."""
    limit: str
    usage: str
    cached: str
    """Its line in ``memory.stat``."""


V1 = _Version(("memory",), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = _Version(("", "unified"), "memory.max", "memory.current", "inactive_file")


def available_memory() -> int:
    """Bytes."""
    import psutil  # here, because the command line waits for nothing that it does not need

    bounds = [int(psutil.virtual_memory().available), address_space(), container_room(MEMBERSHIP, MOUNTED)]
    return max(0, min(bound for bound in bounds if bound is not None))


def address_space() -> int | None:
    """The limit on a process's addresses (``ulimit -v``), which children inherit; None without one."""
    if sys.platform == "win32":
        return None
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def container_room(membership: Path, mounted: Path) -> int | None:
    """What the control groups of this process leave; None where none has a limit.

    ``membership`` is the file that names its groups, ``mounted`` the folder where they are shown. A container may see
    its own group as the root, under a name from outside: what is not there has no limit.
    """
    rooms = []
    for line in _read(membership).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        version = V1 if controllers else V2
        for folder in version.folders:
            rooms += _rooms(mounted / folder, path, version)
    return min(rooms, default=None)


def _rooms(root: Path, path: str, version: _Version) -> list[int]:
    """Of the group at ``path`` below ``root`` and of all above it, where they have a limit."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    groups = [root.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    return [room for group in groups if (room := _room(group, version)) is not None]


def _room(group: Path, version: _Version) -> int | None:
    limit, usage = (_number(_read(group / name)) for name in (version.limit, version.usage))
    if limit is None or usage is None or limit >= UNLIMITED:
        return None
    statistics = dict(line.split(maxsplit=1) for line in _read(group / "memory.stat").splitlines() if " " in line)
    return max(0, limit - usage + (_number(statistics.get(version.cached, "")) or 0))


def _number(text: str) -> int | None:
    """None for ``max`` and for what is no number."""
    return int(text) if text.strip().isdecimal() else None


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
