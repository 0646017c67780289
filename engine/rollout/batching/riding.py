"""Scores that ride with prompts: their few rows join a call that is made anyway, where the context ``joins``.

A call that begins many operations costs several times as much on a small base, however few rows it has. (A compiled one
begins none: there scores do not ride.) One that finds no call to join within some calls, or while nothing is sampled,
has one of its own. Everything here runs on the sampler's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...base import scored_rows
from ...devices import as_shortage
from ...trajectories import Logprobs, Tokens
from ..sampling import logprobs_of
from .answers import Answer
from .context import Arrays, Context, Handles, Ints, Logits
from .scoring import check_score, score

PATIENCE = 4
"""Calls without a prompt that a score lets pass: those of one step of the batch scheduler on a small base. A commit may
wait for the score."""
LONGEST = 256
"""Rows of scores that may join a call: what they add to the wait of others stays small."""
SEATS = 7
"""Further sequences for scores, where the context ``joins``. The pages behind the first ``LONGEST`` tokens are never
written, so they take no memory."""


@dataclass(frozen=True)
class Rider:
    """A score that waits."""

    handle: int
    """Of its adapter, which must stay loaded until ``over``."""
    tokens: Tokens
    start: int
    temperature: float
    answer: Answer[Logprobs]
    over: Callable[[], None]
    """Called before the answer is given."""
    told: Callable[[], None]
    """Called afterwards."""

    @property
    def rows(self) -> int:
        """Tokens that are computed."""
        return len(self.tokens) - 1

    def give(self, logprobs: Logprobs) -> None:
        """Answer."""
        self.over()
        self.answer.give(logprobs)
        self.told()

    def fail(self, error: Exception) -> None:
        """The caller gets an error."""
        self.over()
        self.answer.fail(error)
        self.told()


class RidingContext:
    """Implements ``Context`` over another that ``joins``, whose sequences from ``first`` on are for scores, but for
    the last."""

    def __init__(self, context: Context, first: int) -> None:
        self._context = context
        self._spare = range(first, context.sequences - 1)  # the last one is for prompts that are told of
        self._waiting: deque[tuple[Rider, int]] = deque()
        """Scores, and the number of the call before which each came; the oldest first."""
        self._calls = 0
        self._adapters: Handles = np.empty(0, np.int64)
        self._alike = True
        self.sequences, self.length, self.vocabulary = context.sequences, context.length, context.vocabulary
        self.weights, self.mixes, self.joins = context.weights, context.mixes, context.joins
        self.held: Ints = context.held

    def add(self, rider: Rider) -> None:
        """Let a score wait for a call. Raises ``ValueError`` where it can never be computed."""
        check_score(self._context, rider.tokens, rider.start)
        self._waiting.append((rider, self._calls))

    def flush(self) -> None:
        """Compute all that wait, in calls of their own."""
        while self._waiting:
            rider, _ = self._waiting.popleft()
            try:
                said = score(self._context, rider.handle, self._spare[0], rider.tokens, rider.start, rider.temperature)
            except Exception as error:
                rider.fail(as_shortage(error))
            else:
                rider.give(said)
        self._context.use(self._adapters, self._alike)

    def fail(self, error: Exception) -> None:
        """All that wait get an error."""
        while self._waiting:
            self._waiting.popleft()[0].fail(error)

    def decode(self, tokens: Ints, positions: Ints, sequences: Ints, outputs: NDArray[np.int8]) -> Logits:
        """See the protocol."""
        prompts = bool(self._waiting) and len(np.unique(sequences)) < len(sequences)
        riders = self._boarding() if prompts and len(self._adapters) else []
        if riders:
            self._calls += 1
            return self._together(riders, tokens, positions, sequences, outputs)
        self._go_without()
        return self._context.decode(tokens, positions, sequences, outputs)

    def _go_without(self) -> None:
        """A call is made that no score joins; those that have waited long enough are computed first."""
        self._calls += 1
        if self._waiting and self._calls - self._waiting[0][1] > PATIENCE:
            self.flush()

    def _boarding(self) -> list[Rider]:
        """Those that may go with the next call, of whose logits there must not be too many."""
        room, rows = scored_rows(self.vocabulary), LONGEST
        riders: list[Rider] = []
        while self._waiting and len(riders) < len(self._spare) and self._waiting[0][0].rows <= min(rows, room):
            riders.append(self._waiting.popleft()[0])
            room, rows = room - riders[-1].rows, rows - riders[-1].rows
        return riders

    def _together(
        self, riders: list[Rider], tokens: Ints, positions: Ints, sequences: Ints, outputs: NDArray[np.int8]
    ) -> Logits:
        own = self._adapters if len(self._adapters) > 1 else np.repeat(self._adapters, len(tokens))
        counts, spare = [rider.rows for rider in riders], list(self._spare[: len(riders)])
        places = [np.arange(count, dtype=np.int32) for count in counts]
        wanted = [place >= rider.start - 1 for place, rider in zip(places, riders, strict=True)]
        self._context.use(np.concatenate([own, np.repeat([rider.handle for rider in riders], counts)]), self._alike)
        try:
            logits = self._context.decode(
                np.concatenate([tokens, *(rider.tokens[:-1] for rider in riders)]),
                np.concatenate([positions, *places]),
                np.concatenate([sequences, np.repeat(np.array(spare, np.int32), counts)]),
                np.concatenate([outputs, *(each.astype(np.int8) for each in wanted)]),
            )
        except Exception:
            overdue = self._calls - PATIENCE  # they may be to blame: the next call without a prompt is their own
            self._waiting.extendleft((rider, overdue) for rider in reversed(riders))
            raise
        finally:
            for sequence in spare:
                self._context.cut(sequence, 0)
            self._context.use(self._adapters, self._alike)
        first = asked = int(outputs.sum())
        for rider in riders:
            count = len(rider.tokens) - rider.start
            rider.give(logprobs_of(logits[first : first + count], rider.tokens[rider.start :], rider.temperature))
            first += count
        return logits[:asked]

    def grow(self, sequences: int, needed: bool) -> bool:
        """See the protocol."""
        return self._context.grow(sequences, needed)

    def use(self, adapters: Handles, alike: bool = True) -> None:
        """See the protocol."""
        self._adapters, self._alike = adapters, alike
        self._context.use(adapters, alike)

    def cut(self, sequence: int, length: int) -> None:
        """See the protocol."""
        self._context.cut(sequence, length)

    def copy(self, source: int, target: int, length: int) -> None:
        """See the protocol."""
        self._context.copy(source, target, length)

    def load_adapter(self, adapter: Arrays, alpha: float) -> int:
        """See the protocol."""
        return self._context.load_adapter(adapter, alpha)

    def free_adapter(self, adapter: int) -> None:
        """See the protocol."""
        self._context.free_adapter(adapter)

    def close(self) -> None:
        """See the protocol."""
        self._context.close()
