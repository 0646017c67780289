from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.workers.handle import WorkerHandle

FACTORY = "tests.engine.workers.dummy:DummyWorker"
Spawn = Callable[..., Awaitable[WorkerHandle]]


@pytest.fixture
async def spawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Spawn]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    handles: list[WorkerHandle] = []

    async def start(cores: tuple[int, ...] = (), **kwargs: Any) -> WorkerHandle:
        handle = await WorkerHandle.spawn("dummy", FACTORY, kwargs, cores, log_path=tmp_path / "dummy.log")
        handles.append(handle)
        return handle

    yield start
    for handle in handles:
        await handle.stop()
