"""Memory that this process and its children may take, and errors that mean that it ran out."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ..errors import OutOfMemory

# Each control group on the way up may have its own limits (https://docs.kernel.org/admin-guide/cgroup-v2.html; version
# 1: https://docs.kernel.org/admin-guide/cgroup-v1/cgroups.html).

MEMBERSHIP, MOUNTED = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Group:
    """The folder of one group, in one version of control groups."""

    folder: Path
    version: int

    def read(self, name: str) -> str:
        return read(self.folder / name)


def groups(controller: str, membership: Path = MEMBERSHIP, mounted: Path = MOUNTED) -> Iterator[Group]:
    """The groups of this process for ``controller`` (``memory``, ``cpu``), and all groups above them.

    Folders may be missing: a container may see its own group as the root, but under its outside name.
    """
    for line in read(membership).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for folder in (controller,) if controllers else ("", "unified"):
            for depth in range(len(parts) + 1):
                yield Group(mounted.joinpath(folder, *parts[:depth]), 1 if controllers else 2)


def number(text: str) -> int | None:
    """A number in a file; None for ``max`` and for other text."""
    digits = text.strip()
    return int(digits) if digits.isdecimal() else None


def read(path: Path) -> str:
    """A file's text; empty if it cannot be read."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


# Free memory is the least of what machine, control groups and limits leave. Cached files that have not been read lately
# count as free.

UNLIMITED = 1 << 62
"""Larger limits are none: version 1 of control groups writes "no limit" so."""


@dataclass(frozen=True)
class _Names:
    limit: str
    usage: str
    cached: str


_NAMES = {
    1: _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: _Names("memory.max", "memory.current", "inactive_file"),
}


def available_memory(gigabytes: float = 0.0) -> int:
    """Free memory in bytes; at most ``gigabytes`` times 1e9, unless that is 0."""
    import psutil

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
    """Bytes that this process's control groups leave; None without a limit."""
    rooms = (_room(group) for group in groups("memory", membership, mounted))
    return min((room for room in rooms if room is not None), default=None)


def _room(group: Group) -> int | None:
    names = _NAMES[group.version]
    limit, usage = number(group.read(names.limit)), number(group.read(names.usage))
    if limit is None or usage is None or limit >= UNLIMITED:
        return None
    statistics = dict(line.split(maxsplit=1) for line in group.read("memory.stat").splitlines() if " " in line)
    return max(0, limit - usage + (number(statistics.get(names.cached, "")) or 0))


WORDS = ("out of memory", "not enough memory", "can't allocate memory", "ALLOC_FAILED")
ONEDNN = ("could not create a primitive", "could not execute a primitive")
"""oneDNN's messages without memory for its compiled code or its buffers.

Unsupported shapes and types have other messages ("could not create a primitive descriptor …")."""
STATUS = int(errno.ENOMEM)


def ran_out(error: BaseException) -> bool:
    """True if an error means that memory has run out."""
    if isinstance(error, MemoryError | OutOfMemory) or type(error).__name__ == "OutOfMemoryError":  # torch's own
        return True
    if not isinstance(error, RuntimeError):
        return False
    return str(error) in ONEDNN or any(word in str(error) for word in WORDS)


def as_shortage(error: Exception) -> Exception:
    """``OutOfMemory`` if an error means that; any other error as it is."""
    return OutOfMemory(f"{type(error).__name__}: {error}") if ran_out(error) else error


def end_process(reason: str, error: BaseException) -> NoReturn:
    """End the process because of ``error``, with the first line of the reason as the last line of the log.

    The exit status is ``STATUS`` if memory has run out, else 1.
    """
    print(reason.splitlines()[0], file=sys.stderr, flush=True)
    os._exit(STATUS if ran_out(error) else 1)
