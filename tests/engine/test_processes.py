"""Helpers of the engine: fault points, locks, programs that are run, races, and copies that keep every field."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from marlaas.engine import faults
from marlaas.engine.errors import ConfigError
from marlaas.engine.faults import Point, reach
from marlaas.engine.locks import check_lockable, said_by_holder, try_lock
from marlaas.engine.programs import run_program
from marlaas.engine.racing import until_first
from marlaas.engine.samplers.protocol import SampleRequest
from marlaas.engine.trajectories import Episode, Trajectory
from tests.arming import arm, disarm, recorded

CODE = """
import sys
from marlaas.engine.faults import Point, reach, switch_on
switch_on("worker")
for _ in range(int(sys.argv[1])):
    reach(Point.STATE_NAMED)
"""


def reaches(folder: Path, times: int) -> int:
    """A process of its own reaches one point ``times`` times; its exit status."""
    command = [sys.executable, "-P", "-c", CODE, str(times)]
    return subprocess.run(command, env=os.environ | {faults.VARIABLE: str(folder)}, timeout=50).returncode


@pytest.mark.processes
def test_who_reaches_an_armed_point_often_enough_dies_once(tmp_path: Path) -> None:
    arm(tmp_path, Point.STATE_NAMED, 3, "first")
    assert reaches(tmp_path, 2) == 0
    assert reaches(tmp_path, 9) == -signal.SIGKILL
    assert reaches(tmp_path, 9) == 0
    record = recorded(tmp_path)
    assert [one.died for one in record] == [False] * 4 + [True] + [False] * 9
    assert {one.process for one in record} == {"worker"} and not disarm(tmp_path, Point.STATE_NAMED)


def test_nothing_is_reached_unless_it_is_switched_on(tmp_path: Path) -> None:
    arm(tmp_path, Point.COMMIT_READY, 1, "first")
    reach(Point.COMMIT_READY)
    assert recorded(tmp_path) == []
    assert disarm(tmp_path, Point.COMMIT_READY) and not disarm(tmp_path, Point.COMMIT_READY)


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


def test_all_that_it_prints_is_told_with_its_status() -> None:
    code = "import os, sys; print(os.environ['WORD']); print('and', file=sys.stderr); sys.exit(3)"
    status, said = run_program([sys.executable, "-c", code], 60, {"WORD": "this"})
    assert status == 3 and sorted(said.split()) == ["and", "this"]


def test_one_that_hangs_or_is_missing_says_so() -> None:
    with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"):
        run_program([sys.executable, "-c", "import time; time.sleep(60)"], 0.1)
    with pytest.raises(FileNotFoundError):
        run_program(["/nowhere/at/all"], 1)


async def ends_at_once() -> None:
    """Nothing to do."""


async def fails() -> None:
    raise LookupError("lost")


class Endless:
    """Runs until it is cancelled, and takes a turn of the loop to end."""

    ended = False

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.ended = True


async def loses() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise LookupError("too late")


async def test_the_others_have_ended_when_it_returns() -> None:
    slow = Endless()
    assert await until_first(slow.run(), loses(), ends_at_once(), ends_at_once()) == {2, 3}
    assert slow.ended, "what others raise at their end is lost"
    slow = Endless()
    with pytest.raises(LookupError, match="lost"):
        await until_first(slow.run(), fails())
    assert slow.ended


async def test_cancelling_ends_all() -> None:
    first, second = Endless(), Endless()
    race = asyncio.ensure_future(until_first(first.run(), second.run()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    race.cancel()
    with pytest.raises(asyncio.CancelledError):
        await race
    assert first.ended and second.ended


T = TypeVar("T")


def one_of(kind: type[T]) -> T:
    """One whose fields are all different, and equal to nothing else."""
    found: Any = kind
    made: T = found(**{field.name: object() for field in fields(found)})
    return made


def test_copies_keep_all_other_fields() -> None:
    trajectory, episode, request = one_of(Trajectory), one_of(Episode), one_of(SampleRequest)
    assert trajectory.judged(1.5, ()) == replace(trajectory, advantage=1.5, spans=())
    assert episode.having(()) == replace(episode, trajectories=())
    asked = replace(request, conversation="a:1", account="ann", weight=2.0, alike=False)
    assert request.of("a:1", "ann", 2.0, alike=False) == asked
