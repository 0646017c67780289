"""What the disk may do to a home: damaged, missing and foreign state files, and a full disk.

Through the real recovery path: a task is paused, its files are changed, it is resumed.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.adapters.statefile import read_state, write_state
from marlaas.engine.errors import short_place
from marlaas.engine.store.queries import machine
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import VersionRow
from tests.oracle.audit import audit
from tests.oracle.report import Report

from ..seldom import often
from .conftest import Lab, awaited

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


def on_disk(lab: Lab, task: int) -> list[VersionRow]:
    """Versions on the disk, newest first."""
    with Reader(lab.home.database) as reader:
        return [version for version in reader.versions(task) if version.state == "committed"]


def messages(lab: Lab, task: int, kind: str) -> list[str]:
    with Reader(lab.home.database) as reader:
        return [
            event.message
            for event in machine.newest_events(reader, machine.EventFilter(task=task))
            if event.kind == kind
        ]


def goes_on(lab: Lab, task: int, beyond: int) -> Report:
    """Resume, let it make steps, and have the checker look at the whole home."""
    lab.marlaas("resume", str(task))
    assert lab.until(task, beyond + 2).step >= beyond + 2
    lab.marlaas("cancel", str(task))
    report = audit(lab.home.root, updates=False)
    assert report.problems == []
    return report


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
    newest, before, *_ = on_disk(lab, task)
    spoil, words = DAMAGES[damage]
    file = Path(newest.path)
    spoil(file)
    spoiled = file.read_bytes() if file.exists() else None
    report = goes_on(lab, task, newest.number)
    assert any(text.startswith(f"task {task}: ") for text in report.lost)
    message, *more = messages(lab, task, "recovery")
    assert message.startswith(f"Version {newest.name} cannot be used and is void: ") and words in message
    lost = lab.home.lost / f"task-{task}" / file.name
    assert (lost.read_bytes() if lost.exists() else None) == spoiled
    assert spoiled is None or f"in {lost.parent} now: " in more[0]
    with Reader(lab.home.database) as reader:
        names = {version.name for version in reader.versions(task)}
    assert before.name in names and newest.name not in names


def test_without_sound_moments_the_optimizer_is_new(lab: Lab) -> None:
    task = lab.submit("on disk", steps=5_000, train=SLOW, eval={"prompts": 4, "every": 0}, keep={"every": 2})
    awaited(lambda: not all(version.resumable for version in on_disk(lab, task)))
    lab.marlaas("pause", str(task))
    whole = [version for version in on_disk(lab, task) if version.resumable]
    bare = next(version for version in on_disk(lab, task) if not version.resumable)
    for version in whole:
        shorten(Path(version.path))
    goes_on(lab, task, whole[0].number)
    *void, last, _ = messages(lab, task, "recovery")
    assert len(void) == len(whole) and bare.name in last and "a new optimizer" in last


def test_a_full_disk_is_waited_for_and_nothing_is_lost(lab: Lab) -> None:
    """The kernel refuses the trainer's files beyond a few bytes, as it does on a full disk."""
    task = lab.submit("full", steps=5_000, train=SLOW, eval={"prompts": 4, "every": 0})
    lab.until(task, 2)
    (trainer,) = lab.worker_pids("training")
    limit = resource.prlimit(trainer, resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    try:
        reason = lab.reaches(task, "blocked").reason
    finally:
        resource.prlimit(trainer, resource.RLIMIT_FSIZE, limit)
    assert "could not be written: File too large." in reason and "Free some space" in reason
    lab.until(task, lab.row(task).step + 1)  # by itself


def test_what_cannot_be_read_is_waited_for_and_nothing_is_lost(lab: Lab) -> None:
    """All adapters are away, as where their disk is not mounted; then something is in the newest file's place that the
    system does not read, whoever asks."""
    task = paused(lab, "away")
    newest, *_ = before = on_disk(lab, task)
    away, file = lab.home.root / "away", Path(newest.path)
    lab.home.adapters.rename(away)
    try:
        lab.marlaas("resume", str(task))
        reason = lab.reaches(task, "blocked", "waiting for its adapters: ").reason
        assert reason.startswith("waiting for its adapters: ") and f"task-{task}: the folder is not there" in reason
        assert not lab.home.adapters.exists()
    finally:
        (away / f"task-{task}" / file.name).rename(lab.home.root / "aside")
        (away / f"task-{task}" / file.name).mkdir()
        away.rename(lab.home.adapters)
    reason = f"waiting for its adapters: {short_place(str(file))}: cannot be read: Is a directory"
    assert lab.reaches(task, "blocked", reason).reason.startswith(reason)
    assert on_disk(lab, task) == before
    file.rmdir()
    (lab.home.root / "aside").rename(file)
    assert lab.until(task, newest.number + 2).step >= newest.number + 2
    lab.marlaas("cancel", str(task))
    assert not messages(lab, task, "recovery") and not (lab.home.lost / f"task-{task}").exists()
    assert audit(lab.home.root, updates=False).problems == []
