import errno
import fcntl
import shutil
import stat
from pathlib import Path

import pytest

from marlaas.engine.home.guard import LOCK_FILE, PrivateFolder, remove_orphans


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
