"""A real shortage of memory in a sampler's process: the kernel refuses what a step takes beside what there is."""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

import psutil
import pytest

from marlaas.engine.errors import OutOfMemory
from marlaas.engine.machine.plan import TORCH
from marlaas.engine.machine.workers.handle import LocalLauncher
from marlaas.engine.models.find import load_base
from marlaas.engine.samplers.protocol import Sampler

from .contract.asking import request
from .random_base import write_adapter

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux"),
]


@pytest.mark.usefixtures("main_library")
async def test_a_step_without_memory_tells_every_turn_why(tmp_path: Path) -> None:
    base = load_base("tiny")
    adapter = write_adapter(tmp_path / "adapter", base, 0)
    kwargs = {"base": str(base.path), "sequences": 64, "context": 512}
    worker = await LocalLauncher().start("rollout", TORCH, kwargs, log_path=tmp_path / "log")
    sampler = worker.proxy(Sampler)
    await sampler.load("v0", str(adapter))
    limit = psutil.Process(worker.pid).memory_info().vms + (4 << 20)
    resource.prlimit(worker.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    asked = (request(f"c{n}", [n + 2] * 400, max_tokens=100) for n in range(60))
    ends = await asyncio.gather(*map(sampler.generate, asked), return_exceptions=True)
    assert {type(end) for end in ends} == {OutOfMemory}
    assert "Worker rollout ran out of memory: RuntimeError: " in str(ends[0]) and not worker.alive
    await worker.stop()
