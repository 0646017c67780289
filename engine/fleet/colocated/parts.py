"""What the worker serves: a sampler and a trainer whose calls tell the gate that there is work.

A party with a call under way has more passes to come, and keeps the device between two of them for what is left of its
slice; see ``turns``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from ...rollout import OnTokens, Sampler, SampleRequest, SampleResult, SamplerLimits, SamplerStats
from ...trajectories import Logprobs, Tokens
from .gate import Gate
from .turns import Party

T = TypeVar("T")

NONE_YET = SamplerStats(0, 0, 0.0, 0, 0)


class Announced:
    """Wraps a service of a worker: while a call of its methods lasts, ``party`` has work."""

    def __init__(self, service: Any, gate: Gate, party: Party) -> None:
        self._service = service
        self._gate = gate
        self._party = party

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self._service, name)

        async def call(*args: Any, **named: Any) -> Any:
            with self._gate.busy(self._party):
                return await method(*args, **named)

        return call


class LightSleeper:
    """``Sampler`` over one that takes turns with the trainer and is woken only to compute: waking costs seconds.

    Releasing conversations and retiring versions wait until it is awake, and are done before whatever is asked later
    begins; totals are those of its last turn.
    """

    def __init__(self, sampler: Sampler, gate: Gate) -> None:
        self._sampler = sampler
        self._gate = gate
        self._later: list[Callable[[], Awaitable[None]]] = []
        self._catching_up = asyncio.Lock()
        self._stats = NONE_YET

    async def limits(self) -> SamplerLimits:
        """See the protocol."""
        return await self._sampler.limits()

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        """See the protocol."""
        return await self._awake(partial(self._sampler.generate, request, stream_to=stream_to))

    async def load(self, version: str, path: str) -> str:
        """See the protocol."""
        return await self._awake(partial(self._sampler.load, version, path))

    async def score(self, version: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        """See the protocol."""
        return await self._awake(partial(self._sampler.score, version, tokens, start, temperature))

    async def release(self, conversation: str) -> None:
        """See the protocol; a turn that is under way while the sampler sleeps is ended when it next wakes."""
        await self._when_awake(partial(self._sampler.release, conversation))

    async def retire(self, version: str) -> None:
        """See the protocol."""
        await self._when_awake(partial(self._sampler.retire, version))

    async def stats(self) -> SamplerStats:
        """See the protocol; of its last turn while it sleeps."""
        if not self._asleep:
            self._stats = await self._sampler.stats()
        return self._stats

    @property
    def _asleep(self) -> bool:
        return self._gate.turns.holder == "trainer"

    async def _awake(self, call: Callable[[], Awaitable[T]]) -> T:
        with self._gate.busy("sampler"):
            await self._catch_up()
            return await call()

    async def _when_awake(self, call: Callable[[], Awaitable[None]]) -> None:
        if self._asleep:
            self._later.append(call)
            return
        await self._catch_up()
        await call()

    async def _catch_up(self) -> None:
        """Wait until all that was put off is done, whoever began it; a caller that goes away breaks nothing off."""
        if self._later or self._catching_up.locked():
            await asyncio.shield(asyncio.ensure_future(self._do_what_was_put_off()))

    async def _do_what_was_put_off(self) -> None:
        """Raises the first failure, once all have ended."""
        async with self._catching_up:
            later, self._later = self._later, []
            with self._gate.busy("sampler"):
                ends = await asyncio.gather(*(call() for call in later), return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end
