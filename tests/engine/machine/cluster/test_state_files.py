"""State files between the engine's machine and nodes: put once, pulled once, verified, and home before a commit."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.errors import AdapterDamaged, AdapterError, AdapterUnreachable, WorkerDied
from marlaas.engine.machine.cluster.bridge import NodeWorkers
from marlaas.engine.machine.cluster.cluster import RemoteSampler, RemoteTrainer, StateFiles
from marlaas.engine.machine.cluster.node_host import KEPT, NodeFiles, NodeLauncher, checksum_of
from marlaas.engine.machine.workers.handle import WorkerHandle
from marlaas.engine.samplers.protocol import Sampler
from marlaas.engine.trainer.protocol import GroupStats, Job, PolicyConfig, Trainer

from .test_launcher import open_bridge
from .without_ray import HostHere, Ready

DUMMY = "tests.engine.machine.workers.dummy:DummyWorker"
FILES = "tests.engine.machine.cluster.file_worker:FileWorker"
LARGE = 400_000
"""Bytes: too many for one piece."""


async def test_a_file_is_pulled_once_however_many_ask(tmp_path: Path) -> None:
    files, data, pulls = NodeFiles(tmp_path), b"adapter", 0

    async def get() -> bytes:
        nonlocal pulls
        pulls += 1
        await asyncio.sleep(0)
        return data

    digest = checksum_of(data)
    paths = await asyncio.gather(*(files.pull(digest, get) for _ in range(5)))
    assert pulls == 1 and len(set(paths)) == 1 and Path(paths[0]).read_bytes() == data
    assert await files.pull(digest, get) == paths[0] and pulls == 1


async def test_other_bytes_than_were_asked_for_are_refused(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)

    async def get() -> bytes:
        return b"something else"

    with pytest.raises(AdapterDamaged, match="checksum"):
        await files.pull(checksum_of(b"adapter"), get)
    assert not list(files.folder.iterdir()) and not files.here(checksum_of(b"adapter"))


async def test_the_oldest_files_go_first(tmp_path: Path) -> None:
    files, digests = NodeFiles(tmp_path), []
    for number in range(KEPT + 2):
        path = tmp_path / "written"
        path.write_bytes(bytes([number]))
        digest, data = files.adopt(path)
        os.utime(files.path(digest), ns=(number, number))
        digests.append(digest)
        assert data == bytes([number]) and not path.exists()
    assert [bool(files.here(digest)) for digest in digests[:3]] == [False, False, True] and files.here(digests[-1])


async def test_what_a_dead_host_left_is_removed(tmp_path: Path) -> None:
    left, other = tmp_path / "states-999999999", tmp_path / f"states-{os.getppid()}"
    left.mkdir()
    other.mkdir()
    NodeFiles(tmp_path)
    assert not left.exists() and other.exists()


async def test_bytes_that_were_lost_are_put_again(tmp_path: Path) -> None:
    """The object store lost them, perhaps with the node that held them."""

    class Lost:
        def __await__(self) -> Iterator[None]:
            yield
            raise RuntimeError("the object is lost")

    class Fading(Ready):
        reads = 0

        def __await__(self) -> Iterator[Any]:
            self.reads += 1
            return super().__await__() if self.reads == 1 else Lost().__await__()

    path, puts = tmp_path / "version", list[Lost | Ready]([Lost(), Fading(b"adapter"), Ready(b"adapter")])
    path.write_bytes(b"adapter")
    bridge = NodeWorkers(HostHere, lambda data: puts.pop(0))
    with pytest.raises(RuntimeError, match="lost"):
        await bridge.bring("ada", str(path))
    for node in ("ada", "grace"):  # the second finds what the first has put, and that it is lost
        assert Path(await bridge.bring(node, str(path))).read_bytes() == b"adapter"
        bridge.link(node).lose("the test is over")
    assert not puts


@pytest.mark.processes
@pytest.mark.timeout(120)
class TestOverTheBridge:
    @pytest.fixture
    async def bridge(self, tmp_path: Path) -> AsyncIterator[WorkerHandle]:
        handle = await open_bridge(tmp_path)
        yield handle
        await handle.stop()

    @pytest.fixture
    async def workers(self, bridge: WorkerHandle, tmp_path: Path) -> AsyncIterator[list[WorkerHandle]]:
        """One on each of two nodes."""
        started = [
            await NodeLauncher(bridge, node).start(node, FILES, {}, log_path=tmp_path / f"{node}.log")
            for node in ("ada", "grace")
        ]
        yield started
        for worker in started:
            await worker.stop()

    async def test_a_version_travels_once_to_each_node(
        self, bridge: WorkerHandle, workers: list[WorkerHandle], tmp_path: Path
    ) -> None:
        files, path = StateFiles(bridge, sync=False), tmp_path / "version"
        path.write_bytes(os.urandom(LARGE))
        samplers = [RemoteSampler(worker.proxy(Sampler), worker, files) for worker in workers for _ in range(2)]
        said = await asyncio.gather(*(sampler.load("task/1", str(path)) for sampler in samplers))
        assert set(said) == {checksum_of(path.read_bytes())}
        assert await samplers[0].load("task/1", str(path)) == said[0]
        assert await bridge.call("count") == 1

    async def test_a_step_is_home_before_it_is_told(
        self, bridge: WorkerHandle, workers: list[WorkerHandle], tmp_path: Path
    ) -> None:
        trainer = RemoteTrainer(workers[0].proxy(Trainer), workers[0], StateFiles(bridge, sync=True))
        first, second = tmp_path / "task" / "0", tmp_path / "task" / "1"
        opened = await trainer.open("policy", PolicyConfig(), str(first), resume=False)
        stepped = await trainer.step("policy", str(second))
        assert [opened.path, stepped.path] == [str(first), str(second)]
        assert [opened.checksum, stepped.checksum] == [checksum_of(each.read_bytes()) for each in (first, second)]
        again = await trainer.open("policy", PolicyConfig(), str(second), resume=True)
        assert (again.checksum, again.path) == (stepped.checksum, str(second))
        sampler = RemoteSampler(workers[1].proxy(Sampler), workers[1], StateFiles(bridge, sync=True))
        assert await sampler.load("policy/1", str(second)) == stepped.checksum

    async def test_a_step_in_the_call_of_its_groups_comes_home(
        self, bridge: WorkerHandle, workers: list[WorkerHandle], tmp_path: Path
    ) -> None:
        trainer = RemoteTrainer(workers[0].proxy(Trainer), workers[0], StateFiles(bridge, sync=True))
        (tmp_path / "task").mkdir()
        paths = [tmp_path / "task" / name for name in ("1", "2")]
        assert (await trainer.accumulate("policy", ())).step is None
        alone = await trainer.accumulate("policy", (), path=str(paths[0]))
        jobs = (Job("other", ()), Job("policy", (), path=str(paths[1])))
        without, together = await trainer.accumulate_together(jobs)
        assert isinstance(without, GroupStats) and without.step is None
        assert isinstance(together, GroupStats) and alone.step and together.step
        for step, path in zip((alone.step, together.step), paths, strict=True):
            assert (step.path, step.checksum) == (str(path), checksum_of(path.read_bytes()))
            assert step.notice != step.path, "the trainer wrote it to its own machine"

    async def test_a_node_may_vanish_while_a_file_travels(
        self, bridge: WorkerHandle, workers: list[WorkerHandle], tmp_path: Path
    ) -> None:
        trainer = RemoteTrainer(workers[0].proxy(Trainer), workers[0], StateFiles(bridge, sync=False))
        await trainer.open("policy", PolicyConfig(), str(tmp_path / "0"), resume=False)
        stepping = asyncio.ensure_future(trainer.step("policy", str(tmp_path / "1")))
        with pytest.raises(WorkerDied):
            await bridge.call("lose", "ada", "the power went")
        with pytest.raises(WorkerDied):
            await stepping
        assert not (tmp_path / "1").exists()

    async def test_a_file_that_is_not_there_is_said(
        self, bridge: WorkerHandle, workers: list[WorkerHandle], tmp_path: Path
    ) -> None:
        files = StateFiles(bridge, sync=False)
        with pytest.raises(AdapterUnreachable):
            await files.bring(workers[0], str(tmp_path / "nowhere"))
        with pytest.raises(AdapterError):
            await files.collect(workers[0], "/nowhere/at/all", str(tmp_path / "1"), new=False)
