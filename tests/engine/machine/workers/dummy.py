"""A worker class for the tests of workers: plain Python, async methods, no idea where it runs."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from marlaas.engine.errors import AdapterError, OutOfMemory

PROCESS = os.getpid()
"""The process that imported this module."""


class Dummy(Protocol):
    async def echo(self, value: NDArray[np.int32]) -> NDArray[np.int32]: ...
    async def wait_for(self, name: str) -> str: ...
    async def let_go(self, name: str) -> None: ...
    async def refuse(self) -> None: ...


class DummyWorker:
    def __init__(self, greeting: str = "", fail: str = "") -> None:
        self.greeting = greeting
        self.events: dict[str, asyncio.Event] = {}
        if fail == "adapter":
            raise AdapterError("No such adapter.", "Make one.")
        if fail == "import":
            import a_module_that_is_not_there  # type: ignore[import-not-found]  # noqa: F401
        if fail == "illegal":
            print("about to do something unheard of", flush=True)
            os.kill(os.getpid(), signal.SIGILL)

    def _event(self, name: str) -> asyncio.Event:
        return self.events.setdefault(name, asyncio.Event())

    def tidy(self) -> None:
        if self.greeting.startswith("/"):
            os.unlink(self.greeting)

    async def greet(self) -> str:
        return self.greeting

    async def echo(self, value: object) -> object:
        return value

    async def wait_for(self, name: str) -> str:
        await self._event(name).wait()
        return name

    async def let_go(self, name: str) -> None:
        self._event(name).set()

    async def refuse(self) -> None:
        raise AdapterError("It does not fit.", "Bring another.")

    async def value_error(self) -> None:
        raise ValueError("Too long.")

    async def run_out(self) -> None:
        raise OutOfMemory("There is no room\nfor a vector.")

    async def bug(self) -> None:
        raise KeyError("missing")

    async def unpicklable(self) -> object:
        return lambda: None

    async def die(self) -> None:
        print("last words", flush=True)
        os._exit(3)

    async def where(self) -> tuple[set[int], str, str]:
        return os.sched_getaffinity(0), os.environ.get("OMP_NUM_THREADS", ""), os.environ.get("PYTHONSAFEPATH", "")

    async def importer(self) -> int:
        return PROCESS

    async def environment(self) -> dict[str, str]:
        return dict(os.environ)

    async def compute_until(self, name: str) -> int:
        """Keep a thread, and with it Python's lock, as busy as can be."""

        def compute() -> int:
            turns = 0
            while not self._event(name).is_set():
                turns += 1
            return turns

        return await asyncio.to_thread(compute)

    async def count_to(self, number: int, stream_to: Callable[[int], None]) -> int:
        """Tell each number, but wait for the event that is named after the last before it is told."""
        for each in range(1, number + 1):
            if each == number:
                await self._event("go on").wait()
            stream_to(each)
        return number
