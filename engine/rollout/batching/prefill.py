"""Computes what turns begin with: prompts, and what was appended to a conversation.

A context that joins takes all parts in one call; in others each part is a call of its own, because there a row's last
bits depend on its call. Long parts are computed in pieces. A piece attends to what is before it, and to nothing after
its end, which a call for the whole part computes only to mask it: on torch pieces take a third to four fifths of the
time at 2,000 tokens, and memory for their attention that grows with the length, not with its square. And as the borders
are the same for all prompts, a block has the same bits whichever prompt it was computed for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import CallFailed
from ...trajectories import Tokens
from .context import Context, Logits
from .prefixes import PIECE
from .turn import Turn


@dataclass(frozen=True)
class Chunk:
    """Two tokens or more at the end of one sequence."""

    turns: list[Turn]
    """The first has the sequence; the others share its prompt."""
    new: Tokens
    """int32 (n,)"""
    first: bool
    """Whether a conversation begins with it, so that others may share it."""

    @property
    def sequence(self) -> int:
        """The sequence in which it is computed."""
        return self.turns[0].conversation.sequence


def prefill(context: Context, parts: Sequence[Chunk]) -> Iterator[tuple[list[Chunk], list[Logits] | CallFailed]]:
    """Yield the parts that each call completes with the logits (V,) after each, valid until the next call; or all parts
    of a call that failed, with its error."""
    for together in [list(parts)] if context.joins and parts else [[part] for part in parts]:
        # a new prompt begins at a border: turns that are alike share memory in whole pieces
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
    """The logits of the last two tokens of each part: a lone output row would have other last bits."""
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
