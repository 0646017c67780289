"""The sampler client: a conversation's access to the samplers that serve its version.

Before each turn it chooses one of them and takes a slot there; it says who pays, and charges the turn's tokens to the
slots' line and the ledger.
"""

from __future__ import annotations

import asyncio
from functools import partial

from ..errors import WorkerDied
from ..fairness import Ledger, Payer, Reservation, rollout_cost
from .endpoint import SamplerEndpoint
from .protocol import NewTokens, OnTokens, SampleRequest, SampleResult
from .replicas import Replicas
from .slots import SamplerSlots


class SamplerClient:
    """Implements ``protocol.Turns`` and ``slots.SlotHolder``. Call ``leave`` at the end of the episode.

    The sampler holds the memory of one of its conversations at a time, else episodes would wait for each other's slots.
    The conversation gets a new name with every slot, so that a late release never hits the next one.
    """

    def __init__(self, replicas: Replicas, ledger: Ledger, payer: Payer, anew: bool) -> None:
        """``anew``: whether every turn computes the whole context anew, to have the same last bits in every run; then
        all are at the first of the replicas."""
        self.payer = payer
        self._leaves = anew
        """Whether it gives its slot back at the end of every turn."""
        self._replicas = Replicas(replicas.endpoints[:1]) if anew else replicas
        self._endpoint = replicas.endpoints[0]
        """Where its slot is, if it has one, and what it has said."""
        self._ledger = ledger
        self._held = ""
        """The conversation whose memory the sampler holds."""
        self._known = 0
        """Tokens of it that are remembered."""
        self._prompt = b""
        """The tokens that it began with there."""
        self._count = 0
        """Conversations that it has held; a part of their names."""

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        """Choose a sampler, wait for a slot there, and sample one turn, streamed to ``stream_to`` as it is sampled.

        Where this is cancelled, the sampler ends the turn at once and says how far it was: that is paid for, too. Where
        the sampler dies, the turn is sampled anew at another one; raises ``WorkerDied`` where none is left, and where
        ``stream_to`` may have got a part of it.
        """
        payer = self.payer
        if self._held != request.conversation:
            self._forget()
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
                self._forget()

    async def _sample(self, request: SampleRequest, stream_to: OnTokens | None) -> SampleResult:
        await self._slots.take(self)
        cost = None
        try:
            if not self._held:
                self._held = request.conversation
                self._count += 1
            payer = self.payer
            weight = self._slots.weight(payer.tenant)
            own = request.of(self._name, payer.tenant, weight, alike=self._leaves)
            sampler, stream = self._endpoint.sampler, None if stream_to is None else _Stream(stream_to)
            turn = asyncio.ensure_future(
                sampler.generate(own, stream_to=stream.send) if stream else sampler.generate(own)
            )
            try:
                result = await asyncio.shield(turn)
            except asyncio.CancelledError:
                if stream is not None:
                    stream.open = False
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
        """Have the sampler forget a conversation; one that it does not hold is ignored."""
        if conversation == self._held:
            name = self._name
            self._let_go()
            await self._endpoint.sampler.release(name)

    def lose_slot(self) -> None:
        """See ``SlotHolder``."""
        self._forget()

    def leave(self) -> None:
        """The episode has ended, perhaps in the middle of a turn: free its slot and its memory in the sampler."""
        self._leaves = True
        self._slots.leave(self)
        self._forget()

    def _settle(
        self, endpoint: SamplerEndpoint, reservation: Reservation | None, turn: asyncio.Future[SampleResult]
    ) -> None:
        """Pay for a turn that was given up, now that the sampler has ended it; a lost sampler says nothing."""
        ended = not turn.cancelled() and turn.exception() is None
        cost = self._paid(endpoint, turn.result()) if ended else None
        if reservation is not None:
            endpoint.slots.settle(reservation, cost)

    def _paid(self, endpoint: SamplerEndpoint, result: SampleResult) -> int:
        """Count a turn for whoever pays; returns what it cost."""
        payer, sampled = self.payer, len(result.tokens)
        self._ledger.rollout(payer.task, result.prefilled, sampled, endpoint.name, payer.policy)
        return rollout_cost(result.prefilled, sampled)

    def _forget(self) -> None:
        if self._held:
            self._endpoint.forget(self._name)
        self._let_go()

    def _let_go(self) -> None:
        """What it has said is remembered nowhere."""
        if self._prompt:
            self._replicas.end(self._endpoint, self._prompt)
        self._held, self._known, self._prompt = "", 0, b""

    @property
    def _slots(self) -> SamplerSlots:
        return self._endpoint.slots

    @property
    def _name(self) -> str:
        return f"{self._held}:{self._count}"


class _Stream:
    """A turn's tokens until its caller is cancelled: the turn itself goes on until the sampler has ended it."""

    def __init__(self, to: OnTokens) -> None:
        self._to = to
        self.open = True

    def send(self, new: NewTokens) -> None:
        if self.open:
            self._to(new)
