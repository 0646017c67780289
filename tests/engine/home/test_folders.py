"""Folders of a home: which are homes, who may write to them, where they lie, and room on their disk."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import stat
from collections import namedtuple
from pathlib import Path

import pytest

from marlaas.engine.daemon import main
from marlaas.engine.daemon.control import create_database
from marlaas.engine.errors import ConfigError
from marlaas.engine.home import guard as mounts
from marlaas.engine.home.disk import DiskGuard, home_size
from marlaas.engine.home.guard import LOCK_FILE, PrivateFolder, make_private, remove_orphans
from marlaas.engine.home.paths import Home, check_folder, check_home
from marlaas.engine.home.settings import DiskSettings


def refused(root: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        check_home(Home(root))
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_folder_of_other_things_or_nothing_is_no_home(tmp_path: Path) -> None:
    said = refused(tmp_path / "labb")
    makes = f"`marlaas --home {tmp_path}/labb home new` makes one there."
    assert said == f"No home at {tmp_path}/labb: there is no such folder. {makes}"
    assert not (tmp_path / "labb").exists()
    (tmp_path / "a project" / "src").mkdir(parents=True)
    assert "the folder holds other things" in refused(tmp_path / "a project")
    said = refused(tmp_path / "a project" / "src")
    assert "the folder is empty" in said and f"--home '{tmp_path}/a project/src' home new" in said


@pytest.mark.parametrize("below", ["", "sub/deeper"])
def test_a_file_is_no_home(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("x")
    for check in (check_home, check_folder):
        with pytest.raises(ConfigError) as caught:
            check(Home(tmp_path / "file" / below))
        assert str(caught.value) == f"A home is a folder, but {tmp_path}/file is a file. Give a folder with --home."


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_writable_home_is_mended_and_said_once(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    home.config.write_text("")
    for path, bits in ((home.root, 0o777), (home.config, 0o666), (home.plugins, 0o775)):
        path.chmod(bits)
    said: list[str] = []
    create_database(home, said.append)
    assert said == [
        f"Other accounts could write to the home {home.root}; now it is yours alone (mode 0700).",
        f"Other accounts could write to {home.config}; now you alone can.",
        f"Other accounts could write to {home.plugins}; now you alone can.",
    ]
    assert [mode(path) for path in (home.root, home.config, home.plugins)] == [0o700, 0o644, 0o755]
    create_database(home, said.append)
    assert len(said) == 3


def test_a_writable_home_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "home").create()
    home.root.chmod(0o777)

    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(ConfigError, match=r"Other accounts can write to .* cannot be changed: Operation not permitted"):
        make_private(home)


def test_a_link_of_another_account_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Home(tmp_path / "real").create()
    (tmp_path / "home").symlink_to("real")
    home = Home(tmp_path / "home")
    assert make_private(home) == []
    owner = (tmp_path / "home").lstat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner:
        with pytest.raises(ConfigError, match="is a link that belongs to another account"):
            make_private(home)
    else:
        assert make_private(home) == [], "root may lead anybody anywhere"
        os.chown(tmp_path / "home", 12345, -1, follow_symlinks=False)
        with pytest.raises(ConfigError, match="is a link that belongs to another account"):
            make_private(home)


def test_plugins_elsewhere_may_be_a_groups_but_not_everybodys(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    home.plugins.rmdir()
    shared = tmp_path / "shared"
    shared.mkdir()
    home.plugins.symlink_to(shared)
    shared.chmod(0o770)
    assert make_private(home) == [] and mode(shared) == 0o770
    shared.chmod(0o777)
    with pytest.raises(ConfigError, match=f"leads to {shared}, to which every account can write"):
        make_private(home)


def test_an_engine_refuses_a_home_on_a_network_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "mounts"
    table.write_text(f"/dev/vda / ext4 rw 0 0\nserver:/home {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr(mounts, "_TABLE", table)
    home = Home(tmp_path / "home")
    assert main.run(home) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "/home: the home lies on a network file system (nfs4)" in sentence and "--home" in sentence
    assert not home.root.exists()
    with pytest.raises(ConfigError, match="network file system"):
        create_database(home)


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


def test_what_is_networked_or_far_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mounts"
    monkeypatch.setattr(mounts, "_TABLE", table)
    assert not mounts.networked(tmp_path) and not mounts.far_away(tmp_path), "there is no table"
    for kind, polled, far in (
        ("ext4", False, False),
        ("fuseblk", True, False),
        ("fuse.gocryptfs", True, False),
        ("virtiofs", True, False),
        ("9p", True, False),
        ("nfs4", True, True),
        ("fuse.sshfs", True, True),
        ("lustre", True, True),
    ):
        table.write_text(f"x {tmp_path} {kind} rw 0 0\n")
        assert mounts.networked(tmp_path / "plugins") is polled
        assert mounts.far_away(tmp_path / "home") == (kind if far else "")


def test_it_is_private_and_goes_with_its_content(tmp_path: Path) -> None:
    folder = PrivateFolder(tmp_path / "deep" / "scratch", "mine-")
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    (folder.path / "file").write_text("x")
    folder.remove()
    folder.remove()
    assert not list((tmp_path / "deep" / "scratch").iterdir())


def test_one_in_use_stays_and_those_of_dead_processes_go(tmp_path: Path) -> None:
    used = PrivateFolder(tmp_path, "mine-")
    for name in ("mine-dead", "other-dead", "mine-young"):
        (tmp_path / name).mkdir()
    for name in ("mine-dead", "other-dead"):
        (tmp_path / name / LOCK_FILE).touch()  # nobody holds it; a young one has none yet
    remove_orphans(tmp_path, "mine-")
    assert {path.name for path in tmp_path.iterdir()} == {used.path.name, "other-dead", "mine-young"}
    used.remove()


def test_one_that_was_deleted_is_made_again_and_locked(tmp_path: Path) -> None:
    folder = PrivateFolder(tmp_path, "mine-")
    shutil.rmtree(folder.path)
    assert folder.ensure() == folder.path
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    remove_orphans(tmp_path, "mine-")
    assert folder.path.is_dir()
    folder.remove()
    assert not list(tmp_path.iterdir())


def test_one_that_is_removed_before_it_is_locked_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, others = fcntl.flock, ["another process that looks for orphans"]

    def flock(file: int, operation: int) -> None:
        if others:
            others.clear()
            remove_orphans(tmp_path, "mine-")
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    folder = PrivateFolder(tmp_path, "mine-")
    remove_orphans(tmp_path, "mine-")
    assert folder.path.is_dir() and not others
    folder.remove()


def test_without_locks_it_is_there_and_nobody_removes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup may be written to a share that knows no locks."""

    def flock(file: int, operation: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", flock)
    folder, other = PrivateFolder(tmp_path, "mine-"), PrivateFolder(tmp_path, "mine-")
    assert folder.ensure() == folder.path and folder.path.is_dir()
    for one in (folder, other):
        one.remove()
    assert not list(tmp_path.iterdir())


GB = 10**9
Usage = namedtuple("Usage", "total used free")


def guard(home: Path, reserve: float = 0.5, limit: float = 0.0) -> tuple[DiskGuard, list[str]]:
    said: list[str] = []
    settings = DiskSettings(reserve_gb=reserve, limit_gb=limit)
    return DiskGuard(Home(home), settings, lambda kind, message, level: said.append(f"{level}: {message}")), said


def test_tasks_wait_until_the_reserve_is_well_exceeded(tmp_path: Path) -> None:
    disk, said = guard(tmp_path)
    disk.judge(free=GB, taken=0)
    assert disk.shortage() == "" and not said
    disk.judge(free=GB // 4, taken=0)
    assert disk.shortage() == "waiting for room on the disk: 0.25 GB are free, 0.5 GB are to stay free"
    disk.judge(free=510_000_000, taken=0)
    assert disk.shortage()
    disk.judge(free=530_000_000, taken=0)
    assert disk.shortage() == ""
    assert [line.split(":")[0] for line in said] == ["warning", "info"]


def test_over_the_limit_tasks_wait(tmp_path: Path) -> None:
    disk, _ = guard(tmp_path, limit=2.0)
    disk.judge(free=100 * GB, taken=2 * GB)
    assert disk.shortage() == ""
    disk.judge(free=100 * GB, taken=2 * GB + 20_000_000)
    assert "it takes 2.02 GB, its limit is 2 GB" in disk.shortage()
    disk.judge(free=100 * GB, taken=int(1.9 * GB))
    assert disk.shortage() == ""


async def test_the_guard_looks_at_the_real_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, _ = guard(tmp_path, reserve=1e6)  # a petabyte
    looking = asyncio.create_task(disk.run())
    while not disk.shortage():
        await asyncio.sleep(0)
    looking.cancel()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 10**18))
    looking = asyncio.create_task(disk.run())
    while disk.shortage():
        await asyncio.sleep(0)
    looking.cancel()


def test_a_home_is_counted_by_what_its_files_are_for(tmp_path: Path) -> None:
    home = Home(tmp_path).create()
    (home.adapters / "task-1").mkdir()
    for path, count in ((home.database, 10), (home.adapters / "task-1" / "v0", 20), (home.base / "b", 30)):
        path.write_bytes(bytes(count))
    (home.root / "marlaas.db-wal").write_bytes(bytes(5))
    (home.logs / "engine.log").write_bytes(bytes(7))
    size = home_size(home)
    assert (size.database, size.adapters, size.base, size.other, size.total) == (15, 20, 30, 7, 72)
