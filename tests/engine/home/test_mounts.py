"""Where changes have to be looked for, and where no database can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.home import guard as mounts

TABLE = """\
/dev/vda / ext4 rw,relatime 0 0
server:/home /home nfs4 rw,vers=4.2 0 0
/dev/vdb /home/eva/disk ext4 rw 0 0
someone@host: /home/eva/far\\040away fuse.sshfs rw 0 0
tmpfs /mnt tmpfs rw 0 0
//server/share /mnt cifs rw 0 0

half a line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/var/lib/marlaas/plugins", "ext4"),
        ("/home", "nfs4"),
        ("/home/eva/plugins", "nfs4"),
        ("/homes", "ext4"),
        ("/home/eva/disk/plugins", "ext4"),
        ("/home/eva/far away/plugins", "fuse.sshfs"),
        ("/mnt/plugins", "cifs"),
    ],
)
def test_the_deepest_and_last_mount_counts(path: str, kind: str) -> None:
    assert mounts.kind_of(Path(path), TABLE) == kind


def test_what_is_networked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mounts"
    monkeypatch.setattr(mounts, "_TABLE", table)
    assert not mounts.networked(tmp_path), "there is no table"
    for kind, whether in (
        ("ext4", False),
        ("overlay", False),
        ("nfs4", True),
        ("fuse.sshfs", True),
        ("virtiofs", True),
    ):
        table.write_text(f"x {tmp_path} {kind} rw 0 0\n")
        assert mounts.networked(tmp_path / "plugins") is whether


def test_what_is_far_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mounts"
    monkeypatch.setattr(mounts, "_TABLE", table)
    assert mounts.far_away(tmp_path) == "", "there is no table"
    for kind, whether in (
        ("ext4", False),
        ("overlay", False),
        ("fuseblk", False),
        ("fuse.gocryptfs", False),
        ("9p", False),
        ("nfs", True),
        ("nfs4", True),
        ("cifs", True),
        ("smb3", True),
        ("fuse.sshfs", True),
        ("fuse.glusterfs", True),
        ("lustre", True),
    ):
        table.write_text(f"x {tmp_path} {kind} rw 0 0\n")
        assert mounts.far_away(tmp_path / "home") == (kind if whether else "")
