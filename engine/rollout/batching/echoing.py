"""Log-probabilities of prompts' own tokens, for turns that wish for them: computed anew, in a sequence of their own.

A piece at a time, between the steps of the batch scheduler, so that neither others wait for a long prompt nor memory
grows with it: there are never more logits than of one piece. One prompt after another, that of the account first which
is behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from ...base import scored_rows
from ...trajectories import Logprobs, Tokens
from ..sampling import likeliest, logprobs_under
from ..wishes import Likeliest, join
from .context import Context, Logits
from .turn import Turn


class Echoes:
    """Turns whose prompts are to be told of before they begin. The context's last sequence is for these."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._turns: dict[Turn, None] = {}
        """Those that wait, in order of arrival, and the one whose prompt is under way."""
        self._current: Turn | None = None
        self._done = 0
        """Tokens of the current prompt that are in memory."""
        self._logprobs: list[Logprobs] = []
        self._likeliest: list[Likeliest] = []

    def __len__(self) -> int:
        """How many have not begun their turn."""
        return len(self._turns)

    def add(self, turn: Turn) -> None:
        """Let a turn wait."""
        self._turns[turn] = None

    def drop(self, turn: Turn) -> None:
        """A turn has ended; one that does not wait is ignored."""
        self._turns.pop(turn, None)
        if turn is self._current:
            self._leave()

    def step(self, sort: Callable[[Iterable[Turn]], list[Turn]]) -> tuple[Turn, int, Logits | None]:
        """Compute a piece of a prompt, of the first turn in the order of ``sort``, or the one that has begun.

        Returns that turn, how many tokens were computed, and the logits after its prompt (V,), valid until the next
        call, once that is whole: the turn waits no more, and has been given what it wished for. Where the context
        raises, the error has the turn as ``current`` to be dropped.
        """
        turn = self._current
        if turn is None:
            turn = self._current = sort(self._turns)[0]
        begin, prompt = self._done, turn.prompt
        new = prompt[begin : begin + scored_rows(self._context.vocabulary)]
        end = begin + len(new)
        positions = np.arange(begin, end, dtype=np.int32)
        self._context.use(np.array([turn.version.handle]), turn.alike)
        logits = self._context.decode(
            new, positions, np.full_like(positions, self._context.sequences - 1), np.ones(len(new), np.int8)
        )
        targets = prompt[begin + 1 : end + 1]
        if len(targets):
            self._note(turn, logits[: len(targets)], targets)
        self._done = end
        if end < len(prompt):
            return turn, len(new), None
        last = logits[-1].copy()
        if turn.wished is not None:
            said = np.concatenate([np.empty(0, np.float32), *self._logprobs])
            turn.wished.echo(said, join(self._likeliest, turn.wished.wishes.likeliest))
        self.drop(turn)
        return turn, len(new), last

    @property
    def current(self) -> Turn | None:
        """The turn whose prompt is under way."""
        return self._current

    def _note(self, turn: Turn, logits: Logits, targets: Tokens) -> None:
        """Of the positions whose next token is in the prompt."""
        count = turn.wished.wishes.likeliest if turn.wished is not None else 0
        heats = np.full(len(targets), turn.temperature)
        beside, totals = likeliest(logits, heats, count)
        self._logprobs.append(logprobs_under(logits, heats, totals, targets))
        self._likeliest.append(beside)

    def _leave(self) -> None:
        self._context.cut(self._context.sequences - 1, 0)
        self._current, self._done, self._logprobs, self._likeliest = None, 0, [], []
