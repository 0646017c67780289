"""What a plugin's process is started with: the command line and every variable."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import sys
from pathlib import Path

import pytest

from marlaas.engine.environments.process.launch import Confinement, Folders, Runtime, command, launch, variables

PLAIN = Folders.of(Path("/h/scratch"), "x")
OF_ITS_OWN = Runtime(Path("/h/venvs/k/bin/python"), Path("/h/venvs/api"), 512)
SNAPSHOT = Path("/h/scratch/snapshots/1/x.py")


def on(runtime: Runtime) -> Folders:
    return dataclasses.replace(PLAIN, runtime=runtime)


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PATH": "/bin",
        "HOME": "/me",
        "SECRET": "s",
        "PYTHONPATH": "/mine",
        "UV_INDEX_URL": "i",
        "CUDA_VISIBLE_DEVICES": "0",
    }.items():
        monkeypatch.setenv(name, value)


def test_on_marlaas_s_own_python() -> None:
    assert command(SNAPSHOT, PLAIN, 7, 8, 99) == [
        *(sys.executable, "-P", "-m", "marlaas.plugins.host", "7", str(SNAPSHOT), "4096", "99", "5", "8")
    ]
    seen = variables(PLAIN)
    assert (seen["PATH"], seen["HOME"], seen["TMPDIR"]) == ("/bin", "/me", "/h/scratch/work/x")
    assert not {"SECRET", "PYTHONPATH", "UV_INDEX_URL"} & set(seen)
    assert seen["CUDA_VISIBLE_DEVICES"] == seen["HIP_VISIBLE_DEVICES"] == "", "no card"


def test_on_a_python_of_its_own() -> None:
    words = command(SNAPSHOT, on(OF_ITS_OWN), 7, 8, 99)
    assert words[0] == "/h/venvs/k/bin/python" and words[-4:] == ["512", "99", "5", "8"]
    seen = variables(on(OF_ITS_OWN))
    assert (seen["PYTHONPATH"], seen["PATH"]) == ("/h/venvs/api", "/h/venvs/k/bin:/bin")
    assert not {"SECRET", "UV_INDEX_URL"} & set(seen)


async def test_what_cannot_be_started_leaves_no_socket_open(tmp_path: Path) -> None:
    folders = Folders.of(tmp_path, "x")
    folders.log.mkdir(parents=True)
    gc.collect()  # what other tests left open is not closed in between
    before = os.listdir("/proc/self/fd")
    with pytest.raises(IsADirectoryError):
        await launch(SNAPSHOT, folders)
    assert os.listdir("/proc/self/fd") == before
    missing = dataclasses.replace(Folders.of(tmp_path, "y"), runtime=Runtime(tmp_path / "no python"))
    with pytest.raises(FileNotFoundError):
        await launch(SNAPSHOT, missing)
    assert os.listdir("/proc/self/fd") == before


async def test_a_cancelled_wait_leaves_no_socket_open(tmp_path: Path) -> None:
    folders = Folders.of(tmp_path, "x")
    folders = dataclasses.replace(folders, runtime=Runtime(Path(sys.executable)))
    launched = await launch(tmp_path / "x.py", folders)
    launched.connection.close()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await launched.wait()
    assert launched.pulse.connection.fileno() == -1
    launched.kill()
    await launched.wait()


def test_behind_bwrap() -> None:
    confined = on(dataclasses.replace(OF_ITS_OWN, confinement=Confinement((), ())))
    words = command(SNAPSHOT, confined, 7, 8, 0)
    assert (
        words[0].endswith("bwrap")
        and words[words.index("--") + 1] == "/h/venvs/k/bin/python"
        and words[-3:] == ["0", "5", "8"]
    )
    assert variables(confined)["HOME"] == "/h/scratch/work/x", "the person's own is not there"
