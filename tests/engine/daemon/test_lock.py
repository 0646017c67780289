"""One engine per home, and a lock that dies with its holder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from marlaas.engine.daemon.lock import EngineLock, holder
from marlaas.engine.errors import HomeLocked


def test_a_held_lock_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "engine.lock"
    assert holder(path) is None
    lock = EngineLock(path)
    lock.acquire()
    assert holder(path) == os.getpid()
    with pytest.raises(HomeLocked, match=f"process {os.getpid()}"):
        EngineLock(path).acquire()
    lock.release()
    assert holder(path) is None
    EngineLock(path).acquire()


def test_a_file_left_behind_holds_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "engine.lock"
    path.write_text("12345\n")
    assert holder(path) is None
    lock = EngineLock(path)
    lock.acquire()
    assert path.read_text() == f"{os.getpid()}\n"
    lock.release()
