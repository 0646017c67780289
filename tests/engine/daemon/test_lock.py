"""One engine per home, and a lock that dies with its holder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from marlaas.engine.daemon.heartbeat import Heartbeat
from marlaas.engine.daemon.lock import EngineLock, holder
from marlaas.engine.environments.outcomes import OutcomeCounts
from marlaas.engine.errors import HomeLocked
from marlaas.engine.fairness.line import Ledger


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


def test_who_asks_for_the_holder_keeps_no_engine_out(tmp_path: Path) -> None:
    path = tmp_path / "engine.lock"
    asking = open(path, "w")  # noqa: SIM115 - closed by the pause below
    fcntl.flock(asking, fcntl.LOCK_SH)
    lock = EngineLock(path)
    lock.acquire(pause=lambda _: asking.close())
    assert holder(path) == os.getpid()
    lock.release()


def test_a_lock_file_that_was_removed_comes_back(tmp_path: Path) -> None:
    """A clean-up of files that are called ``*.lock``."""
    path = tmp_path / "engine.lock"
    lock = EngineLock(path)
    lock.acquire()
    lock.keep()
    for _ in range(2):
        path.unlink()
        assert holder(path) is None
        lock.keep()
        assert holder(path) == os.getpid()
        with pytest.raises(HomeLocked):
            EngineLock(path).acquire()
    lock.release()
    assert holder(path) is None


async def test_a_home_that_is_away_for_a_time_ends_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moved, or on a full disk: the file cannot be put back now, and the next beat tries again."""
    monkeypatch.setattr("marlaas.engine.daemon.heartbeat.HEARTBEAT", 0.0)
    tries = iter(
        [FileNotFoundError(2, "gone"), OSError(28, "No space left on device"), HomeLocked("Another serves it.")]
    )

    def keep() -> None:
        raise next(tries)

    heartbeat = Heartbeat(cast(Any, None), Ledger(), OutcomeCounts(), lambda: None, keep=keep)
    monkeypatch.setattr(heartbeat, "_beat", AsyncMock())
    with pytest.raises(HomeLocked):
        await heartbeat.run(cast(Any, None))


def test_of_two_engines_the_one_without_the_file_ends(tmp_path: Path) -> None:
    path = tmp_path / "engine.lock"
    first, second = EngineLock(path), EngineLock(path)
    first.acquire()
    path.unlink()
    second.acquire()
    with pytest.raises(HomeLocked):
        first.keep()
    second.keep()
    second.release()
    first.release()
