"""Workers over the bridge keep what workers on this machine do: all of the way to a node but Ray itself."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.errors import WorkerDied
from marlaas.engine.machine.cluster.node_host import NodeLauncher
from marlaas.engine.machine.workers.child import NOTHING
from marlaas.engine.machine.workers.handle import LocalLauncher, WorkerHandle
from tests.engine.machine.workers.contract import LauncherContract, Spawn

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
BRIDGE = "tests.engine.machine.cluster.without_ray:BridgeWithoutRay"
FACTORY = "tests.engine.machine.workers.dummy:DummyWorker"


async def open_bridge(folder: Path) -> WorkerHandle:
    variables = {"PYTHONPATH": str(Path(__file__).parents[4]), "MARLAAS_HOME": str(folder / "node")}
    return await LocalLauncher().start("bridge", BRIDGE, {}, log_path=folder / "bridge.log", environment=variables)


@pytest.fixture
async def bridge(tmp_path: Path) -> AsyncIterator[WorkerHandle]:
    handle = await open_bridge(tmp_path)
    yield handle
    await handle.stop()


@pytest.fixture
async def spawn(bridge: WorkerHandle, tmp_path: Path) -> AsyncIterator[Spawn]:
    handles: list[WorkerHandle] = []

    async def start(
        cores: tuple[int, ...] = (),
        environment: Mapping[str, str] = NOTHING,
        nice: int = 0,
        node: str = "ada",
        **kwargs: Any,
    ) -> WorkerHandle:
        handle = await NodeLauncher(bridge, node).start(
            "dummy", FACTORY, kwargs, cores, log_path=tmp_path / "dummy.log", environment=environment, nice=nice
        )
        handles.append(handle)
        return handle

    yield start
    for handle in handles:
        await handle.stop()


@pytest.mark.slow
class TestOverTheBridge(LauncherContract):
    """What holds of any launcher, each time over a bridge of its own: half a second of a core, 26 times.

    ``tests/engine/machine/workers/test_handle.py`` shows it on this machine every day; below is what a bridge adds.
    """

    beat = 0.2

    async def logged(self, handle: WorkerHandle, text: str) -> bool:
        """What is printed takes another way than answers do, and may come after them."""
        while text not in handle.log_path.read_text():
            await asyncio.sleep(0.01)
        return True


async def test_large_frames_arrive_whole_and_in_order(spawn: Spawn) -> None:
    handle = await spawn()
    sent = [os.urandom(size) for size in (1, 89_999, 90_001, 3_000_000, 7)]
    assert await asyncio.gather(*(handle.call("echo", each) for each in sent)) == sent


async def test_a_lost_host_is_one_death_of_each_of_its_workers(bridge: WorkerHandle, spawn: Spawn) -> None:
    first, second, other = await spawn(), await spawn(), await spawn(node="grace")
    waits = [asyncio.ensure_future(handle.call("wait_for", "never")) for handle in (first, second)]
    with pytest.raises(WorkerDied, match="the power went"):
        await bridge.call("lose", "ada", "the power went")
    for wait in waits:
        with pytest.raises(WorkerDied, match=r"Worker dummy ended: the power went\.$"):
            await wait
    assert await other.call("echo", 1) == 1
    again = await spawn()  # on a new host of the node
    assert await again.call("echo", 2) == 2 and not first.alive and not second.alive


async def test_a_dead_bridge_ends_all_workers_over_it(bridge: WorkerHandle, spawn: Spawn) -> None:
    handles = [await spawn(), await spawn(node="grace")]
    os.kill(bridge.pid, 9)
    for handle in handles:
        await handle.died.wait()
        with pytest.raises(WorkerDied, match="Worker dummy ended: Worker bridge ended by signal SIGKILL"):
            await handle.call("echo", 1)


async def test_a_node_that_answers_nothing_is_given_up(
    bridge: WorkerHandle, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marlaas.engine.machine.cluster.node_host.SILENCE", 0.05)
    handle = await spawn()
    os.kill(bridge.pid, 19)  # SIGSTOP: nothing gets through any more
    await handle.stop(grace=0.05)
    assert handle.died.is_set()
    os.kill(bridge.pid, 18)
