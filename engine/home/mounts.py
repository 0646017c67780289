"""The type of a folder's file system: the kernel may miss changes in it, and a database may not work on it.

Both happen if another machine can write. ``kind_of`` is pure; ``networked`` and ``far_away`` read the mounts.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

_TABLE = Path("/proc/mounts")
_NETWORKS = ("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3")
_SHARED = ("drvfs", "prl_fs", "vboxsf", "virtiofs", "vmhgfs")
_NETWORKS_OF_PROGRAMS = ("afp", "ceph", "gcsfuse", "glusterfs", "juicefs", "nfs", "rclone", "s3fs", "smbnetfs", "sshfs")
"""Network file systems served by a program, after ``fuse.``; most other such types show a local disk."""


def networked(folder: Path) -> bool:
    """True if the kernel may miss changes in this folder, so that one must poll; False if mounts cannot be read."""
    kind = _kind(folder)
    return kind in (*_NETWORKS, *_SHARED) or kind.startswith("fuse")  # most file systems of a program are remote


def far_away(folder: Path) -> str:
    """The type of a folder's network file system; empty for any other, or if unknown.

    9p does not count: whole virtual machines and containers run on it, and their processes share its memory.
    """
    kind = _kind(folder)
    far = (kind in _NETWORKS and kind != "9p") or (kind.removeprefix("fuse.") in _NETWORKS_OF_PROGRAMS and "." in kind)
    return kind if far else ""


def _kind(folder: Path) -> str:
    try:
        return kind_of(folder.resolve(), _TABLE.read_text("utf-8", "surrogateescape"))
    except OSError:
        return ""


def kind_of(path: Path, table: str) -> str:
    """The type of the file system that holds an absolute path; empty if the table names none."""
    deepest, kind = -1, ""
    for line in table.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = PurePosixPath(_unescaped(fields[1]))
        if len(point.parts) >= deepest and path.is_relative_to(point):  # of several on one point, the last one shows
            deepest, kind = len(point.parts), fields[2]
    return kind


def _unescaped(field: str) -> str:
    """A field of the mount table with its blanks; the kernel writes them as octal numbers."""
    for escaped, character in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        field = field.replace(escaped, character)
    return field
