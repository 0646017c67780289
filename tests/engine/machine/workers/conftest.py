from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.machine.workers.child import NOTHING
from marlaas.engine.machine.workers.handle import LocalLauncher, WorkerHandle

FACTORY = "tests.engine.machine.workers.dummy:DummyWorker"
Spawn = Callable[..., Awaitable[WorkerHandle]]


@pytest.fixture
async def spawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Spawn]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))
    handles: list[WorkerHandle] = []

    async def start(
        cores: tuple[int, ...] = (), environment: Mapping[str, str] = NOTHING, nice: int = 0, **kwargs: Any
    ) -> WorkerHandle:
        log = tmp_path / "dummy.log"
        handle = await LocalLauncher().start(
            "dummy", FACTORY, kwargs, cores, log_path=log, environment=environment, nice=nice
        )
        handles.append(handle)
        return handle

    yield start
    for handle in handles:
        await handle.stop()
