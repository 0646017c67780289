"""The sampler protocol over a context: llama.cpp's, or torch's."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from functools import partial

from ...base import BaseModel
from ...devices import LentCores
from ...errors import CallFailed
from ...trajectories import Logprobs, Tokens
from ..protocol import OnTokens, SampleRequest, SampleResult, SamplerLimits
from ..schemas import Schemas
from .answers import Answer
from .context import Context, DrawingContext
from .pace import Pace
from .riding import Rider, RidingContext
from .scheduler import BatchScheduler
from .scoring import score
from .slots import Slots
from .threaded import ThreadedSampler
from .versions import Versions

SPARE = 2
"""Sequences kept for scoring, an aligned pair."""
FIRST = 16
"""Conversations that a sampler begins with memory for; it takes more as they are asked for."""


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
        """Serve ``base`` from ``context``, whose conversations may grow to ``length`` tokens.

        ``spare`` of its sequences are kept for scoring; ``cores`` are lent while there is nothing to do. It begins with
        memory for ``first`` conversations, an even number, and takes more as they are asked for; 0: for all.
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
        """See the protocol; a schema is made ready before the turn waits. Raises ``ConfigError`` where it cannot be."""
        wishes = request.wishes
        if wishes is None or not wishes.schema:
            return await super().generate(request, stream_to=stream_to)
        grammar = await asyncio.to_thread(self._schemas.grammar, wishes.schema, request.stop)
        answer: Answer[SampleResult] = Answer(self._answers)
        self._post(partial(self._batches.submit, request, answer, stream_to, grammar), answer)
        return await answer.future

    async def retire(self, version: str) -> None:
        """See the protocol."""
        await super().retire(version)
        await self._do(partial(self._batches.retire, version))

    async def score(self, version: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        """See the protocol."""
        if self._riding is None:
            scoring = partial(self._score, version, tokens, start, temperature)
            return await self._do(scoring, pressing=not self._compiled)  # compiled, a step is short: none is cut off
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
        """Nothing is sampled: what waited for prompts to ride with is computed now, and cores are lent."""
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
