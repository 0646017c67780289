"""When callers of a sampler's thread hear of their answers."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from marlaas.engine.errors import AdapterError
from marlaas.engine.rollout.batching.threaded import ThreadedSampler
from marlaas.engine.rollout.batching.versions import Versions
from marlaas.engine.rollout.protocol import SamplerLimits


class Slow:
    """A scheduler that always has something to do; each step of it takes until it is let go on."""

    busy = True

    def __init__(self) -> None:
        self.steps = 0
        self.go_on = threading.Semaphore(0)

    def step(self, pressed: object) -> None:
        self.steps += 1
        self.go_on.acquire()

    def fail(self, error: Exception) -> None: ...


class Loads:
    """Versions of which one cannot be loaded."""

    def load(self, name: str, path: Path) -> str:
        if name == "broken":
            raise AdapterError("It holds no adapter.")
        return f"checksum of {name}"


@pytest.mark.parametrize("name", ["v1", "broken"])
async def test_a_loaded_version_is_heard_of_before_the_next_step(name: str) -> None:
    scheduler = Slow()
    sampler = ThreadedSampler(cast(Any, scheduler), cast(Versions, Loads()), SamplerLimits(8, 256))
    try:
        loading = asyncio.ensure_future(sampler.load(name, "file"))
        scheduler.go_on.release()  # the step that may have begun before
        answered = await asyncio.wait_for(asyncio.gather(loading, return_exceptions=True), 30)
        assert str(answered[0]) in ("checksum of v1", "It holds no adapter.")
        assert scheduler.steps <= 2, "it was answered while the next step was still made"
    finally:
        scheduler.busy = False
        for _ in range(9):
            scheduler.go_on.release()
        await sampler.close()
