"""A conversation's access to its version's samplers."""

from __future__ import annotations

import asyncio
from functools import partial

from ..errors import WorkerDied
from ..fairness.line import Ledger, Payer, Reservation, rollout_cost
from ..samplers.protocol import NewTokens, OnTokens, SampleRequest, SampleResult
from .slots import Replicas, SamplerEndpoint, SamplerSlots


class SamplerClient:
    """Implements ``protocol.Turns`` and ``slots.SlotHolder``. Call ``leave`` at the episode's end.

    One cached conversation at a time. Each slot renames it: a late release never hits the next.
    """

    def __init__(self, replicas: Replicas, ledger: Ledger, payer: Payer, anew: bool) -> None:
        """``anew``: turns compute the whole context at the first replica, for equal bits."""
        self.payer = payer
        self._leaves = anew
        self._replicas = Replicas(replicas.endpoints[:1]) if anew else replicas
        self._endpoint = replicas.endpoints[0]
        """The sampler with its slot, if any, and its cache."""
        self._ledger = ledger
        self._held = ""
        self._known = 0
        self._prompt = b""
        self._count = 0
        """Number of conversations so far; a part of their names."""

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        """A cancelled turn ends at once; its tokens are paid. If the sampler dies, another repeats the turn. Raises
        ``WorkerDied`` if none is left, or a part may have been streamed."""
        payer = self.payer
        if self._held != request.conversation:
            self.lose_slot()
        while True:
            reply = self._ledger.reply(payer.task, payer.policy, request.max_tokens)
            here = self._endpoint if self._held else None
            endpoint, unread = self._replicas.choose(request.tokens, reply, here, self._known)
            if endpoint is not self._endpoint:
                self._slots.leave(self)
                self._endpoint = endpoint
            if not self._held:
                self._prompt = request.tokens.tobytes()
                self._replicas.begin(endpoint, self._prompt)
            try:
                with endpoint.backlog.turn(unread, reply):
                    return await self._sample(request, stream_to)
            except WorkerDied:
                endpoint.lost = True
                if stream_to is not None or self._replicas.lost:
                    raise
                self._slots.leave(self)
                self.lose_slot()

    async def _sample(self, request: SampleRequest, stream_to: OnTokens | None) -> SampleResult:
        await self._slots.take(self)
        cost = None
        try:
            if not self._held:
                self._held = request.conversation
                self._count += 1
            payer = self.payer
            weight = self._slots.line.weight(payer.tenant)
            request = request.of(self._name, payer.tenant, weight, alike=self._leaves)
            waits = True

            def send(new: NewTokens) -> None:
                if waits and stream_to is not None:
                    stream_to(new)

            options = {} if stream_to is None else {"stream_to": send}
            turn = asyncio.ensure_future(self._endpoint.sampler.generate(request, **options))
            try:
                result = await asyncio.shield(turn)
            except asyncio.CancelledError:
                waits = False  # the turn continues until the sampler has ended it
                turn.add_done_callback(partial(self._settle, self._endpoint, self._slots.abandon(self)))
                raise
            self._known = len(request.tokens) + len(result.tokens)
            cost = self._paid(self._endpoint, result)
            return result
        finally:
            self._slots.rest(self, cost)
            if self._leaves:
                self.leave()

    async def release(self, conversation: str) -> None:
        if conversation == self._held:
            name = self._name
            self._let_go()
            await self._endpoint.sampler.release(name)

    def leave(self) -> None:
        self._leaves = True
        self._slots.leave(self)
        self.lose_slot()

    def _settle(
        self, endpoint: SamplerEndpoint, reservation: Reservation | None, turn: asyncio.Future[SampleResult]
    ) -> None:
        ended = not turn.cancelled() and turn.exception() is None
        cost = self._paid(endpoint, turn.result()) if ended else None
        if reservation is not None:
            endpoint.slots.line.end(reservation, cost)

    def _paid(self, endpoint: SamplerEndpoint, result: SampleResult) -> int:
        payer, sampled = self.payer, len(result.tokens)
        self._ledger.rollout(payer.task, result.prefilled, sampled, endpoint.name, payer.policy)
        return rollout_cost(result.prefilled, sampled)

    def lose_slot(self) -> None:
        if self._held:
            self._endpoint.forget(self._name)
        self._let_go()

    def _let_go(self) -> None:
        if self._prompt:
            self._replicas.end(self._endpoint, self._prompt)
        self._held, self._known, self._prompt = "", 0, b""

    @property
    def _slots(self) -> SamplerSlots:
        return self._endpoint.slots

    @property
    def _name(self) -> str:
        return f"{self._held}:{self._count}"
