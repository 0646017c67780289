"""Worker processes on this machine, forked ones, their frames, and how their end is told."""

from __future__ import annotations

import asyncio
import os
import pickle
import pickletools
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from marlaas.engine.errors import AdapterError, OutOfMemory, WorkerDied
from marlaas.engine.machine.workers.handle import LocalLauncher, Template, WorkerHandle, last_line, sentence
from marlaas.engine.machine.workers.wire import HEADER, Answer, Call, Message, pack, read
from marlaas.engine.samplers.protocol import SampleRequest, SampleResult
from marlaas.engine.trainer.protocol import TrainGroup, TrainSequence

from .contract import FACTORY, LauncherContract, Spawn, spawning

ORPHAN = """
import asyncio, sys
from pathlib import Path
from marlaas.engine.machine.workers.handle import LocalLauncher

async def main():
    handle = await LocalLauncher().start("dummy", sys.argv[1], {}, log_path=Path(sys.argv[2]))
    print(handle.pid, flush=True)
    await handle.call("wait_for", "never")

asyncio.run(main())
"""
"""Stands for an engine that is killed."""


@pytest.fixture
async def spawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Spawn]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))
    async with spawning(lambda _: LocalLauncher(), tmp_path) as start:
        yield start


@pytest.mark.processes
class TestHere(LauncherContract):
    """Children of this process."""


@pytest.mark.processes
async def test_workers_do_not_outlive_a_killed_engine(tmp_path: Path) -> None:
    root = Path(__file__).parents[4]
    engine = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        ORPHAN,
        FACTORY,
        str(tmp_path / "log"),
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        stdout=asyncio.subprocess.PIPE,
    )
    if engine.stdout is None:
        raise RuntimeError("no pipe")
    worker = psutil.Process(int(await engine.stdout.readline()))
    engine.kill()
    await engine.wait()
    await asyncio.to_thread(worker.wait, 10)


MODULES = ("tests.engine.machine.workers.dummy",)


@pytest.fixture
async def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Template]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))
    template = await Template.start(MODULES, 1, {"SEEN": "card"}, tmp_path / "template.log")
    yield template
    await template.stop()


async def forked(template: Template, folder: Path, cores: tuple[int, ...] = (), **kwargs: object) -> WorkerHandle:
    environment = {"SEEN": "none"}
    return await LocalLauncher().start(
        "dummy", FACTORY, kwargs, cores, log_path=folder / "dummy.log", environment=environment, template=template
    )


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="templates fork on Linux alone")
async def test_a_forked_worker_is_as_any_other(template: Template, tmp_path: Path) -> None:
    """The template imports once for all."""
    core = min(os.sched_getaffinity(0))
    handle = await forked(template, tmp_path, (core,), greeting="good day")
    other = await forked(template, tmp_path)
    assert await handle.call("greet") == "good day"
    cores, threads, _ = await handle.call("where")
    assert cores == {core} and threads == "1"
    environment = await handle.call("environment")
    assert environment["SEEN"] == "none" and environment["PATH"] == os.environ["PATH"]
    words = psutil.Process(handle.pid).cmdline()
    assert words[2:5] == ["-m", "marlaas.engine.machine.workers.host", "dummy"]
    assert os.getpgid(handle.pid) == handle.pid, "Ctrl-C in a terminal does not reach it"
    assert {await each.call("importer") for each in (handle, other)} == {template.pid}
    assert len({handle.pid, other.pid, template.pid}) == 3
    with pytest.raises(AdapterError, match="It does not fit"):
        await handle.call("refuse")
    await other.stop()
    await handle.stop()
    assert not psutil.pid_exists(handle.pid)


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="templates fork on Linux alone")
async def test_deaths_of_forked_workers_are_told(template: Template, tmp_path: Path) -> None:
    with pytest.raises(WorkerDied, match=r"SIGILL.*something unheard of"):
        await forked(template, tmp_path, fail="illegal")
    for method, error, words in (
        ("die", WorkerDied, "exit status 3: last words"),
        ("run_out", OutOfMemory, "ran out of memory"),
    ):
        handle = await forked(template, tmp_path)
        with pytest.raises(error, match=words):
            await handle.call(method)
    handle = await forked(template, tmp_path)
    os.kill(handle.pid, signal.SIGKILL)
    async with asyncio.timeout(50):
        await handle.died.wait()
    assert "SIGKILL" in str(handle.death()) and template.alive


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="templates fork on Linux alone")
async def test_workers_die_with_their_template(template: Template, tmp_path: Path) -> None:
    handle = await forked(template, tmp_path)
    worker = psutil.Process(handle.pid)
    os.kill(template.pid, signal.SIGKILL)
    async with asyncio.timeout(50):
        await handle.died.wait()
    assert not psutil.wait_procs([worker], timeout=50)[1]
    with pytest.raises(WorkerDied):
        await forked(template, tmp_path)


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="templates fork on Linux alone")
@pytest.mark.parametrize(("module", "words"), [("no_such_module", "no_such_module"), ("threaded", "started threads")])
async def test_a_template_that_cannot_fork_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, words: str
) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(WorkerDied, match=words):
        await Template.start((module,), 0, {}, tmp_path / "template.log")


@pytest.mark.parametrize(
    ("code", "starting", "line", "words"),
    [
        (1, False, "boom", "Worker w ended with exit status 1: boom."),
        (0, False, "", "Worker w ended."),
        (-4, True, "loading.", "Worker w could not start by signal SIGILL (illegal instruction): loading."),
        (-200, False, "", "Worker w ended by signal 200."),
        (None, True, "x", "Worker w could not start: x."),
        (None, False, "", "Worker w ended."),
        (12, False, "no room.", "Worker w ran out of memory: no room."),
        (12, True, "", "Worker w could not start with exit status 12."),
    ],
)
def test_an_end_is_one_sentence(code: int | None, starting: bool, line: str, words: str) -> None:
    assert sentence("w", code, starting, line)[0] == words
    assert "memory" in sentence("w", -9, False, "")[1] and sentence("w", -11, False, "")[1] == "", "hints"


def test_the_last_line_is_this_runs_own(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_line(log) == ""
    log.write_bytes(b"an older run\n")
    assert last_line(log, log.stat().st_size) == ""
    with open(log, "ab") as file:
        file.write(b"x" * 9000 + b"\nhalf \xff of it \n\n")
    assert last_line(log, 13) == "half \ufffd of it"


TOKENS = np.arange(1000, dtype=np.int32)
LOGPROBS = np.linspace(-3, 0, 1000, dtype=np.float32)
MASK = np.ones(1000, np.uint8)


async def test_frames_are_read_whole_or_not_at_all() -> None:
    call = Call(1, "m", (np.arange(5),))
    reader = asyncio.StreamReader()
    reader.feed_data(pack(call) + pack(Answer(1, "v"), Answer(2, "w")) + pack(Answer(3, "lost"))[:-1])
    reader.feed_eof()
    (first,) = await read(reader)
    assert isinstance(first, Call) and np.array_equal(first.args[0], np.arange(5))
    assert await read(reader) == (Answer(1, "v"), Answer(2, "w"))
    assert await read(reader) == ()


@pytest.mark.parametrize(
    "message",
    [
        Call(1, "generate", (SampleRequest("c", "v", TOKENS, 8, 1.0, (2,), 7),)),
        Answer(1, SampleResult(TOKENS, LOGPROBS, "stop", "v", "sum")),
        Call(2, "accumulate", ("p", (TrainGroup(0, (TrainSequence(TOKENS, MASK, LOGPROBS, 0.5),)),))),
        Answer(3, LOGPROBS),
    ],
)
def test_arrays_travel_as_bytes(message: Message) -> None:
    """However long the arrays are, only the bytes grow: no number is pickled by itself."""
    body = pack(message)[HEADER.size :]
    arrays = [array for array in (TOKENS, LOGPROBS, MASK) if array.tobytes() in body]
    assert arrays
    assert len(body) - sum(array.nbytes for array in arrays) < 1000
    assert len(list(pickletools.genops(body))) < 200


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int64).reshape(2, 3),
        np.arange(6, dtype=np.int32)[::2],
        np.arange(3, dtype=">i4"),
        np.array(["a", "b"]),
        np.array([True, False]),
        np.empty(0, np.float32),
        np.float32(0.5),
    ],
)
def test_arrays_of_any_kind_come_back_and_can_be_written_to(array: NDArray[np.generic]) -> None:
    (answer,) = pickle.loads(pack(Answer(1, array))[HEADER.size :])
    assert answer.value.dtype == array.dtype and np.array_equal(answer.value, array)
    assert not isinstance(array, np.ndarray) or answer.value.flags.writeable
