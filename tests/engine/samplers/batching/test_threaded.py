"""When callers of a sampler's thread hear of their answers."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from marlaas.engine.errors import AdapterError
from marlaas.engine.samplers.batching.requests import Versions
from marlaas.engine.samplers.batching.sampler import ThreadedSampler
from marlaas.engine.samplers.protocol import SamplerLimits


class Slow:
    """A scheduler that always has something to do; once something was loaded, a step takes until it may end."""

    busy = True

    def __init__(self) -> None:
        self.loaded, self.may_end = threading.Event(), threading.Event()

    def step(self) -> None:
        if self.loaded.is_set():
            self.may_end.wait()

    def fail(self, error: Exception) -> None: ...


class Loads:
    """Versions of which one cannot be loaded."""

    def __init__(self, loaded: threading.Event) -> None:
        self._loaded = loaded

    def load(self, name: str, path: Path) -> str:
        self._loaded.set()
        if name == "broken":
            raise AdapterError("It holds no adapter.")
        return f"checksum of {name}"


@pytest.mark.parametrize("name", ["v1", "broken"])
async def test_a_loaded_version_is_heard_of_before_the_next_step(name: str) -> None:
    scheduler = Slow()
    versions = cast(Versions, Loads(scheduler.loaded))
    sampler = ThreadedSampler(cast(Any, scheduler), versions, SamplerLimits(8, 256))
    try:
        loading = asyncio.gather(sampler.load(name, "file"), return_exceptions=True)
        (answer,) = await asyncio.wait_for(loading, 30)
        assert str(answer) in ("checksum of v1", "It holds no adapter.")
    finally:
        scheduler.busy = False
        scheduler.may_end.set()
        await sampler.close()
