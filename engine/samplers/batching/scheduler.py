"""Continuous batching on one thread: admit, prefill, decode, sample, deliver.

Deterministic to the last bit: prompts are read in pieces with fixed borders, all other calls hold one token per
sequence.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...errors import CallFailed
from ...fairness.line import FairClock, rollout_cost
from ...models.memory import PREFILL
from ...trajectories import Logprobs, Tokens
from ..protocol import Finish, OnTokens, SampleRequest, SampleResult, SamplerStats
from ..sampling import WHOLE, Cuts, Floats
from .context import PIECE, Context, Logits, score
from .memory import SharedMemory
from .requests import Answer, Versions
from .turn import Conversation, Turn, check, draw_wished

if TYPE_CHECKING:
    from ..schemas import SchemaGrammar

NOTHING = -1
"""Pads stop tokens; no token has this id."""


class Line:
    """Waiting turns of all accounts.

    First comes the account behind by weight; within it, conversations with memory, then the oldest prompt with all that
    share it.
    """

    def __init__(self) -> None:
        self._clock: FairClock[str] = FairClock()
        """Number of turns in the scheduler, by account."""
        self._new: dict[Turn, None] = {}
        """Without memory, the longest waiting first."""
        self._resumed: dict[Turn, None] = {}
        """Of conversations with memory."""

    def __len__(self) -> int:
        return len(self._new) + len(self._resumed)

    def enter(self, turn: Turn, weight: float) -> None:
        """Raises ``ValueError`` for an invalid weight."""
        self._clock.weigh(turn.account, weight)
        self._clock.join(turn.account)

    def wait(self, turn: Turn) -> None:
        self._place(turn)[turn] = None

    def leave(self, turn: Turn) -> None:
        self._place(turn).pop(turn, None)
        self._clock.leave(turn.account)

    def charge(self, account: str, prefilled: int = 0, sampled: int = 0) -> None:
        self._clock.begin(account)
        self._clock.settle(account, cost=rollout_cost(prefilled, sampled))

    @property
    def first(self) -> int:
        """Number of waiting turns without memory."""
        return len(self._new)

    def ready(self, free: int) -> bool:
        return bool(self._resumed or (free and self._new))

    def next_account(self, free: int) -> str:
        """Furthest behind, with a turn that can begin. Raises ``ValueError`` without any."""
        turns = (*self._resumed, *(self._new if free else ()))
        return self._clock.behind(dict.fromkeys(turn.account for turn in turns))

    def take(self, account: str, free: int) -> list[Turn]:
        """One turn with a sequence, else up to ``free`` with the oldest prompt."""
        turns = [turn for turn in self._resumed if turn.account == account][:1]
        if not turns:
            new = [turn for turn in self._new if turn.account == account]
            turns = [turn for turn in new if turn.keys[-1] == new[0].keys[-1]][:free]
        for turn in turns:
            del self._place(turn)[turn]
        return turns

    def ahead(self, account: str, turns: Iterable[Turn]) -> bool:
        counter = self._clock.counter
        return any(counter(other) < counter(account) for other in {turn.account for turn in turns})

    def sort(self, turns: Iterable[Turn]) -> list[Turn]:
        turns = list(turns)
        counters = {account: self._clock.counter(account) for account in {turn.account for turn in turns}}
        return sorted(turns, key=lambda turn: counters[turn.account]) if len(counters) > 1 else turns

    def _place(self, turn: Turn) -> dict[Turn, None]:
        return self._new if turn.conversation.slot is None else self._resumed


@dataclass(eq=False)
class Part:
    """Two or more tokens at the end of one sequence."""

    turns: list[Turn]
    """The first has the sequence; the others share its prompt."""
    pieces: list[Tokens]
    first: bool
    """A conversation begins with it: others may share it."""

    @property
    def sequence(self) -> int:
        return self.turns[0].conversation.sequence


class BatchScheduler:
    """All conversations of one context, of up to ``length`` tokens each."""

    def __init__(self, context: Context, versions: Versions, length: int) -> None:
        self.memory = SharedMemory(context)
        self._context = context
        self._versions = versions
        self._length = length
        self._conversations: dict[str, Conversation] = {}
        self._line = Line()
        self._echoes: dict[Turn, None] = {}
        """Turns with prompts to score before they begin."""
        self._running: dict[Turn, None] = {}
        """Turns being decoded, the least recently decoded one first."""
        self._sampled = self._prefilled = self._passes = 0
        self._seconds = 0.0

    @property
    def busy(self) -> bool:
        return self._works or self._line.ready(self.memory.grows)

    @property
    def _works(self) -> bool:
        return bool(self._running or self._echoes) or self._line.ready(self.memory.free)

    def stats(self) -> SamplerStats:
        waiting = len(self._line) + len(self._echoes)
        return SamplerStats(self._sampled, self._prefilled, self._seconds, len(self._running), waiting, self._passes)

    def submit(
        self,
        request: SampleRequest,
        answer: Answer[SampleResult],
        stream_to: OnTokens | None = None,
        grammar: SchemaGrammar | None = None,
    ) -> None:
        """Raises ``ValueError`` or ``AdapterError`` if it can never be served."""
        version = self._versions.serving(request.version)
        conversation = self._conversations.get(request.conversation) or Conversation(request.conversation)
        sampling = conversation.turn is not None
        check(request, conversation.tokens, sampling, self._length, self._context.vocabulary)
        room = min(request.max_tokens, self._length - len(request.tokens))
        turn = Turn(request, conversation, version, room, answer, stream_to, grammar)
        echoed = turn.wished is not None and turn.wished.wishes.prompt
        if room == 0 and not echoed:
            answer.give(turn.result("length"))
            return
        self._line.enter(turn, request.weight)
        if echoed:
            self._echoes[turn] = None
        else:
            self._line.wait(turn)
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

    def step(self) -> None:
        begin = time.perf_counter()
        if self._echoes:
            self._echo(self._line.sort(self._echoes)[0])
        if self.memory.grows and not self.memory.free:
            more = min(self._line.first, self._context.enough - len(self._running))
            if more > 0:
                self.memory.grow(more, needed=not self._works)
        self._admit()
        if self._running:
            self._decode(self._next())
        self._seconds += time.perf_counter() - begin

    def fail(self, error: Exception) -> None:
        """Start over with an empty memory."""
        for conversation in list(self._conversations.values()):
            self._drop(conversation, error)
        self.memory.retire()

    def _echo(self, turn: Turn) -> None:
        wished, prompt = turn.wished, turn.prompt
        assert wished is not None
        try:
            handle, count = turn.version.handle, wished.wishes.likeliest
            logprobs, top, logits = score(self._context, handle, prompt, 1, turn.temperature, count, turn.alike)
        except CallFailed as error:
            self._drop(turn.conversation, error)
            return
        wished.prompt = logprobs, top
        del self._echoes[turn]
        turn.prefilled += len(prompt)
        self._prefilled += len(prompt)
        self._line.charge(turn.account, prefilled=len(prompt))
        if turn.room == 0:
            self._end(turn, "length")
        elif turn.room == 1:  # its memory is no longer needed
            self._first_token([turn], logits)
        else:
            self._line.wait(turn)

    def _admit(self) -> None:
        """While running turns fill a call, accounts ahead of them wait."""
        parts: list[Part] = []
        streamed, budget, rows = [], PREFILL, self._context.rows
        count, running = 0, list(self._running)
        while self._line.ready(self.memory.free) and budget > 0 and count < rows:
            account = self._line.next_account(self.memory.free)
            if len(running) >= rows and self._line.ahead(account, running):
                break
            turns = self._line.take(account, self.memory.free)
            if turns[0].conversation.slot is not None:
                cost = self._resume(turns[0], parts)
            else:
                if any(part.first and self.memory.awaits(turns[0], part.turns[0]) for part in parts):
                    self._prefill(parts)
                    parts = []
                cost = self._begin(turns, parts)
            turns[0].prefilled += cost
            self._line.charge(account, prefilled=cost)
            budget -= cost
            count += len(turns)
            streamed += [turn for turn in turns if turn.stream_to is not None]
        self._prefill(parts)
        if streamed:  # on a large base the next tokens of all take as long as a short prompt
            streamed[0].answer.flush()

    def _begin(self, turns: list[Turn], parts: list[Part]) -> int:
        logits = self.memory.place(turns)
        if logits is None:
            return self._read(turns, parts, first=True)
        self.memory.share(turns, logits)
        self._first_token(turns, logits)
        return 0

    def _resume(self, turn: Turn, parts: list[Part]) -> int:
        conversation = turn.conversation
        if conversation.version is not turn.version:  # memory of another adapter is useless
            self.memory.empty(conversation.sequence)
            conversation.version = turn.version
        conversation.tokens = turn.prompt
        return self._read([turn], parts, first=False)

    def _read(self, turns: list[Turn], parts: list[Part], first: bool) -> int:
        """Read what the first turn lacks of the prompt; returns the number."""
        new = turns[0].prompt[self._context.held[turns[0].conversation.sequence] :]
        if len(new) == 1:  # a call of one row has other last bits: it goes with the next step's rows
            self._running |= dict.fromkeys(turns)
        else:  # a new prompt begins at a border: similar turns share memory in whole pieces
            parts.append(Part(turns, np.split(new, range(PIECE, len(new) - 1, PIECE)), first))
        return len(new)

    def _prefill(self, parts: Sequence[Part]) -> None:
        for call in [list(parts)] if self._context.joins else [[part] for part in parts]:
            while call:
                self._prefilled += sum(len(part.pieces[0]) for part in call)
                try:
                    logits = self._decode_pieces(call)
                except CallFailed as error:
                    for turn in [turn for part in call for turn in part.turns]:
                        self._drop(turn.conversation, error)
                    break
                done = [part for part in call if not part.pieces]
                for part, row in zip(done, logits, strict=True):
                    if part.first:
                        self.memory.share(part.turns, row)
                    self._first_token(part.turns, row)
                call = [part for part in call if part.pieces]

    def _decode_pieces(self, call: list[Part]) -> Logits:
        """One call with each part's next piece; returns the last ones' logits."""
        pieces = [part.pieces.pop(0) for part in call]
        counts = [len(piece) for piece in pieces]
        held = [int(self._context.held[part.sequence]) for part in call]
        positions = [np.arange(begin, begin + count) for begin, count in zip(held, counts, strict=True)]
        outputs = np.zeros(sum(counts), np.int8)
        outputs[np.cumsum(counts) - 1] = [not part.pieces for part in call]
        handles = np.repeat([part.turns[0].version.handle for part in call], counts)
        self._context.use(handles, any(part.turns[0].alike for part in call))
        return self._context.decode(
            np.concatenate(pieces),
            np.concatenate(positions).astype(np.int32),
            np.repeat([part.sequence for part in call], counts).astype(np.int32),
            outputs,
        )

    def _first_token(self, turns: list[Turn], logits: Logits) -> None:
        self._running |= dict.fromkeys(turns)
        noise = np.concatenate([turn.noise(1) for turn in turns])
        temperatures, cuts = _heats(turns)
        rows = np.tile(logits, (len(turns), 1))
        wished = [turn.wished for turn in turns]
        tokens, logprobs = draw_wished(self._context.choose, wished, rows, temperatures, noise, cuts)
        self._accept(turns, tokens[:, None], logprobs[:, None])

    def _next(self) -> list[Turn]:
        """In the order of sequences; of one version unless they mix."""
        ordered = self._line.sort(self._running)
        if not self._context.mixes:
            ordered = [turn for turn in ordered if turn.version is ordered[0].version]
        return sorted(ordered[: self._context.rows], key=lambda turn: turn.conversation.sequence)

    def _decode(self, turns: list[Turn]) -> None:
        for turn in turns:
            del self._running[turn]
            self._running[turn] = None
        left = self._context.steps
        while turns and left > 0:
            try:
                tokens, logprobs = self._burst(turns, left)
            except CallFailed as error:
                for turn in turns:
                    self._drop(turn.conversation, error)
                return
            left -= tokens.shape[1]
            self._passes += tokens.shape[1]
            turns = self._accept(turns, tokens, logprobs)

    def _burst(self, turns: list[Turn], limit: int) -> tuple[Tokens, Logprobs]:
        """Sample up to ``limit`` tokens per turn, until one may have ended. Without wishes no Python runs per row.

        Returns int32 and float32 (n, k), k >= 1; only the last token may end a turn.
        """
        context = self._context
        sequences = np.array([turn.conversation.sequence for turn in turns], np.int32)
        positions = context.held[sequences]
        limit = min(limit, min(turn.room for turn in turns), context.length - int(positions.max()))
        current = np.array([turn.last for turn in turns], np.int32)
        noise = np.array([turn.noise(limit) for turn in turns]).T
        temperatures, cuts = _heats(turns)
        wished = [turn.wished for turn in turns]
        stops, outputs = _stops(turns), np.ones(len(turns), np.int8)
        tokens, logprobs = np.empty((limit, len(turns)), np.int32), np.empty((limit, len(turns)), np.float32)
        handles = np.array([turn.version.handle for turn in turns])
        context.use(handles if context.mixes else handles[:1], any(turn.alike for turn in turns))
        for count in range(limit):
            logits = context.decode(current, positions, sequences, outputs)
            drawn = draw_wished(context.choose, wished, logits, temperatures, noise[count], cuts)
            tokens[count], logprobs[count] = drawn
            current, positions = tokens[count], positions + 1
            if (current == stops).any() or any(each is not None and each.over for each in wished):
                break
        return tokens[: count + 1].T, logprobs[: count + 1].T

    def _accept(self, turns: list[Turn], tokens: Tokens, logprobs: Logprobs) -> list[Turn]:
        """(n, k) each; returns the turns that continue."""
        self._sampled += tokens.size
        on = []
        for turn, its_tokens, its_logprobs in zip(turns, tokens, logprobs, strict=True):
            self._line.charge(turn.account, sampled=len(its_tokens))
            finish = turn.accept(its_tokens, its_logprobs)
            if finish is None:
                on.append(turn)
            else:
                self._end(turn, finish)
        return on

    def _end(self, turn: Turn, finish: Finish) -> None:
        result = turn.result(finish)
        turn.conversation.tokens = np.concatenate([turn.prompt, result.tokens])
        self.memory.extend(turn)
        self._leave(turn)
        if turn.wished is not None and turn.wished.problem:
            turn.answer.fail(ValueError(turn.wished.problem))
        else:
            turn.answer.give(result)

    def _drop(self, conversation: Conversation, error: Exception) -> None:
        turn = conversation.turn
        if turn is not None:
            self._leave(turn)
            turn.answer.fail(error)
        self._forget(conversation, intact=False)

    def _leave(self, turn: Turn) -> None:
        turn.conversation.turn = None
        self._running.pop(turn, None)
        self._echoes.pop(turn, None)
        self._line.leave(turn)
        self._versions.leave(turn.version)

    def _forget(self, conversation: Conversation, intact: bool) -> None:
        self.memory.end(conversation, intact)
        del self._conversations[conversation.name]


def _heats(turns: list[Turn]) -> tuple[Floats, Cuts | None]:
    """Temperatures (n,) and truncations; None: all tokens, as in training."""
    temperatures, truncations = np.array([turn.temperature for turn in turns]), [turn.truncation for turn in turns]
    if all(each is WHOLE or each == WHOLE for each in truncations):
        return temperatures, None
    return temperatures, truncations


def _stops(turns: list[Turn]) -> NDArray[np.int32]:
    """In columns: int32 (maximum, n)."""
    stops = np.full((max(len(turn.stop) for turn in turns), len(turns)), NOTHING, np.int32)
    for column, turn in enumerate(turns):
        stops[: len(turn.stop), column] = turn.stop
    return stops
