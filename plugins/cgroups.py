"""A control group for one program, if this account may make one: Linux, cgroup v2, no privileges asked for.

A program is put into the group, and all that is in the group is killed at once, however quickly it multiplies. If no
group can be had, programs run without one.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import select
from time import monotonic

_PREFIX = "marlaas-"
_ENDING = 1.0
"""Seconds that killed processes get to disappear."""
_numbers = itertools.count()


class Group:
    """An empty control group below the one of this process."""

    def __init__(self, path: str) -> None:
        """``OSError`` where it cannot be made."""
        os.mkdir(path)
        self.path = path

    def end(self) -> None:
        """Kill all that is in it, and remove it."""
        with contextlib.suppress(OSError):
            with open(os.path.join(self.path, "cgroup.kill"), "wb", buffering=0) as file:
                file.write(b"1")
            self._wait()
        for folder, _, _ in os.walk(self.path, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    def _wait(self) -> None:
        """Wait until no process is left in it."""
        until = monotonic() + _ENDING
        with open(os.path.join(self.path, "cgroup.events"), "rb", buffering=0) as file:
            poll = select.poll()
            poll.register(file, select.POLLPRI)
            while b"populated 1" in os.pread(file.fileno(), 4096, 0) and monotonic() < until:
                poll.poll(1000 * _ENDING)


def new_group(processes: int) -> Group | None:
    """A group that may hold this many ``processes``, where the kernel counts them; None if none is to be had."""
    place = parent_group()
    if place is None:
        return None
    try:
        group = Group(os.path.join(place, f"{_PREFIX}{os.getpid()}-{next(_numbers)}"))
    except OSError:
        return None
    with contextlib.suppress(OSError), open(os.path.join(group.path, "pids.max"), "r+b", buffering=0) as file:
        file.write(str(processes).encode())
    return group


@functools.cache
def parent_group() -> str | None:
    """The group of this process, if groups can be made below it and processes moved into them; else None."""
    with contextlib.suppress(OSError):
        with (
            open("/proc/self/cgroup", encoding="utf-8") as own,
            open("/proc/self/mountinfo", encoding="utf-8") as mounts,
        ):
            place = place_of(own.read(), mounts.read())
        if place is None or not os.access(os.path.join(place, "cgroup.procs"), os.W_OK):
            return None
        _remove_abandoned(place)
        tried = os.path.join(place, f"{_PREFIX}{os.getpid()}")
        os.mkdir(tried)
        try:
            return place if os.access(os.path.join(tried, "cgroup.kill"), os.W_OK) else None  # Linux 5.14
        finally:
            os.rmdir(tried)
    return None


def place_of(own: str, mounts: str) -> str | None:
    """The folder of a process's group, from what ``/proc`` says about it; None if there is no cgroup v2."""
    group = next((line[3:] for line in own.splitlines() if line.startswith("0::/")), None)
    for line in mounts.splitlines() if group is not None else ():
        mounted, _, kind = line.partition(" - ")
        root, point = mounted.split()[3:5]
        if kind.startswith("cgroup2 ") and group is not None:
            below = os.path.relpath(group, root)
            return None if below.startswith("..") else os.path.normpath(os.path.join(point, below))
    return None


def _remove_abandoned(place: str) -> None:
    """Remove the groups of processes that were killed; a group in use cannot be removed."""
    for name in os.listdir(place):
        maker = name.removeprefix(_PREFIX).partition("-")[0]
        if name.startswith(_PREFIX) and maker.isdigit() and not os.path.exists(f"/proc/{maker}"):
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(place, name))
