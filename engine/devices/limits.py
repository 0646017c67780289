"""Usable memory and cores of this process and its children."""

from __future__ import annotations

import errno
import mmap
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ..errors import OutOfMemory
from .machine import Cpu

# Each control group on the way up may limit (https://docs.kernel.org/admin-guide/cgroup-v2.html; version 1:
# https://docs.kernel.org/admin-guide/cgroup-v1/cgroups.html).

MEMBERSHIP, MOUNTED = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Group:
    """A control group's folder."""

    folder: Path
    version: int

    def read(self, name: str) -> str:
        return read(self.folder / name)


def groups(controller: str, membership: Path = MEMBERSHIP, mounted: Path = MOUNTED) -> Iterator[Group]:
    """This process's groups for ``controller`` (``memory``, ``cpu``), and those above.

    A container's own group may be its root, under its outside name.
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
    """None for ``max`` and other text."""
    digits = text.strip()
    return int(digits) if digits.isdecimal() else None


def read(path: Path) -> str:
    """Empty if unreadable."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


# Least of machine, control groups and limits; cached files not read lately count as free.

UNLIMITED = 1 << 62
"""Version 1 writes "no limit" so."""


_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def available_memory(gigabytes: float = 0.0) -> int:
    """At most ``gigabytes`` times 1e9 bytes, unless 0."""
    import psutil

    bounds = [int(psutil.virtual_memory().available), address_space(), container_room(MEMBERSHIP, MOUNTED)]
    bounds.append(int(gigabytes * 1e9) if gigabytes else None)
    return max(0, min(bound for bound in bounds if bound is not None))


def address_space() -> int | None:
    """In bytes (``ulimit -v``); children inherit it."""
    if sys.platform == "win32":
        return None
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def container_room(membership: Path, mounted: Path) -> int | None:
    """Bytes left by control groups; None: no limit."""
    rooms = (_room(group) for group in groups("memory", membership, mounted))
    return min((room for room in rooms if room is not None), default=None)


def _room(group: Group) -> int | None:
    limit_file, usage_file, cached = _FILES[group.version]
    limit, usage = number(group.read(limit_file)), number(group.read(usage_file))
    if limit is None or usage is None or limit >= UNLIMITED:
        return None
    statistics = dict(line.split(maxsplit=1) for line in group.read("memory.stat").splitlines() if " " in line)
    return max(0, limit - usage + (number(statistics.get(cached, "")) or 0))


WORDS = ("out of memory", "not enough memory", "can't allocate memory", "ALLOC_FAILED")
ONEDNN = ("could not create a primitive", "could not execute a primitive")
"""oneDNN's messages without memory; unsupported shapes have others."""
STATUS = int(errno.ENOMEM)


def ran_out(error: BaseException) -> bool:
    """True if memory has run out."""
    if isinstance(error, MemoryError | OutOfMemory) or type(error).__name__ == "OutOfMemoryError":  # torch's own
        return True
    if not isinstance(error, RuntimeError):
        return False
    return str(error) in ONEDNN or any(word in str(error) for word in WORDS)


def as_shortage(error: Exception) -> Exception:
    """``OutOfMemory`` if it means that."""
    return OutOfMemory(f"{type(error).__name__}: {error}") if ran_out(error) else error


def end_process(reason: str, error: BaseException) -> NoReturn:
    """The log's last line is the reason's first.

    Exit status ``STATUS`` if memory has run out, else 1.
    """
    print(reason.splitlines()[0], file=sys.stderr, flush=True)
    os._exit(STATUS if ran_out(error) else 1)


# A quota is time, not cores (https://docs.kernel.org/admin-guide/cgroup-v2.html, ``cpu.max``; version 1:
# https://docs.kernel.org/scheduler/sched-bwc.html): a container sees all cores of its machine.


def read_processor() -> Cpu:
    """The usable part of the processor."""
    cores = affinity()
    count = len(cores) or os.cpu_count() or 1
    return Cpu(cores, whole(count, quota()), available_memory(), processor_name())


def affinity() -> tuple[int, ...]:
    """Empty if the system cannot pin."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def own_cores(limit: int = 0) -> tuple[int, ...]:
    """As a quota keeps busy, at most ``limit`` unless 0; empty if the system cannot pin."""
    cores = affinity()
    return cores[: min(whole(len(cores), quota()), limit or len(cores))]


def keep_within(limit: int) -> None:
    """Pin this process and children to ``limit`` cores; 0: no limit."""
    cores = affinity()
    if limit and limit < len(cores):
        os.sched_setaffinity(0, cores[:limit])


def whole(count: int, worth: float | None) -> int:
    """Cores that ``worth`` keeps busy; at least one."""
    return count if worth is None else max(1, min(count, int(worth)))


def quota(membership: Path = MEMBERSHIP, mounted: Path = MOUNTED) -> float | None:
    """In cores; None: none. Arguments as of ``groups``."""
    found = (quota_of(group) for group in groups("cpu", membership, mounted))
    return min((worth for worth in found if worth is not None), default=None)


def quota_of(group: Group) -> float | None:
    """In cores; None: none."""
    if group.version == 1:
        words = [group.read("cpu.cfs_quota_us"), group.read("cpu.cfs_period_us")]
    else:
        words = group.read("cpu.max").split()
    spent, period = (number(word) for word in words) if len(words) == 2 else (None, None)
    return spent / period if spent and period else None  # -1 and "max" are no numbers: no quota


def processor_name() -> str:
    """Empty: none."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def made_by_intel() -> bool:
    """False if the system does not tell."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False


def sum_rows_alike() -> None:
    """Ask MKL for kernels whose sums do not depend on a row's place; it reads this at its first product.

    Its usual ones for AVX2 do, and are no faster. On processors of others it would take kernels for SSE2.
    """
    if made_by_intel():
        os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


# A computing worker looks at the other's byte in a shared file between layers and takes its cores while ``IDLE``. Only
# the calling thread's affinity and threads change.

AT_WORK, IDLE = 1, 2
"""0: absent, lends nothing."""
SIZE = 2
SLEEPING = {"OMP_WAIT_POLICY": "passive"}
"""Waiting threads sleep: on a busy machine a pass took six times one core's time with spinning threads, half with this.
"""


@dataclass(frozen=True)
class Loan:
    """Own and borrowable cores."""

    path: str
    place: int
    own: tuple[int, ...]
    other: tuple[int, ...]


class LentCores:
    """One worker's side, for the computing thread."""

    def __init__(self, loan: Loan, set_threads: Callable[[int], object] = int) -> None:
        self._shared = _shared(loan.path)
        self._loan = loan
        self._set_threads = set_threads
        self._borrows = False
        self.rest()

    def work(self) -> None:
        self._shared[self._loan.place] = AT_WORK

    def rest(self) -> None:
        self._borrow(False)
        self._shared[self._loan.place] = IDLE

    @contextmanager
    def round(self) -> Iterator[None]:
        """At work until ``rest``."""
        self.work()
        yield

    def settle(self, allowed: bool) -> None:
        """Between layers: borrow the other's cores if idle, else give them back.

        ``allowed``: False if the last bits must repeat.
        """
        self._borrow(allowed and self._shared[1 - self._loan.place] == IDLE)

    def _borrow(self, borrows: bool) -> None:
        if borrows is self._borrows:
            return
        cores = (*self._loan.own, *self._loan.other) if borrows else self._loan.own
        try:
            os.sched_setaffinity(0, cores)  # of the calling thread; its new threads inherit it
        except OSError:
            if borrows:
                return
        self._borrows = borrows
        self._set_threads(len(cores))


def _shared(path: str) -> mmap.mmap | bytearray:
    """Private if the file fails: never lent."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, SIZE)  # else a write could find the disk full, which ends the process
            return mmap.mmap(file, SIZE)
        finally:
            os.close(file)
    except OSError:
        return bytearray(SIZE)
