"""Workers on a node of a real cluster keep what workers on this machine do."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from marlaas.engine.machine.cluster.node_host import NodeLauncher
from marlaas.engine.machine.workers.child import NOTHING
from marlaas.engine.machine.workers.handle import WorkerHandle
from tests.engine.machine.workers.contract import LauncherContract, Spawn
from tools.ray_nodes import RayNodes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]
FACTORY = "tests.engine.machine.workers.dummy:DummyWorker"


@pytest_asyncio.fixture(loop_scope="module")
async def spawn(ray_nodes: RayNodes, bridge: WorkerHandle, tmp_path: Path) -> AsyncIterator[Spawn]:
    handles: list[WorkerHandle] = []

    async def start(
        cores: tuple[int, ...] = (), environment: Mapping[str, str] = NOTHING, nice: int = 0, **kwargs: Any
    ) -> WorkerHandle:
        launcher = NodeLauncher(bridge, ray_nodes.ids["ada"])
        handle = await launcher.start(
            "dummy", FACTORY, kwargs, cores, log_path=tmp_path / "dummy.log", environment=environment, nice=nice
        )
        handles.append(handle)
        return handle

    yield start
    for handle in handles:
        await handle.stop()


class TestOnANode(LauncherContract):
    beat = 0.5

    async def logged(self, handle: WorkerHandle, text: str) -> bool:
        """What is printed takes another way than answers do, and may come after them."""
        while text not in handle.log_path.read_text():
            await asyncio.sleep(0.01)
        return True


async def test_a_worker_has_its_nodes_environment_and_its_own(spawn: Spawn, ray_nodes: RayNodes) -> None:
    handle = await spawn(environment={"CUDA_VISIBLE_DEVICES": "GPU-7"})
    found = await handle.call("environment")
    assert found["CUDA_VISIBLE_DEVICES"] == "GPU-7"
    assert found["MARLAAS_HOME"] == str(ray_nodes.home("ada"))
    assert not [name for name in found if name.startswith("RAY_") or name == "OMP_NUM_THREADS"]


async def test_large_frames_arrive_whole_and_in_order(spawn: Spawn) -> None:
    handle = await spawn()
    sent = [os.urandom(size) for size in (1, 89_999, 90_001, 3_000_000, 7)]
    assert await asyncio.gather(*(handle.call("echo", each) for each in sent)) == sent
