"""Workers and state files over a bridge: all of the way to a node but Ray itself."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.errors import AdapterDamaged, AdapterError, AdapterUnreachable, WorkerDied
from marlaas.engine.home.paths import Home
from marlaas.engine.machine.cluster import cluster
from marlaas.engine.machine.cluster.bridge import NodeWorkers
from marlaas.engine.machine.cluster.cluster import (
    KEPT,
    NodeFiles,
    NodeHost,
    NodeLauncher,
    RemoteSampler,
    RemoteTrainer,
    StateFiles,
    checksum_of,
)
from marlaas.engine.machine.workers.handle import LocalLauncher, WorkerHandle
from marlaas.engine.samplers.protocol import Sampler
from marlaas.engine.trainer.protocol import GroupStats, Job, PolicyConfig, Trainer
from tests.engine.machine.workers.contract import LauncherContract, Spawn, spawning

from .without_ray import HostHere, Ready

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
BRIDGE = "tests.engine.machine.cluster.without_ray:BridgeWithoutRay"


@pytest.fixture
async def bridge(tmp_path: Path) -> AsyncIterator[WorkerHandle]:
    variables = {"PYTHONPATH": str(Path(__file__).parents[4]), "MARLAAS_HOME": str(tmp_path / "node")}
    log = tmp_path / "bridge.log"
    handle = await LocalLauncher().start("bridge", BRIDGE, {}, log_path=log, environment=variables)
    yield handle
    await handle.stop()


@pytest.fixture
async def spawn(bridge: WorkerHandle, tmp_path: Path) -> AsyncIterator[Spawn]:
    async with spawning(lambda node: NodeLauncher(bridge, node or "ada"), tmp_path) as start:
        yield start


@pytest.mark.slow
class TestOverTheBridge(LauncherContract):
    """What holds of any launcher, each time over its own bridge: half a second of a core, 16 times.

    ``tests/engine/machine/workers/test_workers.py`` shows it on this machine every day; below is what a bridge adds.
    """

    beat = 0.2
    later = True


async def test_a_lost_host_is_one_death_of_each_of_its_workers(bridge: WorkerHandle, spawn: Spawn) -> None:
    first, second, other = await spawn(), await spawn(), await spawn(node="grace")
    sent = [os.urandom(size) for size in (1, 89_999, 90_001, 3_000_000, 7)]
    assert await asyncio.gather(*(first.call("echo", each) for each in sent)) == sent, "whole and in order"
    waits = [asyncio.ensure_future(handle.call("wait_for", "never")) for handle in (first, second)]
    with pytest.raises(WorkerDied, match="the power went"):
        await bridge.call("lose", "ada", "the power went")
    for wait in waits:
        with pytest.raises(WorkerDied, match=r"Worker dummy ended: the power went\.$"):
            await wait
    assert await other.call("echo", 1) == 1
    again = await spawn()  # on a new host of the node
    assert await again.call("echo", 2) == 2 and not first.alive and not second.alive


async def test_a_dead_bridge_ends_all_workers_over_it(
    bridge: WorkerHandle, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marlaas.engine.machine.cluster.cluster.SILENCE", 0.05)
    first, *others = await spawn(), await spawn(), await spawn(node="grace")
    os.kill(bridge.pid, signal.SIGSTOP)  # nothing gets through any more
    await first.stop(grace=0.05)
    assert first.died.is_set(), "a node that answers nothing is given up"
    os.kill(bridge.pid, signal.SIGCONT)
    os.kill(bridge.pid, signal.SIGKILL)
    for handle in others:
        await handle.died.wait()
        with pytest.raises(WorkerDied, match="Worker dummy ended: Worker bridge ended by signal SIGKILL"):
            await handle.call("echo", 1)


FILES = "tests.engine.machine.cluster.without_ray:FileWorker"


async def test_a_file_of_other_bytes_is_refused(tmp_path: Path) -> None:
    files, data = NodeFiles(tmp_path), b"adapter"
    with pytest.raises(AdapterDamaged, match="checksum"):
        files.keep(checksum_of(b"another one"), data)
    assert not list(files.folder.iterdir()) and not files.here(checksum_of(b"another one"))
    path = files.keep(checksum_of(data), data)
    assert files.here(checksum_of(data)) == path and Path(path).read_bytes() == data


async def test_a_file_that_several_pull_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one would write into what another has put in place."""
    host, data, written = NodeHost(Home(tmp_path)), os.urandom(1000), list[Path]()

    def put(path: Path, data: bytes, sync: bool) -> None:
        written.append(path)
        time.sleep(0.05)
        path.write_bytes(data)

    monkeypatch.setattr(cluster, "put_state", put)
    pulls = (host.pull(checksum_of(data), [Ready(data)]) for _ in range(4))
    assert set(await asyncio.gather(*pulls)) == {str(written[0])} and len(written) == 1


async def test_a_file_that_another_thread_forgets_is_no_error(tmp_path: Path) -> None:
    files, data = NodeFiles(tmp_path), b"adapter"
    (files.folder / "gone.safetensors").symlink_to("nowhere")
    assert Path(files.keep(checksum_of(data), data)).read_bytes() == data


async def test_the_oldest_files_go_first(tmp_path: Path) -> None:
    left, other = tmp_path / "states-999999999", tmp_path / f"states-{os.getppid()}"
    left.mkdir()
    other.mkdir()
    files, digests = NodeFiles(tmp_path), []
    assert not left.exists() and other.exists(), "what a dead host left is removed"
    for number in range(KEPT + 2):
        path = tmp_path / "written"
        path.write_bytes(bytes([number]))
        digest, data = files.adopt(path)
        os.utime(files.path(digest), ns=(number, number))
        digests.append(digest)
        assert data == bytes([number]) and not path.exists()
    assert [bool(files.here(digest)) for digest in digests[:3]] == [False, False, True] and files.here(digests[-1])


async def test_bytes_that_were_lost_are_put_again(tmp_path: Path) -> None:
    """The object store lost them: the call fails, and the next one finds them."""

    class Lost(Ready):
        def __await__(self) -> Any:
            raise RuntimeError("the object is lost")

    path, puts = tmp_path / "version", [Lost(b""), Ready(b"adapter")]
    path.write_bytes(b"adapter")
    bridge = NodeWorkers(HostHere, lambda data: puts.pop(0))
    with pytest.raises(RuntimeError, match="lost"):
        await bridge.bring("ada", str(path))
    for node in ("ada", "grace"):
        assert Path(await bridge.bring(node, str(path))).read_bytes() == b"adapter"
        bridge.link(node).lose("the test is over")
    assert not puts


@pytest.fixture
async def workers(bridge: WorkerHandle, tmp_path: Path) -> AsyncIterator[list[WorkerHandle]]:
    """One on each of two nodes."""
    started = [
        await NodeLauncher(bridge, node).start(node, FILES, {}, log_path=tmp_path / f"{node}.log")
        for node in ("ada", "grace")
    ]
    yield started
    for worker in started:
        await worker.stop()


async def test_a_version_travels_once_to_each_node_and_a_step_home(
    bridge: WorkerHandle, workers: list[WorkerHandle], tmp_path: Path
) -> None:
    files, path = StateFiles(bridge, sync=False), tmp_path / "version"
    path.write_bytes(os.urandom(400_000))  # too many bytes for one piece
    samplers = [RemoteSampler(worker.proxy(Sampler), worker, files) for worker in workers for _ in range(2)]
    checksums = await asyncio.gather(*(sampler.load("task/1", str(path)) for sampler in samplers))
    assert set(checksums) == {checksum_of(path.read_bytes())}
    assert await samplers[0].load("task/1", str(path)) == checksums[0]
    assert await bridge.call("count") == 1
    with pytest.raises(AdapterUnreachable):
        await files.bring(workers[0], str(tmp_path / "nowhere"))
    with pytest.raises(AdapterError):
        await files.collect(workers[0], "/nowhere/at/all", str(tmp_path / "1"), new=False)
    files = StateFiles(bridge, sync=True)
    trainer = RemoteTrainer(workers[0].proxy(Trainer), workers[0], files)
    paths = [str(tmp_path / "task" / f"{number}") for number in range(5)]
    opened = await trainer.open("policy", PolicyConfig(), paths[0], resume=False)
    stepped = await trainer.step("policy", paths[1])
    again = await trainer.open("policy", PolicyConfig(), paths[1], resume=True)
    assert (again.checksum, again.path) == (stepped.checksum, paths[1])
    sampler = RemoteSampler(workers[1].proxy(Sampler), workers[1], files)
    assert await sampler.load("policy/1", paths[1]) == stepped.checksum
    assert (await trainer.accumulate("policy", ())).step is None
    alone = await trainer.accumulate("policy", (), path=paths[2])
    without, together = await trainer.accumulate_together((Job("other", ()), Job("policy", (), path=paths[3])))
    assert isinstance(without, GroupStats) and without.step is None
    assert isinstance(together, GroupStats) and alone.step and together.step
    for there, step in zip(paths, (opened, stepped, alone.step, together.step), strict=False):
        assert (step.path, step.checksum) == (there, checksum_of(Path(there).read_bytes()))
        assert step.notice != step.path, "the trainer wrote it to its own machine"
    stepping = asyncio.ensure_future(trainer.step("policy", paths[4]))
    with pytest.raises(WorkerDied):
        await bridge.call("lose", "ada", "the power went")
    with pytest.raises(WorkerDied):
        await stepping
    assert not Path(paths[4]).exists(), "the node vanished while the file travelled"
