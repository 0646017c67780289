"""Continuous batching: selects the conversations that each call prefills and decodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import CallFailed
from ...fairness.line import FairClock, rollout_cost
from ...models.memory import PREFILL
from ...trajectories import Logprobs, Tokens
from ..protocol import Finish, OnTokens, SampleRequest, SampleResult, SamplerStats
from ..sampling import WHOLE, Cuts, Floats, choose
from .context import BRIDGE, PIECE, Context, DrawingContext, Key, Logits, Slots, rows_with_fillers
from .memory import SharedMemory
from .requests import Answer, Pace, Versions
from .turn import Grammar, SequenceState, Turn, check, echo, wanted_of

# Selects the next turn to prefill. Pure.
#
# First the account that is behind by weight; within an account, conversations with memory, then the oldest prompt.


class Order:
    """All accounts with turns in the scheduler, and their waiting turns."""

    def __init__(self) -> None:
        self._clock: FairClock[str] = FairClock()
        """Number of turns in the scheduler, by account."""
        self._returning: dict[str, dict[Turn, None]] = {}
        self._first: dict[str, dict[Key, list[Turn]]] = {}
        """First turns, by their shared prompt, in order of arrival."""

    def __iter__(self) -> Iterator[Turn]:
        for returning in self._returning.values():
            yield from returning
        for prompts in self._first.values():
            for turns in prompts.values():
                yield from turns

    def enter(self, turn: Turn, weight: float) -> None:
        """Add a turn, which ``wait`` lets begin. Raises ``ValueError`` for an invalid weight."""
        self._clock.weigh(turn.account, weight)
        self._clock.join(turn.account)

    def wait(self, turn: Turn) -> None:
        if turn.conversation.slot is None:
            self._first.setdefault(turn.account, {}).setdefault(turn.key, []).append(turn)
        else:
            self._returning.setdefault(turn.account, {})[turn] = None

    def leave(self, turn: Turn) -> None:
        self._remove(turn)
        self._clock.leave(turn.account)

    def charge(self, account: str, prefilled: int = 0, sampled: int = 0) -> None:
        self._clock.begin(account)
        self._clock.settle(account, cost=rollout_cost(prefilled, sampled))

    @property
    def first(self) -> int:
        return sum(len(turns) for prompts in self._first.values() for turns in prompts.values())

    def ready(self, free: int) -> bool:
        return bool(self._returning or (self._first and free))

    def next_account(self, free: int) -> str:
        """The account that is behind, of those with a turn that can begin. Raises ``ValueError`` without any."""
        return self._clock.behind([*self._returning, *(self._first if free else ())])

    def take(self, account: str, free: int) -> list[Turn]:
        """One turn of the account that has its sequence, else up to ``free`` with the oldest shared prompt."""
        if account in self._returning:
            turns = [next(iter(self._returning[account]))]
        else:
            turns = next(iter(self._first[account].values()))[:free]
        for turn in turns:
            self._remove(turn)
        return turns

    def ahead(self, account: str, turns: Iterable[Turn]) -> bool:
        counter = self._clock.counter
        return any(counter(other) < counter(account) for other in {turn.account for turn in turns})

    def sort(self, turns: Iterable[Turn]) -> list[Turn]:
        turns = list(turns)
        counters = {account: self._clock.counter(account) for account in {turn.account for turn in turns}}
        return sorted(turns, key=lambda turn: counters[turn.account]) if len(counters) > 1 else turns

    def _remove(self, turn: Turn) -> None:
        returning = self._returning.get(turn.account, {})
        if turn in returning:
            del returning[turn]
            if not returning:
                del self._returning[turn.account]
        prompts = self._first.get(turn.account, {})
        sharing = prompts.get(turn.key, [])
        if turn in sharing:
            sharing.remove(turn)
            if not sharing:
                del prompts[turn.key]
            if not prompts:
                del self._first[turn.account]


# Computes prompts, and appended parts of conversations.
#
# Unless a context joins, each part is its own call, because a row's last bits depend on its call. Long parts are
# computed in pieces. On torch this takes a third to four fifths of the time at 2,000 tokens, and linear memory. The
# borders are the same for all prompts, so shared blocks have the same bits.


@dataclass(frozen=True)
class Chunk:
    """Two or more tokens at the end of one sequence."""

    turns: list[Turn]
    """The first has the sequence; the others share its prompt."""
    new: Tokens
    """int32 (n,)"""
    first: bool
    """True if a conversation begins with it, so that others may share it."""

    @property
    def sequence(self) -> int:
        return self.turns[0].conversation.sequence


def prefill(context: Context, parts: Sequence[Chunk]) -> Iterator[tuple[list[Chunk], list[Logits] | CallFailed]]:
    """Yield the parts that each call completes, with the logits (V,) after each, valid until the next call.

    For a failed call yields its parts with the error.
    """
    for together in [list(parts)] if context.joins and parts else [[part] for part in parts]:
        # a new prompt begins at a border: similar turns share memory in whole pieces
        left = {part.sequence: np.split(part.new, range(PIECE, len(part.new) - 1, PIECE)) for part in together}
        while together:
            call = [Chunk(part.turns, left[part.sequence].pop(0), part.first) for part in together]
            try:
                logits = _decode(context, call)
            except CallFailed as error:
                yield together, error
                break
            ends = {part.sequence: row for part, row in zip(together, logits[1::2], strict=True)}
            done = [part for part in together if not left[part.sequence]]
            if done:
                yield done, [ends[part.sequence] for part in done]
            together = [part for part in together if left[part.sequence]]


def _decode(context: Context, call: list[Chunk]) -> Logits:
    counts = [len(part.new) for part in call]
    held = [int(context.held[part.sequence]) for part in call]
    positions = [np.arange(begin, begin + count) for begin, count in zip(held, counts, strict=True)]
    ends = np.cumsum(counts)
    outputs = np.zeros(ends[-1], np.int8)
    outputs[np.concatenate([ends - 2, ends - 1])] = 1
    alike = any(part.turns[0].alike for part in call)
    context.use(np.repeat([part.turns[0].version.handle for part in call], counts), alike)
    return context.decode(
        np.concatenate([part.new for part in call]),
        np.concatenate(positions).astype(np.int32),
        np.repeat([part.sequence for part in call], counts).astype(np.int32),
        outputs,
    )


# The inner loop: decodes running turns together until one of them may have ended. No Python runs for a single row.

Pressed = Callable[[], bool]
"""True if a call waits for the thread."""
NOTHING = -1
"""Pads the stop tokens of turns; no token has this id."""


def never() -> bool:
    """No call waits for the thread."""
    return False


def burst(
    context: Context, turns: list[Turn], limit: int, pressed: Pressed = never, bridge: int = BRIDGE
) -> tuple[Tokens, Logprobs]:
    """Sample up to ``limit`` tokens for each of ``turns``, which are in the order of their sequences.

    They have one version unless the context mixes. Returns tokens int32 (n, k) and log-probabilities float32 (n, k), k
    >= 1; only the last token of a turn may end it. Holes of up to ``bridge`` sequences are computed, but not changed.
    Ends once ``pressed``. Raises ``DecodeFailed``.
    """
    active = np.array([turn.conversation.sequence for turn in turns], np.int32)
    rows = active if context.joins else rows_with_fillers(active, bridge)
    places = np.searchsorted(rows, active)
    alone = len(rows) == len(active)
    positions = begin = context.held[rows]
    limit = min(limit, min(turn.room for turn in turns), context.length - int(begin.max()))
    current = np.zeros(len(rows), np.int32)
    current[places] = [turn.last for turn in turns]
    noise = np.array([turn.noise(limit) for turn in turns]).T
    temperatures = np.array([turn.temperature for turn in turns])
    cuts = cuts_of(turns, temperatures)
    wanted = wanted_of([turn.wished for turn in turns])
    drawing = context if alone and isinstance(context, DrawingContext) else None
    draw = choose if drawing is None else drawing.choose
    stops = _stops(turns)
    outputs = np.ones(len(rows), np.int8)
    tokens, logprobs = np.empty((limit, len(turns)), np.int32), np.empty((limit, len(turns)), np.float32)
    count = 0
    handles = np.array([turn.version.handle for turn in turns])
    alike = any(turn.alike for turn in turns)
    context.use(handles[_before(active, rows)] if context.mixes else handles[:1], alike)
    try:
        while count < limit:
            if drawing is not None and wanted is None:
                tokens[count], logprobs[count] = drawing.draw(
                    current, positions, rows, temperatures, noise[count], cuts
                )
            else:
                logits = context.decode(current, positions, rows, outputs)
                own = logits if alone else logits[places]
                if wanted is None:
                    tokens[count], logprobs[count] = choose(own, temperatures, noise[count], cuts)
                else:  # the other rows keep their bits
                    tokens[count], logprobs[count] = wanted.draw(draw, own, temperatures, noise[count], cuts)
            current[places] = tokens[count]
            positions = positions + 1
            count += 1
            if (tokens[count - 1] == stops).any() or pressed() or (wanted is not None and wanted.over):
                break
    finally:
        if not alone:
            for place in np.setdiff1d(np.arange(len(rows)), places, assume_unique=True).tolist():
                context.cut(int(rows[place]), int(begin[place]))
    return tokens[:count].T, logprobs[:count].T


def _before(active: NDArray[np.int32], rows: NDArray[np.int32]) -> NDArray[np.int64]:
    return np.maximum(np.searchsorted(active, rows, side="right") - 1, 0)


def cuts_of(turns: list[Turn], temperatures: Floats) -> Cuts | None:
    """The truncations of the turns; None if all may draw any token, as in training."""
    truncations = [turn.truncation for turn in turns]
    return None if all(one is WHOLE or one == WHOLE for one in truncations) else Cuts(truncations, temperatures)


def _stops(turns: list[Turn]) -> NDArray[np.int32]:
    """The stop tokens of each turn in columns: int32 (maximum, n)."""
    stops = np.full((max(len(turn.stop) for turn in turns), len(turns)), NOTHING, np.int32)
    for column, turn in enumerate(turns):
        stops[: len(turn.stop), column] = turn.stop
    return stops


# Continuous batching on one thread, without waiting.
#
# Results are deterministic to the last bit, whatever else is scheduled. Prompts are computed with two output rows
# (``prefill``). All other calls hold one token per sequence: of one version unless the context mixes, and in runs of at
# least two neighbours unless it joins (``Slots``).


class BatchScheduler:
    """All conversations of one context; ``length`` tokens fit in each sequence."""

    def __init__(self, context: Context, versions: Versions, slots: Slots, length: int, pace: Pace) -> None:
        self._context = context
        self._versions = versions
        self._memory = SharedMemory(context, slots)
        self._length = length
        self._pace = pace
        self._conversations: dict[str, SequenceState] = {}
        self._order = Order()
        self._echoes: dict[Turn, None] = {}
        """Turns with prompts to score before they begin."""
        self._running: dict[Turn, None] = {}
        """Turns being decoded, the least recently decoded one first."""
        self._sampled = self._prefilled = self._passes = 0
        self._seconds = 0.0

    @property
    def busy(self) -> bool:
        return self._works or self._order.ready(self._memory.grows)

    @property
    def _works(self) -> bool:
        return bool(self._running or self._echoes) or self._order.ready(self._memory.free)

    def stats(self) -> SamplerStats:
        waiting = sum(1 for _ in self._order) + len(self._echoes)
        return SamplerStats(self._sampled, self._prefilled, self._seconds, len(self._running), waiting, self._passes)

    def submit(
        self,
        request: SampleRequest,
        answer: Answer[SampleResult],
        stream_to: OnTokens | None = None,
        grammar: Grammar | None = None,
    ) -> None:
        """Queue a turn. Raises ``ValueError`` or ``AdapterError`` if it can never be served."""
        version = self._versions.serving(request.version)
        conversation = self._conversations.get(request.conversation) or SequenceState(request.conversation)
        sampling = conversation.turn is not None
        check(request, conversation.tokens, sampling, self._length, self._context.vocabulary)
        room = min(request.max_tokens, self._length - len(request.tokens))
        turn = Turn(request, conversation, version, room, answer, stream_to, grammar)
        echoed = turn.wished is not None and turn.wished.wishes.prompt
        if room == 0 and not echoed:
            answer.give(turn.result("length"))
            return
        self._order.enter(turn, request.weight)
        if echoed:
            self._echoes[turn] = None
        else:
            self._order.wait(turn)
        self._conversations[request.conversation] = conversation
        conversation.turn = turn
        version.users += 1

    def release(self, name: str) -> None:
        conversation = self._conversations.get(name)
        if conversation is None:
            return
        if conversation.turn is not None:
            self._end(conversation.turn, "abort")
        self._forget(conversation, intact=True)

    def retire(self, version: str) -> None:
        self._memory.retire(version)

    def step(self, pressed: Pressed = never) -> None:
        """Ends early once ``pressed``, but not before it has sampled something."""
        begin = time.perf_counter()
        if self._echoes:
            self._echo(self._order.sort(self._echoes)[0])
        fresh = self._admit()
        if self._pace.tokens > 1 and not self._context.mixes:
            self._decode_fresh(fresh, pressed)
        if self._running:
            self._decode(self._next(), pressed)
        self._seconds += time.perf_counter() - begin

    def _echo(self, turn: Turn) -> None:
        try:
            logits = echo(self._context, turn)
        except CallFailed as error:
            self._drop(turn.conversation, error)
            return
        del self._echoes[turn]
        self._prefilled += turn.begin(len(turn.prompt))
        self._order.charge(turn.account, prefilled=len(turn.prompt))
        if turn.room == 0:
            self._end(turn, "length")
        elif turn.room == 1:  # its memory is no longer needed
            self._first_token([turn], logits)
        else:
            self._order.wait(turn)

    def _decode_fresh(self, fresh: list[Turn], pressed: Pressed) -> None:
        for version in dict.fromkeys(turn.version.name for turn in fresh):
            turns = [turn for turn in fresh if turn.version.name == version]
            if not self._order.ahead(turns[0].account, self._running):
                self._decode(sorted(turns, key=_sequence_of)[: self._pace.rows], pressed)

    def fail(self, error: Exception) -> None:
        for conversation in list(self._conversations.values()):
            self._drop(conversation, error)
        self._memory.clear()

    def _grow(self) -> None:
        free, running = self._memory.free, len(self._running)
        more = min(self._order.first, self._pace.enough - running) - free
        if more > 0 and self._memory.grows:
            self._memory.widen(more, needed=not self._works)

    def _admit(self) -> list[Turn]:
        """No turn begins for an account that is ahead of a running one while the running turns fill a call."""
        self._grow()
        fresh: list[Turn] = []
        parts: list[Chunk] = []
        budget, running = PREFILL, list(self._running)
        while self._order.ready(self._memory.free) and budget > 0 and len(fresh) < self._pace.rows:
            account = self._order.next_account(self._memory.free)
            if len(running) >= self._pace.rows and self._order.ahead(account, running):
                break
            turns = self._order.take(account, self._memory.free)
            if turns[0].conversation.slot is not None:
                cost = self._resume(turns[0], parts)
            else:
                if any(part.first and self._memory.awaits(turns[0], part.turns[0]) for part in parts):
                    self._prefill(parts)
                    parts = []
                cost = self._begin(turns, parts)
            self._order.charge(account, prefilled=cost)
            budget -= cost
            fresh += turns
        self._prefill(parts)
        streamed = next((turn for turn in fresh if turn.streamed), None)
        if streamed is not None:  # on a large base the next tokens of all take as long as a short prompt
            streamed.answer.flush()
        return [turn for turn in fresh if turn in self._running]

    def _prefill(self, parts: list[Chunk]) -> None:
        for call, outcome in prefill(self._context, parts):
            if isinstance(outcome, CallFailed):
                self._fail([turn for part in call for turn in part.turns], outcome)
                continue
            for part, logits in zip(call, outcome, strict=True):
                self._prefilled += len(part.new)
                if part.first:
                    self._memory.share(self._memory.read(part.turns[0], logits), part.turns)
                self._first_token(part.turns, logits)

    def _begin(self, turns: list[Turn], parts: list[Chunk]) -> int:
        first = turns[0]
        prompt = self._memory.place(turns)
        if len(first.prompt) == 1:  # a call of one row has other last bits; it goes with the next step's rows
            self._running |= dict.fromkeys(turns)
            return first.begin(1)
        if prompt is not None:
            self._memory.share(prompt, turns)
            self._first_token(turns, prompt.logits)
            return 0
        part = Chunk(turns, first.prompt[self._context.held[first.conversation.sequence] :], first=True)
        parts.append(part)
        return first.begin(len(part.new))

    def _resume(self, turn: Turn, parts: list[Chunk]) -> int:
        conversation = turn.conversation
        if conversation.version is not turn.version:  # memory of another adapter is useless
            self._memory.empty(conversation)
            conversation.version = turn.version
        conversation.tokens = turn.prompt
        new = turn.prompt[self._context.held[conversation.sequence] :]
        if len(new) == 1:  # as above
            self._running[turn] = None
        else:
            parts.append(Chunk([turn], new, first=False))
        return turn.begin(len(new))

    def _first_token(self, turns: list[Turn], logits: Logits) -> None:
        self._running |= dict.fromkeys(turns)
        temperatures = np.array([turn.temperature for turn in turns])
        noise = np.concatenate([turn.noise(1) for turn in turns])
        draw = self._context.choose if isinstance(self._context, DrawingContext) else choose
        wanted = wanted_of([turn.wished for turn in turns])
        given = np.tile(logits, (len(turns), 1)), temperatures, noise, cuts_of(turns, temperatures)
        tokens, logprobs = draw(*given) if wanted is None else wanted.draw(draw, *given)
        self._accept(turns, tokens[:, None], logprobs[:, None])

    def _next(self) -> list[Turn]:
        """All turns if versions mix, else the least recently decoded one with its neighbours under the same version."""
        ordered = self._order.sort(self._running)
        if self._context.mixes:
            return sorted(ordered[: self._pace.rows], key=_sequence_of)
        first = ordered[0]
        turns = sorted((turn for turn in ordered if turn.version is first.version), key=_sequence_of)
        start = min(turns.index(first), max(0, len(turns) - self._pace.rows))
        return turns[start : start + self._pace.rows]

    def _decode(self, turns: list[Turn], pressed: Pressed) -> None:
        for turn in turns:
            del self._running[turn]
            self._running[turn] = None
        left = self._pace.tokens
        while turns and left > 0:
            try:
                tokens, logprobs = burst(self._context, turns, left, pressed, self._pace.bridge)
            except CallFailed as error:
                self._fail(turns, error)
                return
            left -= tokens.shape[1]
            self._passes += tokens.shape[1]
            turns = self._accept(turns, tokens, logprobs)
            if pressed():
                return

    def _accept(self, turns: list[Turn], tokens: Tokens, logprobs: Logprobs) -> list[Turn]:
        """Give turns their sampled tokens and log-probabilities, (n, k) each; returns the turns that continue."""
        self._sampled += tokens.size
        on = []
        for turn, its_tokens, its_logprobs in zip(turns, tokens, logprobs, strict=True):
            self._order.charge(turn.account, sampled=len(its_tokens))
            finish = turn.accept(its_tokens, its_logprobs)
            if finish is None:
                on.append(turn)
            else:
                self._end(turn, finish)
        return on

    def _end(self, turn: Turn, finish: Finish) -> None:
        result = turn.result(finish)
        turn.conversation.tokens = np.concatenate([turn.prompt, result.tokens])
        self._memory.grow(turn)
        self._leave(turn)
        if turn.wished is not None and turn.wished.problem:
            turn.answer.fail(ValueError(turn.wished.problem))
        else:
            turn.answer.give(result)

    def _fail(self, turns: list[Turn], error: Exception) -> None:
        for turn in turns:
            self._drop(turn.conversation, error)

    def _drop(self, conversation: SequenceState, error: Exception) -> None:
        turn = conversation.turn
        if turn is not None:
            self._leave(turn)
            turn.answer.fail(error)
        self._forget(conversation, intact=False)

    def _leave(self, turn: Turn) -> None:
        turn.conversation.turn = None
        self._running.pop(turn, None)
        self._echoes.pop(turn, None)
        self._order.leave(turn)
        self._versions.leave(turn.version)

    def _forget(self, conversation: SequenceState, intact: bool) -> None:
        self._memory.end(conversation, intact)
        del self._conversations[conversation.name]


def _sequence_of(turn: Turn) -> int:
    return turn.conversation.sequence
