"""Room on the disk: who waits, why, and when they go on."""

from __future__ import annotations

import asyncio
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from marlaas.engine.home.disk import DiskGuard, home_size
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import DiskSettings

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


def test_no_limit_and_no_reserve_ask_for_nothing(tmp_path: Path) -> None:
    disk, _ = guard(tmp_path, reserve=0.0)
    disk.judge(free=0, taken=10**15)
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
