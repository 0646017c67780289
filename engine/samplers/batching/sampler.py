"""A sampler process: takes requests of many versions, answers from one context."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from ...devices.limits import LentCores, as_shortage, ran_out
from ...errors import CallFailed
from ...models.find import BaseModel
from ...trajectories import Logprobs, Tokens
from ..protocol import OnTokens, SampleRequest, SampleResult, SamplerLimits, SamplerStats
from ..schemas import Schemas
from .context import SPARE, Context, score
from .requests import Answer, Answers, Versions
from .scheduler import BatchScheduler

T = TypeVar("T")
Work = Callable[[], None]
Gate = Callable[[], AbstractContextManager[None]]

log = logging.getLogger(__name__)


class SteppedScheduler(Protocol):
    """Computes in steps. Only the thread uses it."""

    @property
    def busy(self) -> bool:
        """True if ``step`` has anything to do."""

    def submit(self, request: SampleRequest, answer: Answer[SampleResult], stream_to: OnTokens | None = None) -> None:
        """Queue a turn; ``stream_to`` runs in the caller's event loop. Raises ``ValueError`` or ``AdapterError`` if it
        can never be served."""

    def release(self, name: str) -> None:
        """Forget a conversation and abort its turn; ignores unknown names."""

    def step(self) -> None:
        """Compute some tokens."""

    def fail(self, error: Exception) -> None:
        """End every turn with ``error`` and start over empty."""

    def stats(self) -> SamplerStats:
        """Totals so far."""


class ThreadedSampler:
    """``protocol.Sampler`` except ``score``: a scheduler on a thread.

    The thread empties an inbox, then makes a step, while there is work. Without memory all calls raise ``OutOfMemory``;
    the sampler is unusable afterwards.
    """

    def __init__(
        self,
        scheduler: SteppedScheduler,
        versions: Versions,
        limits: SamplerLimits,
        gate: Gate = nullcontext,
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        """Rounds run inside ``gate()``, which may wait for a device. ``idle`` is called after rounds without remaining
        work."""
        self._scheduler = scheduler
        self._versions = versions
        self._limits = limits
        self._gate = gate
        self._idle = idle
        self._answers = Answers()
        self._inbox: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    async def limits(self) -> SamplerLimits:
        return self._limits

    async def load(self, version: str, path: str) -> str:
        return await self._do(partial(self._versions.load, version, Path(path)))

    async def retire(self, version: str) -> None:
        await self._do(partial(self._versions.retire, version))

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        return await self._ask(partial(self._scheduler.submit, request, stream_to=stream_to))

    async def release(self, conversation: str) -> None:
        await self._do(partial(self._scheduler.release, conversation))

    async def stats(self) -> SamplerStats:
        return await self._do(self._scheduler.stats)

    async def close(self) -> None:
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)

    def _failed(self, error: Exception) -> None:
        if ran_out(error):
            self._scheduler.fail(as_shortage(error))
            return
        log.error("The sampler's step failed.", exc_info=error)
        self._scheduler.fail(CallFailed(f"The sampler's step failed: {error}."))

    def _close(self) -> None:
        """Free the context; the thread's last action."""

    async def _do(self, work: Callable[[], T]) -> T:
        return await self._ask(lambda answer: answer.give(work()))

    async def _ask(self, work: Callable[[Answer[T]], None]) -> T:
        answer: Answer[T] = Answer(self._answers)

        def guarded() -> None:
            try:
                work(answer)
            except Exception as error:
                answer.fail(as_shortage(error))

        self._inbox.put(guarded)
        return await answer.future

    def _run(self) -> None:
        going_on = True
        while going_on:
            waited: list[Work | None] = []
            if not self._scheduler.busy:
                if self._inbox.empty():
                    self._idle()
                waited.append(self._inbox.get())
            with self._gate():
                going_on = self._round(waited)
            self._answers.flush()

    def _round(self, waited: list[Work | None]) -> bool:
        while waited or not self._inbox.empty():
            work = waited.pop() if waited else self._inbox.get()
            if work is None:
                self._scheduler.fail(CallFailed("The sampler is closing."))
                self._close()
                return False
            work()
        if self._scheduler.busy:
            self._answers.flush()  # a version that is loaded is heard of before the next step
            try:
                self._scheduler.step()
            except Exception as error:
                self._failed(error)
        return True


FIRST = 16
"""On llama.cpp; more on demand."""


class BatchingSampler(ThreadedSampler):
    """``protocol.Sampler`` over a context of llama.cpp or torch."""

    def __init__(
        self, base: BaseModel, context: Context, length: int, cores: LentCores | None = None, note: str = ""
    ) -> None:
        """Up to ``length`` tokens each. ``cores`` are lent while idle; ``note``: see limits."""
        limits = SamplerLimits(context.sequences - SPARE, min(length, context.length), note)
        versions = Versions(base, context)
        self._context = context
        self._schemas = Schemas(base.path, context.vocabulary)
        self._batches = BatchScheduler(context, versions, limits.context)
        gate, idle = (cores.round, cores.rest) if cores else (nullcontext, lambda: None)
        super().__init__(self._batches, versions, limits, gate, idle)

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        """Compiles a schema first. Raises ``ConfigError`` if it cannot."""
        grammar = None
        if request.wishes is not None and request.wishes.schema:
            grammar = await asyncio.to_thread(self._schemas.grammar, request.wishes.schema, request.stop)
        return await self._ask(partial(self._batches.submit, request, stream_to=stream_to, grammar=grammar))

    async def retire(self, version: str) -> None:
        await super().retire(version)
        await self._do(partial(self._batches.memory.retire, version))

    async def score(self, version: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        def scored() -> Logprobs:
            handle = self._versions.serving(version).handle
            return score(self._context, handle, tokens, start, temperature)[0]

        return await self._do(scored)

    def _close(self) -> None:
        self._versions.close()
        self._context.close()
