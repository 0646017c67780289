"""Finds the folders of the control groups that this process is in.

Containers are control groups (https://docs.kernel.org/admin-guide/cgroup-v2.html; version 1:
https://docs.kernel.org/admin-guide/cgroup-v1/cgroups.html): each group on the way up may have limits of its own. Knows
nothing of what is limited.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MEMBERSHIP, MOUNTED = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Group:
    """The folder of one group, in one version of control groups."""

    folder: Path
    version: int

    def read(self, name: str) -> str:
        """The text of one of its files; empty where there is none."""
        return read(self.folder / name)


def groups(controller: str, membership: Path = MEMBERSHIP, mounted: Path = MOUNTED) -> Iterator[Group]:
    """The groups of this process for ``controller`` (``memory``, ``cpu``), and all groups above them.

    ``membership`` is the file that names its groups, ``mounted`` the folder where they are mounted. Folders may be
    missing: a container may see its own group as the root, but under its name outside of the container.
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
    """A file's text; empty where it cannot be read."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
