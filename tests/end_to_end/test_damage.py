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
from marlaas.engine.store.reader import Reader
from marlaas.engine.store.rows import VersionRow
from tools.audit.audit import audit

from .conftest import PATIENCE, Lab

pytestmark = [pytest.mark.processes, pytest.mark.timeout(150)]

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


def waits(lab: Lab, task: int, state: str) -> str:
    """Wait until a task is in a state, and return its reason."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        row = lab.row(task)
        if row.state == state:
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


DAMAGES: dict[str, tuple[Damage, str]] = {
    "shortened": (shorten, "cannot be read"),
    "empty": (lambda path: path.write_bytes(b""), "cannot be read"),
    "missing": (Path.unlink, "cannot be read"),
    "a flipped bit": (flip, "its file holds"),
    "of another base": (foreign, "The state belongs to base model other"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_file_costs_its_step_and_no_more(lab: Lab, damage: str) -> None:
    task = paused(lab, "damaged")
    newest, before, *_ = kept(lab, task)
    spoil, words = DAMAGES[damage]
    spoil(Path(newest.path))
    goes_on(lab, task, newest.number)
    (message,) = said(lab, task, "recovery")
    assert message.startswith(f"Version {newest.name} cannot be used and is void: ") and words in message
    with Reader(lab.home.database) as reader:
        names = {version.name for version in reader.versions(task)}
    assert before.name in names and newest.name not in names


def test_where_nothing_with_moments_is_sound_a_kept_version_goes_on_with_a_new_optimizer(lab: Lab) -> None:
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
    *void, last = said(lab, task, "recovery")
    assert len(void) == len(whole) and bare.name in last and "a new optimizer" in last


def test_a_full_disk_pauses_the_task_and_loses_nothing(lab: Lab) -> None:
    """The kernel refuses the trainer's files beyond a few bytes, as it does on a full disk."""
    task = lab.submit("full", steps=5_000, train=SLOW, eval={"prompts": 4, "every": 0})
    lab.until(task, 2)
    (trainer,) = lab.worker_pids("training")
    limit = resource.prlimit(trainer, resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    try:
        reason = waits(lab, task, "paused")
    finally:
        resource.prlimit(trainer, resource.RLIMIT_FSIZE, limit)
    assert "could not be written: File too large." in reason and "Free some space" in reason
    goes_on(lab, task, lab.row(task).step)


def test_a_folder_that_cannot_be_written_pauses_the_task(lab: Lab) -> None:
    task = paused(lab, "folder")
    before = lab.row(task).step
    folder = lab.home.adapters / f"task-{task}"
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.write_text("not a folder")
    lab.marlaas("resume", str(task))
    try:
        assert "could not be written" in waits(lab, task, "paused")
    finally:
        folder.unlink()
        aside.rename(folder)
    assert before >= lab.row(task).step


def test_a_gradient_that_is_no_number_pauses_the_task_with_the_evidence(lab: Lab) -> None:
    """Weights as a run that has blown up leaves them; the other task goes on."""
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
