"""Counts of what the hot paths do: the same in every run, and a change fails until it is written down."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks.guard import __main__ as command, storing
from benchmarks.guard.__main__ import COUNTS
from benchmarks.guard.comparison import changes, read, written
from benchmarks.guard.lockstep import TICK, LockstepLoop, attached
from benchmarks.guard.watching import Seen, frames, operations, python_calls
from marlaas.engine.machine.workers import wire
from marlaas.engine.machine.workers.handle import LocalLauncher, WorkerHandle
from marlaas.engine.samplers.seeds import noise_seed


def test_what_is_written_is_read_again() -> None:
    counts = {"b: calls": 1234.0, "a: bytes": 12.375, "c: never": 0.0}
    text = written(counts)
    assert text.splitlines()[-2:] == ["a: bytes = 12.38", "b: calls = 1,234"]
    assert read(text) == {"a: bytes": 12.38, "b: calls": 1234.0}
    assert not changes(read(text), counts)


def test_each_change_is_one_sentence() -> None:
    before = {"rose": 10.0, "fell": 8.0, "stayed": 3.0, "went": 2.0}
    assert changes(before, {"rose": 12.0, "fell": 7.0, "stayed": 3.0, "came": 1.5}) == [
        "New: came: 1.5.",
        "Fewer: fell: 7 instead of 8 (-12.5 %).",
        "More: rose: 12 instead of 10 (+20.0 %).",
        "Gone: went was 2.",
    ]


def test_a_change_fails_until_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "counts.txt"
    monkeypatch.setattr(command, "COUNTS", file)
    before, now = {"calls": 1.0}, {"calls": 2.0}
    assert command.told(before, before, write=False) == 0
    assert command.told(before, now, write=False) == 1
    assert not file.exists()
    assert "More: calls: 2 instead of 1" in capsys.readouterr().out
    assert command.told(before, now, write=True) == 0
    assert command.told(read(file.read_text("utf-8")), now, write=False) == 0


FACTORY = "tests.engine.machine.workers.dummy:DummyWorker"


@pytest.mark.processes
def test_answers_arrive_together_in_the_order_of_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    with asyncio.Runner(loop_factory=LockstepLoop) as runner:
        stepping, ordinary = runner.run(_orders(tmp_path))
    assert [name for name, _ in ordinary] == ["z", "y", "x"]
    assert [name for name, _ in stepping] == ["a", "b", "c"]
    assert len({when for _, when in stepping}) == 1


async def _orders(folder: Path) -> list[list[tuple[str, float]]]:
    """Who was answered when: in lockstep, and without."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, LockstepLoop)
    with attached(loop):
        worker = await LocalLauncher().start("dummy", FACTORY, {}, log_path=folder / "dummy.log")
        try:
            with loop.lockstep():
                stepping = await _order(worker, loop, "abc")
            return [stepping, await _order(worker, loop, "xyz")]
        finally:
            await worker.stop()


async def _order(worker: WorkerHandle, loop: LockstepLoop, names: str) -> list[tuple[str, float]]:
    order: list[tuple[str, float]] = []

    def note(name: str, _: object) -> None:
        order.append((name, loop.time()))

    calls = {name: asyncio.ensure_future(worker.call("wait_for", name)) for name in names}
    for name, call in calls.items():
        call.add_done_callback(partial(note, name))
    await asyncio.sleep(0)  # they are on their way
    for name in reversed(names):
        worker.post("let_go", name, haste=True)
    await asyncio.gather(*calls.values())
    return order


@pytest.mark.processes
async def test_clocks_stand_still_while_nobody_waits() -> None:
    def run() -> tuple[float, float]:
        async def sleep() -> tuple[float, float]:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, LockstepLoop)
            with loop.lockstep():
                begun = loop.time()
                await asyncio.to_thread(sum, range(1000))
                worked = loop.time() - begun
                await asyncio.sleep(1000)
                return worked, loop.time() - begun

        with asyncio.Runner(loop_factory=LockstepLoop) as runner:
            return runner.run(sleep())

    worked, slept = await asyncio.to_thread(run)
    assert worked == 0.0
    assert slept == pytest.approx(1000, abs=10 * TICK)


@dataclass(frozen=True)
class Pair:
    left: int
    right: int


def test_calls_of_our_packages_count_alone() -> None:
    seen = Seen()
    with python_calls(seen):
        for member in range(3):
            noise_seed(1, "train", member)
            Pair(member, member)
            sorted([3, 1, 2], key=lambda value: -value)
    noise_seed(2)
    counts = seen.counts()
    assert counts["Python calls, dataclasses"] == 3
    assert counts["Python calls, engine/samplers"] >= 3
    assert set(counts) == {"Python calls, dataclasses", "Python calls, engine/samplers"}


async def test_frames_and_messages_count_without_paths(tmp_path: Path) -> None:
    written: list[bytes] = []
    sizes = []
    for folder in (tmp_path, tmp_path / "much" / "further" / "below"):
        seen = Seen()
        outbox = wire.Outbox(written.append, lambda message, error: None)
        with frames(seen, folder):
            for number in range(3):
                outbox.send(wire.Call(number, "load", (str(folder / "state"),)))
            await asyncio.sleep(0)
        assert seen.wire["frames to workers"] == 1 and seen.wire["messages to workers"] == 3
        sizes.append(seen.wire["bytes to workers"])
    assert len(written[0]) < len(written[1])
    assert sizes[0] == sizes[1]


def test_views_are_told_from_operations() -> None:
    rows = torch.ones(4, 4)
    assert dict(operations(lambda: (rows.T @ rows).view(16).sum())) == {"operations": 2, "views": 2}


def test_statements_are_those_in_the_file() -> None:
    """What the store does for a group and for a step is quick to count, so the suite says when the file is old."""
    found = storing.measure()
    kept = {name: count for name, count in read(COUNTS.read_text("utf-8")).items() if name.endswith(tuple(found))}
    assert found["a group of 8 members stored: SQL, INSERT"] >= storing.MEMBERS
    assert not changes(kept, found)
