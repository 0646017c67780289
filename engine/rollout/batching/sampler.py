"""The sampler protocol over a context: llama.cpp's, or torch's."""

from __future__ import annotations

from functools import partial

from ...base import BaseModel
from ...trajectories import Logprobs, Tokens
from ..protocol import SamplerLimits
from .context import Context
from .pace import Pace
from .scheduler import BatchScheduler
from .scoring import score
from .slots import Slots
from .threaded import ThreadedSampler
from .versions import Versions

SPARE = 2
"""Sequences kept for scoring, an aligned pair."""


class BatchingSampler(ThreadedSampler):
    """``protocol.Sampler`` over a context."""

    def __init__(self, base: BaseModel, context: Context, length: int, pace: Pace) -> None:
        """Serve ``base`` from ``context``, whose conversations may grow to ``length`` tokens."""
        limits = SamplerLimits(context.sequences - SPARE, min(length, context.length))
        versions = Versions(base, context)
        self._context = context
        scheduler = BatchScheduler(context, versions, Slots(limits.sequences), limits.context, pace)
        super().__init__(scheduler, versions, limits)

    async def score(self, version: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        """See the protocol."""
        return await self._do(partial(self._score, version, tokens, start, temperature), pressing=True)

    def _score(self, version: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        handle = self._versions.serving(version).handle
        return score(self._context, handle, self._limits.sequences, tokens, start, temperature)

    def _close(self) -> None:
        self._versions.close()
        self._context.close()
