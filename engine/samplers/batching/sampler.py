"""A sampler process: takes requests of many versions, and answers from one context."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ...devices.limits import LentCores, as_shortage, ran_out
from ...errors import CallFailed
from ...models.find import BaseModel
from ...trajectories import Logprobs, Tokens
from ..protocol import OnTokens, SampleRequest, SampleResult, SamplerLimits, SamplerStats
from ..schemas import Schemas
from .context import Context, DrawingContext, Slots
from .requests import Answer, Answers, Pace, Versions, score
from .scheduler import BatchScheduler, Pressed

# Runs a scheduler on its own thread, for callers in an event loop.
#
# The thread empties an inbox, then makes one step of the scheduler, as long as there is work. Only it touches the
# context.

T = TypeVar("T")
Work = Callable[[], None]
Gate = Callable[[], AbstractContextManager[None]]
"""The context of one round of the thread."""

log = logging.getLogger(__name__)


class SteppedScheduler(Protocol):
    """A scheduler that computes in steps. Only the thread uses it."""

    @property
    def busy(self) -> bool:
        """True if ``step`` has anything to do."""

    def submit(self, request: SampleRequest, answer: Answer[SampleResult], stream_to: OnTokens | None = None) -> None:
        """Queue a turn; ``stream_to`` is called in the caller's event loop. Raises ``ValueError`` or
        ``AdapterError`` if it can never be served.
        """

    def release(self, name: str) -> None:
        """Forget a conversation and abort its turn; unknown names are ignored."""

    def step(self, pressed: Pressed) -> None:
        """Compute some tokens; may end early once ``pressed`` reports that a call other than a turn waits."""

    def fail(self, error: Exception) -> None:
        """End every turn with ``error`` and start over with an empty scheduler."""

    def stats(self) -> SamplerStats:
        """Totals so far."""


class ThreadedSampler:
    """``protocol.Sampler`` except for ``score``, over a scheduler and its versions.

    Without memory all calls in progress raise ``OutOfMemory``; the sampler must not be used afterwards.
    """

    def __init__(
        self,
        scheduler: SteppedScheduler,
        versions: Versions,
        limits: SamplerLimits,
        gate: Gate = nullcontext,
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        """Every round of the thread runs inside ``gate()``, which may wait for a shared device. ``idle`` is called
        after rounds that left nothing to do.
        """
        self._scheduler = scheduler
        self._versions = versions
        self._limits = limits
        self._gate = gate
        self._idle = idle
        self._answers = Answers()
        self._inbox: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._pressing: deque[None] = deque()
        """One entry for each item in the inbox that ends a step early; both threads use it."""
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    async def limits(self) -> SamplerLimits:
        return self._limits

    async def load(self, version: str, path: str) -> str:
        return await self._do(partial(self._versions.load, version, Path(path)), pressing=True)

    async def retire(self, version: str) -> None:
        await self._do(partial(self._versions.retire, version))

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        answer: Answer[SampleResult] = Answer(self._answers)
        self._post(partial(self._scheduler.submit, request, answer, stream_to), answer)
        return await answer.future

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
        """Free the context; the last action of the thread."""

    async def _do(self, work: Callable[[], T], pressing: bool = False) -> T:
        answer: Answer[T] = Answer(self._answers)

        def begun() -> None:
            if pressing:
                self._pressing.pop()
            answer.give(work())

        if pressing:
            self._pressing.append(None)
        self._post(begun, answer, pressing)
        return await answer.future

    def _post(self, work: Work, answer: Answer[Any], pressing: bool = False) -> None:
        def guarded() -> None:
            try:
                work()
            except Exception as error:
                answer.fail(as_shortage(error))
            if pressing:
                self._answers.flush()

        self._inbox.put(guarded)

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
            try:
                self._scheduler.step(self._pressed)
            except Exception as error:
                self._failed(error)
        return True

    def _pressed(self) -> bool:
        return bool(self._pressing)


# The sampler protocol over a context of llama.cpp or torch.

SPARE = 2
"""Sequences kept for scoring, an aligned pair."""
FIRST = 16
"""Conversations with memory from the start; more are allocated on demand."""


class BatchingSampler(ThreadedSampler):
    """``protocol.Sampler`` over a context."""

    def __init__(
        self,
        base: BaseModel,
        context: Context,
        length: int,
        pace: Pace,
        spare: int = SPARE,
        cores: LentCores | None = None,
        first: int = 0,
    ) -> None:
        """Serve ``base`` from ``context``, with conversations of up to ``length`` tokens.

        ``spare`` of its sequences are kept for scoring; ``cores`` are lent while idle. ``first``: conversations with
        memory from the start, an even number; 0: all.
        """
        limits = SamplerLimits(context.sequences - spare, min(length, context.length))
        versions = Versions(base, context)
        self._context = context
        self._schemas = Schemas(base.path, context.vocabulary)
        self._compiled = isinstance(context, DrawingContext)
        slots = Slots(min(first, limits.sequences) or limits.sequences, limits.sequences)
        self._batches = BatchScheduler(context, versions, slots, limits.context, pace)
        gate, idle = (cores.round, cores.rest) if cores else (nullcontext, lambda: None)
        super().__init__(self._batches, versions, limits, gate, idle)

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        """See the protocol; a schema is compiled before the turn waits, else raises ``ConfigError``."""
        wishes = request.wishes
        if wishes is None or not wishes.schema:
            return await super().generate(request, stream_to=stream_to)
        grammar = await asyncio.to_thread(self._schemas.grammar, wishes.schema, request.stop)
        answer: Answer[SampleResult] = Answer(self._answers)
        self._post(partial(self._batches.submit, request, answer, stream_to, grammar), answer)
        return await answer.future

    async def retire(self, version: str) -> None:
        await super().retire(version)
        await self._do(partial(self._batches.retire, version))

    async def score(self, version: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        scoring = partial(self._score, version, tokens, start, temperature)
        return await self._do(scoring, pressing=not self._compiled)  # a compiled step is short: none is cut off

    def _score(self, version: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        handle = self._versions.serving(version).handle
        return score(self._context, handle, self._limits.sequences, tokens, start, temperature)

    def _close(self) -> None:
        self._versions.close()
        self._context.close()
