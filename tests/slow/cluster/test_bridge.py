"""Workers and files on nodes of a real cluster: they do what they do on this machine, and die alone."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from marlaas.engine.errors import WorkerDied
from marlaas.engine.machine.cluster.cluster import NodeLauncher, StateFiles, checksum_of
from marlaas.engine.machine.workers.handle import WorkerHandle
from tests.engine.machine.workers.contract import LauncherContract, Spawn, spawning
from tests.ray_nodes import MEMORY, RayNodes

from .conftest import open_bridge

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.cluster]


@pytest_asyncio.fixture(loop_scope="module")
async def spawn(ray_nodes: RayNodes, bridge: WorkerHandle, tmp_path: Path) -> AsyncIterator[Spawn]:
    async with spawning(lambda _: NodeLauncher(bridge, ray_nodes.ids["ada"]), tmp_path) as start:
        yield start


@pytest.mark.timeout(300)
class TestOnANode(LauncherContract):
    beat = 0.5
    later = True


@pytest.mark.timeout(300)
async def test_a_worker_has_its_nodes_environment_and_its_own(spawn: Spawn, ray_nodes: RayNodes) -> None:
    handle = await spawn(environment={"CUDA_VISIBLE_DEVICES": "GPU-7"})
    found = await handle.call("environment")
    assert found["CUDA_VISIBLE_DEVICES"] == "GPU-7"
    assert found["MARLAAS_HOME"] == str(ray_nodes.home("ada"))
    assert not [name for name in found if name.startswith("RAY_") or name == "OMP_NUM_THREADS"]


FACTORY = "tests.engine.machine.workers.dummy:DummyWorker"
FILES = "tests.engine.machine.cluster.without_ray:FileWorker"


async def start(bridge: WorkerHandle, node: str, log: Path, factory: str = FACTORY) -> WorkerHandle:
    return await NodeLauncher(bridge, node).start("dummy", factory, {}, log_path=log)


def host_of(worker: WorkerHandle) -> psutil.Process:
    parent = psutil.Process(worker.pid).parent()
    assert parent is not None
    return parent


@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", ["worker", "host", "dark way", "node", "bridge"])
async def test_each_is_one_death(
    victim: str, ray_nodes: RayNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bridge = await open_bridge(ray_nodes, tmp_path / "bridge.log")
    first = await start(bridge, ray_nodes.ids["ada"], tmp_path / "first.log")
    other = await start(bridge, ray_nodes.ids["grace"], tmp_path / "other.log")
    waiting = asyncio.ensure_future(first.call("wait_for", "never"))
    assert await first.call("echo", 1) == 1
    process, host = psutil.Process(first.pid), host_of(first)
    if victim == "worker":
        process.kill()
    elif victim == "host":
        host.kill()
    elif victim == "dark way":
        monkeypatch.setattr("marlaas.engine.machine.cluster.cluster.SILENCE", 0.5)
        host.send_signal(signal.SIGSTOP)
        await first.stop(grace=0.5)
    elif victim == "node":
        await asyncio.to_thread(ray_nodes.remove, "ada")
    else:
        os.kill(bridge.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match=r"^Worker dummy ended( by signal SIGKILL|: .+)"):
        await waiting
    assert first.died.is_set()
    if victim == "bridge":
        await other.died.wait()
    else:
        assert await other.call("echo", 2) == 2 and other.alive
    if victim == "dark way":
        host.send_signal(signal.SIGCONT)
    await asyncio.to_thread(process.wait, 60)  # nothing of it is left
    if victim == "node":
        ray_nodes.ids["ada"] = await asyncio.to_thread(ray_nodes.add, "ada")
    if victim != "bridge":
        again = await start(bridge, ray_nodes.ids["ada"], tmp_path / "again.log")
        assert await again.call("echo", 3) == 3
    await bridge.stop()


@pytest.mark.timeout(600)
async def test_a_file_larger_than_the_object_store_arrives(
    ray_nodes: RayNodes, bridge: WorkerHandle, tmp_path: Path
) -> None:
    worker = await start(bridge, ray_nodes.ids["ada"], tmp_path / "worker.log", FILES)
    path = tmp_path / "version"
    path.write_bytes(os.urandom(1000) * (MEMORY // 1000 + 20_000))
    there = await StateFiles(bridge, sync=False).bring(worker, str(path))
    assert await worker.call("load", "task/1", there) == checksum_of(path.read_bytes())
    await worker.stop()
