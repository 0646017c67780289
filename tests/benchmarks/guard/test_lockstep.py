"""Under the lockstep loop, what workers answer arrives in the same order and at the same time in every run."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from benchmarks.guard.lockstep import TICK, LockstepLoop, attached
from marlaas.engine.machine.workers.handle import LocalLauncher, WorkerHandle

pytestmark = pytest.mark.processes
FACTORY = "tests.engine.machine.workers.dummy:DummyWorker"


def test_answers_arrive_together_in_the_order_of_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
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
