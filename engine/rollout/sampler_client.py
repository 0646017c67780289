"""A conversation's access to the samplers, and a reply while it is sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from ..errors import WorkerDied
from ..fairness.line import Ledger, Payer, Reservation, rollout_cost
from ..samplers.options import Extras, Likeliest
from ..samplers.protocol import NewTokens, OnTokens, SampleRequest, SampleResult
from .slots import Replicas, SamplerEndpoint, SamplerSlots
from .spoken import CLOSE, OPEN, SPACE

# A reply as a stream of text, with thought and answer apart, up to a stop text. Text is released only once it is final.

CALL = "<tool_call>"
"""The beginning of a call in tagged forms; other forms are whole replies."""
_UNKNOWN = "\ufffd"
Decode = Callable[[Sequence[int]], str]


class Decoder:
    """Decodes a stream of ids; each id is decoded only a few times."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._told = 0

    def add(self, ids: Sequence[int]) -> str:
        self._ids += ids
        before, now = self._decode(self._ids[: self._told]), self._decode(self._ids)
        if now.endswith(_UNKNOWN) or len(now) <= len(before):
            return ""
        self._ids = self._ids[self._told :]
        self._told = len(self._ids)
        return now[len(before) :]

    def rest(self) -> str:
        return self._decode(self._ids)[len(self._decode(self._ids[: self._told])) :]


class ReplyStream:
    """One reply: give it ids with ``add``, take text with ``delta``; ``kept`` is set once a stop text ends it."""

    def __init__(
        self, decode: Decode, ends: Sequence[int], stops: Sequence[str], thinks: bool, opened: bool, tools: bool
    ) -> None:
        """``ends``: ids that end a turn and have no text. ``thinks``: a reply may begin with a thought; ``opened``:
        the prompt has begun it. ``tools``: calls are not part of the text.
        """
        self._decoder = Decoder(decode)
        self._ends = frozenset(ends)
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._tools = tools
        self._text = ""
        self._thought: int | None = 0 if opened else None
        """The begin of the thought, once known."""
        self._closed: int | None = None
        self._answer: int | None = None if thinks else 0
        self._looked = 0
        self._told = [0, 0]
        """Released up to here: thought, answer."""
        self._count = 0
        self.kept: int | None = None
        """The number of ids up to the end of the stop text; None before."""

    def add(self, ids: Sequence[int]) -> None:
        for one in [[one] for one in ids] if self._stops else [ids]:
            if self.kept is not None:
                return
            self._count += len(one)
            self._text += self._decoder.add([id_ for id_ in one if id_ not in self._ends])
            self._place()
            if self._stops and self._stopped():
                self.kept = self._count

    def take(self, new: NewTokens) -> NewTokens:
        """Add new tokens; returns those up to the end of the stop text."""
        before = self._count
        self.add(new.tokens.tolist())
        count, extras = self._count - before, new.extras
        if count == len(new.tokens):
            return new
        if extras is not None:
            near = Likeliest(extras.likeliest.tokens[:count], extras.likeliest.logprobs[:count])
            extras = Extras(extras.logprobs[:count], near)
        return NewTokens(new.tokens[:count], new.logprobs[:count], extras)

    def delta(self) -> tuple[str, str]:
        """Thought and text that are new since the last time."""
        thinking = "" if self._thought is None else self._thinking(self._thought)
        return thinking, "" if self._answer is None else self._answering(self._answer)

    def _place(self) -> None:
        if self._answer is not None:
            return
        if self._thought is None:
            begun = self._text.lstrip()
            if begun.startswith(OPEN):
                self._thought = len(self._text) - len(begun) + len(OPEN)
            elif not OPEN.startswith(begun):
                self._answer = 0
                return
            else:
                return
        if self._closed is None:
            at = self._text.find(CLOSE, max(self._thought, self._looked - len(CLOSE)))
            self._looked = len(self._text)
            if at < 0:
                return
            self._closed = self._looked = at
        behind = self._text[self._closed + len(CLOSE) :].lstrip(SPACE)
        if behind:
            self._answer = self._looked = len(self._text) - len(behind)

    def _stopped(self) -> bool:
        if self._answer is None:
            return False
        begin = max(self._answer, self._looked - self._longest)
        self._looked = len(self._text)
        found = [at for stop in self._stops if (at := self._text.find(stop, begin)) >= 0]
        if found:
            self._text = self._text[: min(found)]
        return bool(found)

    def _thinking(self, begin: int) -> str:
        end = len(self._text) if self._closed is None else self._closed
        if self._closed is None:
            end -= _overlap(self._end(begin, len(CLOSE)), CLOSE)
        begin = max(begin, self._told[0])
        part = self._text[begin:end]
        if not self._told[0]:
            part = part.lstrip()
        told = part.rstrip()
        if not told:
            return ""
        self._told[0] = end - (len(part) - len(told))
        return told

    def _answering(self, begin: int) -> str:
        end = len(self._text)
        if self._stops and self.kept is None:
            end -= max(_overlap(self._end(begin, len(stop)), stop) for stop in self._stops)
        if self._tools:
            end = min(end, self._before_calls(begin))
        at = max(begin, self._told[1])
        if end <= at:
            return ""
        self._told[1] = end
        return self._text[at:end]

    def _before_calls(self, begin: int) -> int:
        first = self._text[begin : begin + 1]
        if not first or first.isspace() or first in "{<":
            return begin
        begin = max(begin, self._told[1])  # released text is no call
        at = self._text.find(CALL, begin)
        end = at if at >= 0 else len(self._text) - _overlap(self._end(begin, len(CALL)), CALL)
        return begin + len(self._text[begin:end].rstrip())

    def _end(self, begin: int, most: int) -> str:
        return self._text[max(begin, len(self._text) - most) :]


def _overlap(text: str, wanted: str) -> int:
    most = min(len(text), len(wanted) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(wanted[:size])), 0)


# A conversation's access to the samplers of its version: it chooses a sampler, takes a slot and charges the payer.


class SamplerClient:
    """Implements ``protocol.Turns`` and ``slots.SlotHolder``. Call ``leave`` at the end of the episode.

    The sampler caches only one of its conversations at a time, else episodes would wait for each other's slots. Every
    slot has a new conversation name, so that a late release never hits the next one.
    """

    def __init__(self, replicas: Replicas, ledger: Ledger, payer: Payer, anew: bool) -> None:
        """``again``: every turn computes the whole context again, for the same last bits in every run, at the first
        replica.
        """
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
        """Choose a sampler, wait for a slot there, and sample one turn, streamed to ``stream_to``.

        A cancelled turn ends at once, and its tokens are paid for. If the sampler dies, the turn is repeated at
        another one.
        Raises ``WorkerDied`` if none is left, or if a part may have been streamed.
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
            sampler, waits = self._endpoint.sampler, True

            def send(new: NewTokens) -> None:
                if waits and stream_to is not None:
                    stream_to(new)

            turn = asyncio.ensure_future(
                sampler.generate(own, stream_to=send) if stream_to is not None else sampler.generate(own)
            )
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

    def lose_slot(self) -> None:
        self._forget()

    def leave(self) -> None:
        self._leaves = True
        self._slots.leave(self)
        self._forget()

    def _settle(
        self, endpoint: SamplerEndpoint, reservation: Reservation | None, turn: asyncio.Future[SampleResult]
    ) -> None:
        ended = not turn.cancelled() and turn.exception() is None
        cost = self._paid(endpoint, turn.result()) if ended else None
        if reservation is not None:
            endpoint.slots.settle(reservation, cost)

    def _paid(self, endpoint: SamplerEndpoint, result: SampleResult) -> int:
        payer, sampled = self.payer, len(result.tokens)
        self._ledger.rollout(payer.task, result.prefilled, sampled, endpoint.name, payer.policy)
        return rollout_cost(result.prefilled, sampled)

    def _forget(self) -> None:
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
