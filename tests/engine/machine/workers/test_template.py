"""Workers that a template has forked: they are as those that were started by themselves, and share what it imported."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from marlaas.engine.errors import AdapterError, OutOfMemory, WorkerDied
from marlaas.engine.machine.workers.child import Template
from marlaas.engine.machine.workers.handle import LocalLauncher, WorkerHandle

from .conftest import FACTORY

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="templates fork on Linux alone"),
]
MODULES = ("tests.engine.machine.workers.dummy", "tests.engine.machine.workers.imported")


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


async def test_a_forked_worker_is_as_any_other(template: Template, tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    handle = await forked(template, tmp_path, (core,), greeting="good day")
    assert await handle.call("greet") == "good day"
    cores, threads, _ = await handle.call("where")
    assert cores == {core} and threads == "1"
    environment = await handle.call("environment")
    assert environment["SEEN"] == "none" and environment["PATH"] == os.environ["PATH"]
    words = psutil.Process(handle.pid).cmdline()
    assert words[2:5] == ["-m", "marlaas.engine.machine.workers.host", "dummy"]
    assert os.getpgid(handle.pid) == handle.pid, "Ctrl-C in a terminal does not reach it"
    with pytest.raises(AdapterError, match="It does not fit"):
        await handle.call("refuse")
    await handle.stop()
    assert not psutil.pid_exists(handle.pid)


async def test_the_template_imports_once_for_all(template: Template, tmp_path: Path) -> None:
    one, two = [await forked(template, tmp_path) for _ in range(2)]
    importers = {await handle.call("importer") for handle in (one, two)}
    assert importers == {template.pid} and len({one.pid, two.pid, template.pid}) == 3
    for handle in (one, two):
        await handle.stop()


async def test_deaths_of_forked_workers_are_told(template: Template, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="No such adapter"):
        await forked(template, tmp_path, fail="adapter")
    with pytest.raises(WorkerDied, match=r"SIGILL.*something unheard of"):
        await forked(template, tmp_path, fail="illegal")
    handle = await forked(template, tmp_path)
    with pytest.raises(WorkerDied, match="exit status 3: last words"):
        await handle.call("die")
    handle = await forked(template, tmp_path)
    with pytest.raises(OutOfMemory):
        await handle.call("run_out")
    handle = await forked(template, tmp_path)
    os.kill(handle.pid, signal.SIGKILL)
    async with asyncio.timeout(50):
        await handle.died.wait()
    assert "SIGKILL" in str(handle.death()) and template.alive


async def test_workers_die_with_their_template(template: Template, tmp_path: Path) -> None:
    handle = await forked(template, tmp_path)
    worker = psutil.Process(handle.pid)
    os.kill(template.pid, signal.SIGKILL)
    async with asyncio.timeout(50):
        await handle.died.wait()
    assert not psutil.wait_procs([worker], timeout=50)[1]
    with pytest.raises(WorkerDied):
        await forked(template, tmp_path)


async def test_a_template_that_cannot_import_says_so(tmp_path: Path) -> None:
    with pytest.raises(WorkerDied, match="no_such_module"):
        await Template.start(("no_such_module",), 0, {}, tmp_path / "template.log")


async def test_one_that_would_fork_other_threads_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(WorkerDied, match="started threads"):
        await Template.start(("threaded",), 0, {}, tmp_path / "template.log")
