"""What the disk may do to a home: damaged, missing and foreign state files, a full disk, numbers that are none.

Through the real recovery path: a task is paused, its files are changed, it is resumed.
"""

from __future__ import annotations

import resource
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.adapters.statefile import checksum, read_state, write_state
from marlaas.engine.errors import short_place
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import VersionRow
from tests.oracle.audit import audit

from ...seldom import often
from ..conftest import PATIENCE, Lab

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

SLOW = {"learning_rate": 1e-6, "patience": 100_000}
"""A task that does not end before its steps are made."""
Damage = Callable[[Path], object]


def paused(lab: Lab, name: str, step: int = 3) -> int:
    """A task that stands at some step beyond ``step``."""
    task = lab.submit(name, steps=5_000, train=SLOW, eval={"prompts": 4, "every": 0})
    lab.until(task, step)
    lab.marlaas("pause", str(task))
    return task


def kept(lab: Lab, task: int) -> list[VersionRow]:
    """Versions on the disk, newest first."""
    with Reader(lab.home.database) as reader:
        return [version for version in reader.versions(task) if version.state == "committed"]


def said(lab: Lab, task: int, kind: str) -> list[str]:
    with Reader(lab.home.database) as reader:
        return [event.message for event in reader.events(task) if event.kind == kind]


def waits(lab: Lab, task: int, state: str, reason: str = "") -> str:
    """Wait until a task is in a state, with a reason that begins so, and return the reason."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        row = lab.row(task)
        if row.state == state and row.reason.startswith(reason):
            return row.reason
        time.sleep(0.02)  # the engine is another process: there is nothing to await
    raise AssertionError(f"Task {task} is {lab.row(task).state}, not {state}: {lab.row(task).reason}")


def goes_on(lab: Lab, task: int, beyond: int) -> None:
    """Resume, let it make steps, and have the checker look at the whole home."""
    lab.marlaas("resume", str(task))
    assert lab.until(task, beyond + 2).step >= beyond + 2
    lab.marlaas("cancel", str(task))
    assert audit(lab.home.root, updates=False).problems == []


def flip(path: Path) -> None:
    """One byte of the adapter, in the middle of the file's first matrix."""
    state = read_state(path)
    name = min(state.adapter)
    needle = state.adapter[name].tobytes()
    data = bytearray(path.read_bytes())
    data[data.index(needle) + len(needle) // 2] ^= 0x40
    path.write_bytes(data)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def foreign(path: Path) -> None:
    """The same weights, said to belong to another base."""
    state = read_state(path)
    write_state(path, replace(state, header=replace(state.header, base="other")), sync=False)


def without_moments(path: Path) -> None:
    """Zeros where one of the optimizer's moments was."""
    needle = max((array.tobytes() for array in read_state(path).moment2.values()), key=len)
    path.write_bytes(path.read_bytes().replace(needle, bytes(len(needle))))


DAMAGES: dict[str, tuple[Damage, str]] = {
    "shortened": (shorten, "is damaged: it has"),
    "empty": (lambda path: path.write_bytes(b""), "is damaged: it has 0 bytes"),
    "missing": (Path.unlink, "is gone"),
    "a flipped bit": (flip, "is damaged: its checksum"),
    "zeros in the moments": (without_moments, "is damaged: its checksum"),
    "of another base": (foreign, "The state belongs to base model other"),
}
EVERY_DAY = ("a flipped bit",)
"""The others, in which a state file alone is read differently, are met in ``make test-slow``."""


@pytest.mark.parametrize("damage", often(EVERY_DAY, DAMAGES))
def test_a_damaged_newest_file_costs_its_step_and_no_more(lab: Lab, damage: str) -> None:
    task = paused(lab, "damaged")
    newest, before, *_ = kept(lab, task)
    spoil, words = DAMAGES[damage]
    file = Path(newest.path)
    spoil(file)
    spoiled = file.read_bytes() if file.exists() else None
    goes_on(lab, task, newest.number)
    assert any(text.startswith(f"task {task}: ") for text in audit(lab.home.root, updates=False).lost)
    message, *more = said(lab, task, "recovery")
    assert message.startswith(f"Version {newest.name} cannot be used and is void: ") and words in message
    lost = lab.home.lost / f"task-{task}" / file.name
    assert (lost.read_bytes() if lost.exists() else None) == spoiled
    assert spoiled is None or f"in {lost.parent} now: " in more[0]
    with Reader(lab.home.database) as reader:
        names = {version.name for version in reader.versions(task)}
    assert before.name in names and newest.name not in names


def test_without_sound_moments_the_optimizer_is_new(lab: Lab) -> None:
    task = lab.submit("kept", steps=5_000, train=SLOW, eval={"prompts": 4, "every": 0}, keep={"every": 2})
    deadline = time.monotonic() + PATIENCE
    while all(version.resumable for version in kept(lab, task)) and time.monotonic() < deadline:
        time.sleep(0.02)
    lab.marlaas("pause", str(task))
    whole = [version for version in kept(lab, task) if version.resumable]
    bare = next(version for version in kept(lab, task) if not version.resumable)
    for version in whole:
        shorten(Path(version.path))
    goes_on(lab, task, whole[0].number)
    *void, last, _ = said(lab, task, "recovery")
    assert len(void) == len(whole) and bare.name in last and "a new optimizer" in last


def test_a_full_disk_is_waited_for_and_nothing_is_lost(lab: Lab) -> None:
    """The kernel refuses the trainer's files beyond a few bytes, as it does on a full disk."""
    task = lab.submit("full", steps=5_000, train=SLOW, eval={"prompts": 4, "every": 0})
    lab.until(task, 2)
    (trainer,) = lab.worker_pids("training")
    limit = resource.prlimit(trainer, resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    try:
        reason = waits(lab, task, "blocked")
    finally:
        resource.prlimit(trainer, resource.RLIMIT_FSIZE, limit)
    assert "could not be written: File too large." in reason and "Free some space" in reason
    lab.until(task, lab.row(task).step + 1)  # by itself


def test_what_cannot_be_read_is_waited_for_and_nothing_is_lost(lab: Lab) -> None:
    """All adapters are away, as where their disk is not mounted; then something is in the newest file's place that the
    system does not read, whoever asks."""
    task = paused(lab, "away")
    newest, *_ = before = kept(lab, task)
    away, file = lab.home.root / "away", Path(newest.path)
    lab.home.adapters.rename(away)
    try:
        lab.marlaas("resume", str(task))
        assert f"task-{task}: the folder is not there" in waits(lab, task, "blocked", "waiting for its adapters: ")
        assert not lab.home.adapters.exists()
    finally:
        (away / f"task-{task}" / file.name).rename(lab.home.root / "aside")
        (away / f"task-{task}" / file.name).mkdir()
        away.rename(lab.home.adapters)
    reason = f"waiting for its adapters: {short_place(str(file))}: cannot be read: Is a directory"
    assert waits(lab, task, "blocked", reason)
    assert kept(lab, task) == before
    file.rmdir()
    (lab.home.root / "aside").rename(file)
    assert lab.until(task, newest.number + 2).step >= newest.number + 2
    lab.marlaas("cancel", str(task))
    assert not said(lab, task, "recovery") and not (lab.home.lost / f"task-{task}").exists()
    assert audit(lab.home.root, updates=False).problems == []


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_pauses_the_task(lab: Lab) -> None:
    """Weights as a run that has blown up leaves them; the other task goes on. Needs another start of the engine: every
    day, trainers meet such gradients in ``tests/engine/trainer``."""
    other = lab.submit("sound", steps=5_000, train=SLOW, eval={"prompts": 4, "every": 0})
    task = paused(lab, "broken")
    newest = kept(lab, task)[0]
    lab.marlaas("engine", "stop")  # a sampler that has loaded the version once would refuse other bytes
    state = read_state(Path(newest.path))
    blown = {name: array * (1e22 if name.endswith("lora_B") else 1.0) for name, array in state.adapter.items()}
    write_state(Path(newest.path), replace(state, adapter=blown), sync=False)
    with closing(sqlite3.connect(lab.home.database)) as database, database:
        database.execute("UPDATE versions SET checksum = ? WHERE id = ?", [checksum(blown), newest.id])
    lab.marlaas("engine", "start")
    lab.marlaas("resume", str(task))
    reason = waits(lab, task, "paused")
    assert "is not finite" in reason  # the next gradient, or the version after where no group had one
    lab.marlaas("cancel", str(task))
    step = lab.row(other).step
    assert lab.until(other, step + 2).step >= step + 2
    lab.marlaas("cancel", str(other))
