"""Background work of a training loop: group producers, which may be cancelled, and evaluations, which are awaited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from types import TracebackType
from typing import Any


class Background:
    """An async context; leaving it cancels whatever still runs.

    A failing coroutine given to ``start`` cancels the body of the context and is raised from it.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._producers: set[asyncio.Task[None]] = set()
        self._body: asyncio.Task[Any] | None = None
        self._failure: BaseException | None = None

    async def __aenter__(self) -> Background:
        self._body = asyncio.current_task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        body, self._body = self._body, None  # a later failure interrupts nothing
        if self._failure is not None and body is not None:
            if not isinstance(error, asyncio.CancelledError):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)  # the body ended before its cancellation arrived
            body.uncancel()
        running = [*self._tasks, *self._producers]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self._failure is not None and (error is None or isinstance(error, asyncio.CancelledError)):
            raise self._failure from error

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def produce(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._producers.add(task)
        task.add_done_callback(self._producers.discard)

    def stop_producing(self) -> None:
        for task in self._producers:
            task.cancel()

    async def finish_producing(self) -> None:
        while self._producers:
            await asyncio.wait(self._producers)

    async def finish(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
            await asyncio.sleep(0)  # lets a failure cancel this body before it continues

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is None:
            return
        if self._failure is None and self._body is not None:
            self._failure = task.exception()
            self._body.cancel()
