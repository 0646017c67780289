"""A sampler process: takes requests of many versions, and answers from one context."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...base import BaseModel, scored_rows
from ...devices import LentCores, as_shortage, ran_out
from ...errors import CallFailed
from ...trajectories import Logprobs, Tokens
from ..protocol import OnTokens, SampleRequest, SampleResult, SamplerLimits, SamplerStats
from ..sampling import logprobs_of
from ..schemas import Schemas
from .context import Arrays, Context, DrawingContext, Handles, Ints, Logits, Slots
from .requests import Answer, Answers, Pace, Versions, check_score, score
from .scheduler import BatchScheduler, Pressed

# Scores that join a call of prompts, if the context ``joins``: a call on a small base costs several times as much as a
# few more rows. (Compiled calls do not, so scores do not join them.) After ``PATIENCE`` calls a score gets its own.

PATIENCE = 4
"""Calls without a prompt that a score lets pass: one step of the scheduler on a small base. A commit may wait for
it."""
LONGEST = 256
"""Most rows of scores that join a call: they delay the others."""
SEATS = 7
"""Further sequences for scores, if the context ``joins``. Only the first ``LONGEST`` tokens ever take memory."""


@dataclass(frozen=True)
class Rider:
    """A waiting score."""

    handle: int
    """Its adapter, which must stay loaded until ``over``."""
    tokens: Tokens
    start: int
    temperature: float
    answer: Answer[Logprobs]
    over: Callable[[], None]
    """Called before the answer is given."""
    told: Callable[[], None]
    """Called afterwards."""

    @property
    def rows(self) -> int:
        return len(self.tokens) - 1

    def give(self, logprobs: Logprobs) -> None:
        self.over()
        self.answer.give(logprobs)
        self.told()

    def fail(self, error: Exception) -> None:
        self.over()
        self.answer.fail(error)
        self.told()


class RidingContext:
    """Implements ``Context`` over another that ``joins``. Sequences from ``first`` on, except the last, are for
    scores.
    """

    def __init__(self, context: Context, first: int) -> None:
        self._context = context
        self._spare = range(
            first, context.sequences - 1
        )  # the last one is for prompts with requested log-probabilities
        self._waiting: deque[tuple[Rider, int]] = deque()
        """Scores with the number of the next call on arrival, the oldest first."""
        self._calls = 0
        self._adapters: Handles = np.empty(0, np.int64)
        self._alike = True
        self.sequences, self.length, self.vocabulary = context.sequences, context.length, context.vocabulary
        self.weights, self.mixes, self.joins = context.weights, context.mixes, context.joins
        self.held: Ints = context.held

    def add(self, rider: Rider) -> None:
        """Let a score wait for a call. Raises ``ValueError`` if it can never be computed."""
        check_score(self._context, rider.tokens, rider.start)
        self._waiting.append((rider, self._calls))

    def flush(self) -> None:
        while self._waiting:
            rider, _ = self._waiting.popleft()
            try:
                said = score(self._context, rider.handle, self._spare[0], rider.tokens, rider.start, rider.temperature)
            except Exception as error:
                rider.fail(as_shortage(error))
            else:
                rider.give(said)
        self._context.use(self._adapters, self._alike)

    def fail(self, error: Exception) -> None:
        while self._waiting:
            self._waiting.popleft()[0].fail(error)

    def decode(self, tokens: Ints, positions: Ints, sequences: Ints, outputs: NDArray[np.int8]) -> Logits:
        prompts = bool(self._waiting) and len(np.unique(sequences)) < len(sequences)
        riders = self._boarding() if prompts and len(self._adapters) else []
        if riders:
            self._calls += 1
            return self._together(riders, tokens, positions, sequences, outputs)
        self._go_without()
        return self._context.decode(tokens, positions, sequences, outputs)

    def _go_without(self) -> None:
        self._calls += 1
        if self._waiting and self._calls - self._waiting[0][1] > PATIENCE:
            self.flush()

    def _boarding(self) -> list[Rider]:
        room, rows = scored_rows(self.vocabulary), LONGEST
        riders: list[Rider] = []
        while self._waiting and len(riders) < len(self._spare) and self._waiting[0][0].rows <= min(rows, room):
            riders.append(self._waiting.popleft()[0])
            room, rows = room - riders[-1].rows, rows - riders[-1].rows
        return riders

    def _together(
        self, riders: list[Rider], tokens: Ints, positions: Ints, sequences: Ints, outputs: NDArray[np.int8]
    ) -> Logits:
        own = self._adapters if len(self._adapters) > 1 else np.repeat(self._adapters, len(tokens))
        counts, spare = [rider.rows for rider in riders], list(self._spare[: len(riders)])
        places = [np.arange(count, dtype=np.int32) for count in counts]
        wanted = [place >= rider.start - 1 for place, rider in zip(places, riders, strict=True)]
        self._context.use(np.concatenate([own, np.repeat([rider.handle for rider in riders], counts)]), self._alike)
        try:
            logits = self._context.decode(
                np.concatenate([tokens, *(rider.tokens[:-1] for rider in riders)]),
                np.concatenate([positions, *places]),
                np.concatenate([sequences, np.repeat(np.array(spare, np.int32), counts)]),
                np.concatenate([outputs, *(each.astype(np.int8) for each in wanted)]),
            )
        except Exception:
            overdue = self._calls - PATIENCE  # they may be to blame: the next call without a prompt is their own
            self._waiting.extendleft((rider, overdue) for rider in reversed(riders))
            raise
        finally:
            for sequence in spare:
                self._context.cut(sequence, 0)
            self._context.use(self._adapters, self._alike)
        first = asked = int(outputs.sum())
        for rider in riders:
            count = len(rider.tokens) - rider.start
            rider.give(logprobs_of(logits[first : first + count], rider.tokens[rider.start :], rider.temperature))
            first += count
        return logits[:asked]

    def grow(self, sequences: int, needed: bool) -> bool:
        return self._context.grow(sequences, needed)

    def use(self, adapters: Handles, alike: bool = True) -> None:
        self._adapters, self._alike = adapters, alike
        self._context.use(adapters, alike)

    def cut(self, sequence: int, length: int) -> None:
        self._context.cut(sequence, length)

    def copy(self, source: int, target: int, length: int) -> None:
        self._context.copy(source, target, length)

    def load_adapter(self, adapter: Arrays, alpha: float) -> int:
        return self._context.load_adapter(adapter, alpha)

    def free_adapter(self, adapter: int) -> None:
        self._context.free_adapter(adapter)

    def close(self) -> None:
        self._context.close()


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
        """Compute some tokens; may end early once ``pressed`` says that a call other than a turn waits."""

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
        self._cores = cores
        self._schemas = Schemas(base.path, context.vocabulary)
        self._compiled = isinstance(context, DrawingContext)
        rides = context.joins and not self._compiled
        self._riding = RidingContext(context, limits.sequences) if rides else None
        slots = Slots(min(first, limits.sequences) or limits.sequences, limits.sequences)
        self._batches = BatchScheduler(self._riding or context, versions, slots, limits.context, pace)
        super().__init__(self._batches, versions, limits, cores.round if cores else nullcontext, self._rest)

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
        if self._riding is None:
            scoring = partial(self._score, version, tokens, start, temperature)
            return await self._do(scoring, pressing=not self._compiled)  # a compiled step is short: none is cut off
        answer: Answer[Logprobs] = Answer(self._answers)
        self._post(partial(self._ride, self._riding, version, tokens, start, temperature, answer), answer)
        return await answer.future

    def _ride(
        self,
        riding: RidingContext,
        name: str,
        tokens: Tokens,
        start: int,
        temperature: float,
        answer: Answer[Logprobs],
    ) -> None:
        version = self._versions.serving(name)
        leave = partial(self._versions.leave, version)
        riding.add(Rider(version.handle, tokens, start, temperature, answer, leave, self._answers.flush))
        version.users += 1

    def _rest(self) -> None:
        if self._riding is not None:
            self._riding.flush()
        if self._cores is not None:
            self._cores.rest()

    def _score(self, version: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        handle = self._versions.serving(version).handle
        return score(self._context, handle, self._limits.sequences, tokens, start, temperature)

    def _close(self) -> None:
        if self._riding is not None:
            self._riding.fail(CallFailed("The sampler is closing."))
        self._versions.close()
        self._context.close()
