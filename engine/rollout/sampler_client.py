"""The sampler client: an episode's access to its endpoint's sampler.

It takes a slot before each turn, says who pays, and charges the turn's tokens to the slots' line and the ledger.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

from ..fairness import Ledger, Payer, Serving, rollout_cost
from .endpoint import SamplerEndpoint
from .protocol import SampleRequest, SampleResult


class SamplerClient:
    """Implements ``protocol.Turns`` and ``slots.SlotHolder``. Call ``leave`` at the end of the episode.

    The sampler holds the memory of one of its conversations at a time, else episodes would wait for each other's slots.
    The conversation gets a new name with every slot, so that a late release never hits the next one.
    """

    def __init__(self, endpoint: SamplerEndpoint, ledger: Ledger, payer: Payer, anew: bool) -> None:
        """``anew``: whether every turn computes the whole context anew, to have the same last bits in every run."""
        self.payer = payer
        self._leaves = anew
        """Whether it gives its slot back at the end of every turn."""
        self._endpoint = endpoint
        self._slots = endpoint.slots
        self._ledger = ledger
        self._held = ""
        """The conversation whose memory the sampler holds."""
        self._count = 0
        """Conversations that it has held; a part of their names."""

    async def generate(self, request: SampleRequest) -> SampleResult:
        """Wait for a slot and sample one turn.

        Where this is cancelled, the sampler ends the turn at once and says how far it was: that is paid for, too.
        """
        await self._slots.take(self)
        cost = None
        try:
            if self._held != request.conversation:
                self._forget()
                self._held = request.conversation
                self._count += 1
            payer = self.payer
            weight = self._slots.weight(payer.tenant)
            own = replace(request, conversation=self._name, account=payer.tenant, weight=weight)
            turn = asyncio.ensure_future(self._endpoint.sampler.generate(own))
            try:
                result = await asyncio.shield(turn)
            except asyncio.CancelledError:
                turn.add_done_callback(partial(self._settle, self._slots.abandon(self)))
                raise
            cost = self._paid(result)
            return result
        finally:
            self._slots.rest(self, cost)
            if self._leaves:
                self.leave()

    async def release(self, conversation: str) -> None:
        """Have the sampler forget a conversation; one that it does not hold is ignored."""
        if conversation == self._held:
            name, self._held = self._name, ""
            await self._endpoint.sampler.release(name)

    def lose_slot(self) -> None:
        """See ``SlotHolder``."""
        self._forget()

    def leave(self) -> None:
        """The episode has ended, perhaps in the middle of a turn: free its slot and its memory in the sampler."""
        self._leaves = True
        self._slots.leave(self)
        self._forget()

    def _settle(self, serving: Serving | None, turn: asyncio.Future[SampleResult]) -> None:
        """Pay for a turn that was given up, now that the sampler has ended it; a lost sampler says nothing."""
        ended = not turn.cancelled() and turn.exception() is None
        cost = self._paid(turn.result()) if ended else None
        if serving is not None:
            self._slots.settle(serving, cost)

    def _paid(self, result: SampleResult) -> int:
        """Count a turn for whoever pays; returns what it cost."""
        payer, sampled = self.payer, len(result.tokens)
        self._ledger.rollout(payer.task, result.prefilled, sampled, self._endpoint.name, payer.policy)
        return rollout_cost(result.prefilled, sampled)

    def _forget(self) -> None:
        if self._held:
            self._endpoint.forget(self._name)
            self._held = ""

    @property
    def _name(self) -> str:
        return f"{self._held}:{self._count}"
