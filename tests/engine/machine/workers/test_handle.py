"""Worker processes on this machine, from the engine's side."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from marlaas.engine.machine.workers.handle import WorkerHandle

from .contract import LauncherContract

pytestmark = pytest.mark.processes
Spawn = Callable[..., Awaitable[WorkerHandle]]


class TestHere(LauncherContract):
    """Children of this process."""


async def test_a_worker_has_the_engines_environment_and_its_own(spawn: Spawn) -> None:
    handle = await spawn(environment={"CUDA_VISIBLE_DEVICES": "GPU-7"})
    assert await handle.call("environment") == os.environ | {"CUDA_VISIBLE_DEVICES": "GPU-7"}
    assert os.environ.get("CUDA_VISIBLE_DEVICES") != "GPU-7"


async def test_workers_do_not_outlive_a_killed_engine(tmp_path: Path) -> None:
    root = Path(__file__).parents[4]
    command = (sys.executable, "-m", "tests.engine.machine.workers.orphan", str(tmp_path / "log"))
    engine = await asyncio.create_subprocess_exec(
        *command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, stdout=asyncio.subprocess.PIPE
    )
    if engine.stdout is None:
        raise RuntimeError("no pipe")
    worker = psutil.Process(int(await engine.stdout.readline()))
    engine.kill()
    await engine.wait()
    await asyncio.to_thread(worker.wait, 10)
