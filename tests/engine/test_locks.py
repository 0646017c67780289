"""Locks on files: one process has one, and others read what it says."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from marlaas.engine.errors import ConfigError
from marlaas.engine.locks import check_lockable, said_by_holder, try_lock


def test_one_holds_it_and_others_read_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert said_by_holder(path, 10) is None, "there is none"
    file, other = (os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert said_by_holder(path, 10) is None, "nobody holds it"
    assert try_lock(file, path) and not try_lock(other, path)
    os.write(file, b"12 starts: looks at the cards")
    assert said_by_holder(path, 9) == "12 starts"
    os.close(file)
    assert said_by_holder(path, 10) is None and try_lock(other, path)
    os.close(other)


def test_a_file_system_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    check_lockable(path)
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    check_lockable(path)

    def flock(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    for told in (lambda: try_lock(file, path), lambda: check_lockable(path)):
        with pytest.raises(ConfigError, match=r"cannot be locked \(No locks available\)") as failed:
            told()
        assert failed.value.where == str(path) and "disk of this machine" in failed.value.hint
    os.close(file)
