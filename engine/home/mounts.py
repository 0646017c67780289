"""What kind of file system a folder lies on: whether the kernel tells of changes in it, and whether a database can be.

Neither holds where another machine can write. A path and the table of mounts flow in, an answer flows out. Pure but for
``networked`` and ``far_away``.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

_TABLE = Path("/proc/mounts")
_NETWORKS = ("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3")
_SHARED = ("drvfs", "prl_fs", "vboxsf", "virtiofs", "vmhgfs")
"""What a machine shows of its own folders to the virtual ones on it."""
_NETWORKS_OF_PROGRAMS = ("afp", "ceph", "gcsfuse", "glusterfs", "juicefs", "nfs", "rclone", "s3fs", "smbnetfs", "sshfs")
"""Behind ``fuse.``; most others there show a local disk in another way."""


def networked(folder: Path) -> bool:
    """Whether changes in this folder have to be looked for; where no table of mounts can be read, they need not."""
    kind = _kind(folder)
    return kind in (*_NETWORKS, *_SHARED) or kind.startswith("fuse")  # most of what is served by a program is remote


def far_away(folder: Path) -> str:
    """The type of the network file system that a folder lies on; empty for any other, or where nobody knows.

    9p is none of them here: whole virtual machines and containers live on it, and their processes share its memory.
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
    """The type of the file system that holds an absolute path; empty where the table names none."""
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
    """The kernel writes blanks as octal numbers."""
    for escaped, character in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        field = field.replace(escaped, character)
    return field
