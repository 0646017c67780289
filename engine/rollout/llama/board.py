"""Continuous batching: which conversations are prefilled and decoded next, under which adapter version.

Requests come in, futures are answered. Everything here runs on one thread and never waits. Results are repeatable to
the last bit, whatever else is on the board, because every prompt or appended turn of two tokens and more is a decode
call of its own with two output rows, and all other calls hold one token per sequence in runs of at least two
neighbours (``slots``).
"""

from __future__ import annotations

import math
import time
from collections import deque
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from ...errors import CallFailed
from ..choose import choose
from ..protocol import Finish, SampleRequest, SampleResult, SamplerStats
from .context import LlamaContext, Logits
from .slots import Slots, rows_with_fillers
from .turn import Conversation, Turn
from .versions import Versions

PREFILL = 4096
"""Prompt tokens computed before the running turns get their next step."""


class Board:
    """All conversations of one context. ``slots`` of its sequences are handed out; ``length`` tokens fit in each."""

    def __init__(self, context: LlamaContext, versions: Versions, slots: Slots, length: int) -> None:
        self._context = context
        self._versions = versions
        self._slots = slots
        self._length = length
        self._conversations: dict[str, Conversation] = {}
        self._returning: deque[Turn] = deque()
        """Turns of conversations that have their sequence already."""
        self._waiting: deque[Turn] = deque()
        """First turns, in order of arrival."""
        self._active: dict[str, dict[int, Turn]] = {}
        """Turns being decoded, by version name and sequence id."""
        self._sampled = self._prefilled = 0
        self._seconds = 0.0

    @property
    def busy(self) -> bool:
        """Whether ``step`` has anything to do."""
        return bool(self._active or self._returning or (self._waiting and self._slots.free))

    def stats(self) -> SamplerStats:
        """Totals so far."""
        active = sum(map(len, self._active.values()))
        waiting = len(self._waiting) + len(self._returning)
        return SamplerStats(self._sampled, self._prefilled, self._seconds, active, waiting)

    def submit(self, request: SampleRequest, answer: Future[SampleResult]) -> None:
        """Queue a turn. Raises ``ValueError`` or ``AdapterError`` for what can never be served."""
        version = self._versions.serving(request.version)
        conversation = self._conversations.get(request.conversation) or Conversation(request.conversation)
        self._check(request, conversation)
        room = min(request.max_tokens, self._length - len(request.tokens))
        if room == 0:
            empty = np.empty(0, np.int32), np.empty(0, np.float32)
            answer.set_result(SampleResult(*empty, "length", version.name, version.checksum))
            return
        turn = Turn(request, conversation, version, room, answer)
        self._conversations[request.conversation] = conversation
        conversation.turn = turn
        version.users += 1
        (self._waiting if conversation.slot is None else self._returning).append(turn)

    def release(self, name: str) -> None:
        """Forget a conversation and abort its turn; unknown names are fine."""
        conversation = self._conversations.get(name)
        if conversation is None:
            return
        turn = conversation.turn
        if turn is not None:
            self._end(turn, "abort")
        self._forget(conversation)

    def step(self) -> None:
        """Prefill what waits, then decode one token of every running turn, version by version."""
        begin = time.perf_counter()
        self._admit()
        for turns in list(self._active.values()):
            self._decode(list(turns.values()))
        self._seconds += time.perf_counter() - begin

    def fail(self, error: Exception) -> None:
        """End every turn with ``error`` and start over with an empty board."""
        for conversation in list(self._conversations.values()):
            self._drop(conversation, error)

    def _check(self, request: SampleRequest, conversation: Conversation) -> None:
        tokens = request.tokens
        if conversation.turn is not None:
            raise ValueError(f"The conversation {request.conversation!r} is sampling already.")
        if tokens.ndim != 1 or len(tokens) == 0:
            raise ValueError("A request needs a context of at least one token.")
        if len(tokens) > self._length:
            raise ValueError(f"A context of {len(tokens)} tokens is longer than the sampler's {self._length}.")
        if tokens.min() < 0 or tokens.max() >= self._context.vocabulary:
            raise ValueError(f"A token id is outside of the vocabulary of {self._context.vocabulary}.")
        if request.max_tokens < 1:
            raise ValueError(f"max_tokens is {request.max_tokens}; it must be 1 or more.")
        if not (math.isfinite(request.temperature) and request.temperature >= 0):
            raise ValueError(f"temperature is {request.temperature}; it must be 0 or more.")
        if not 0 <= request.seed < 2**64:
            raise ValueError(f"seed is {request.seed}; it must be an unsigned number of 64 bits.")
        known = conversation.tokens
        if len(tokens) < len(known) or not np.array_equal(tokens[: len(known)], known):
            raise ValueError(f"The conversation {request.conversation!r} changed tokens that it had; it may only grow.")

    def _admit(self) -> None:
        budget = PREFILL
        while self._returning and budget > 0:
            budget -= self._prefill([self._returning.popleft()])
        while self._waiting and self._slots.free and budget > 0:
            key = self._waiting[0].key
            same = [turn for turn in self._waiting if turn.key == key][: self._slots.free]
            for turn in same:
                self._waiting.remove(turn)
                turn.conversation.slot = self._slots.take(turn.version.name)
            budget -= self._prefill(same)

    def _prefill(self, turns: list[Turn]) -> int:
        """Compute the new part of one prompt and sample its first token for all ``turns``, which share it."""
        first = turns[0].conversation
        if first.version != turns[0].version.name:  # memory of another adapter's making is of no use
            self._context.cut(_slot(first), 0)
            first.cached = 0
        new = turns[0].prompt[first.cached :]
        for turn in turns:
            turn.conversation.version = turn.version.name
            turn.conversation.tokens = turn.prompt
        if len(new) == 1:  # a call of one row has other last bits; it goes with the next step's rows
            for turn in turns:
                self._activate(turn)
            return 1
        try:
            logits = self._append(turns[0], new)
        except CallFailed as error:
            self._fail(turns, error)
            return len(new)
        for turn in turns:
            if turn.conversation is not first:
                self._context.copy(_slot(first), _slot(turn.conversation))
            turn.conversation.cached = len(turn.prompt)
            self._activate(turn)
        self._accept(turns, np.repeat(logits[-1:], len(turns), axis=0))
        return len(new)

    def _append(self, turn: Turn, new: NDArray[np.int32]) -> Logits:
        count, cached = len(new), turn.conversation.cached
        outputs = np.zeros(count, np.int8)
        outputs[-2:] = 1
        self._context.use(turn.version.handle)
        sequences = np.full(count, _slot(turn.conversation), np.int32)
        logits = self._context.decode(new, np.arange(cached, cached + count, dtype=np.int32), sequences, outputs)
        self._prefilled += count
        return logits

    def _decode(self, turns: list[Turn]) -> None:
        """One token for each of ``turns``, which are all running turns of one version."""
        turns.sort(key=lambda turn: _slot(turn.conversation))
        active = np.array([_slot(turn.conversation) for turn in turns], np.int32)
        rows = rows_with_fillers(active)
        places = np.searchsorted(rows, active)
        tokens = np.zeros(len(rows), np.int32)
        tokens[places] = [turn.last for turn in turns]
        positions = self._positions(rows)
        self._context.use(turns[0].version.handle)
        try:
            logits = self._context.decode(tokens, positions, rows, np.ones(len(rows), np.int8))
        except CallFailed as error:
            self._fail(turns, error)
            return
        finally:
            if len(rows) > len(active):
                for row in np.setdiff1d(rows, active, assume_unique=True).tolist():
                    self._context.cut(row, int(positions[np.searchsorted(rows, row)]))
        for turn in turns:
            turn.conversation.cached += 1
        self._accept(turns, logits if len(rows) == len(active) else logits[places])

    def _positions(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """Where each row's token goes: behind what its sequence holds."""
        held = {c.slot: c.cached for c in self._conversations.values() if c.slot is not None}
        return np.array([held.get(row, 0) for row in rows.tolist()], np.int32)

    def _accept(self, turns: list[Turn], logits: Logits) -> None:
        """Sample one token for each of ``turns`` from its row of ``logits``."""
        temperatures = np.array([turn.temperature for turn in turns])
        noise = np.array([turn.noise for turn in turns])
        tokens, logprobs = choose(logits, temperatures, noise)
        self._sampled += len(turns)
        for turn, token, logprob in zip(turns, tokens.tolist(), logprobs.tolist(), strict=True):
            finish = turn.accept(token, logprob)
            if finish is not None:
                self._end(turn, finish)

    def _activate(self, turn: Turn) -> None:
        self._active.setdefault(turn.version.name, {})[_slot(turn.conversation)] = turn

    def _end(self, turn: Turn, finish: Finish) -> None:
        """Answer the caller and keep the conversation for its next turn."""
        result = turn.result(finish)
        turn.conversation.tokens = np.concatenate([turn.prompt, result.tokens])
        self._leave(turn)
        turn.answer.set_result(result)

    def _fail(self, turns: list[Turn], error: Exception) -> None:
        for turn in turns:
            self._drop(turn.conversation, error)

    def _drop(self, conversation: Conversation, error: Exception) -> None:
        """Forget a conversation whose memory cannot be trusted; its turn fails with ``error``."""
        turn = conversation.turn
        if turn is not None:
            self._leave(turn)
            turn.answer.set_exception(error)
        self._forget(conversation)

    def _leave(self, turn: Turn) -> None:
        """Take a turn off the board, wherever it stands."""
        conversation, name = turn.conversation, turn.version.name
        conversation.turn = None
        for queue in (self._waiting, self._returning):
            if turn in queue:
                queue.remove(turn)
        running = self._active.get(name, {})
        if conversation.slot is not None and running.get(conversation.slot) is turn:
            del running[conversation.slot]
            if not running:
                del self._active[name]
        self._versions.leave(turn.version)

    def _forget(self, conversation: Conversation) -> None:
        if conversation.slot is not None:
            self._context.cut(conversation.slot, 0)
            self._slots.give_back(conversation.slot)
        del self._conversations[conversation.name]


def _slot(conversation: Conversation) -> int:
    """The sequence of a seated conversation."""
    if conversation.slot is None:
        raise LookupError(f"The conversation {conversation.name!r} has no sequence yet.")
    return conversation.slot
