"""Computes what turns begin with: prompts, and what was appended to a conversation.

A context that joins takes all parts in one call; in others each part is a call of its own, because there a row's last
bits depend on its call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import CallFailed
from ...trajectories import Tokens
from .context import Context, Logits
from .turn import Turn


@dataclass(frozen=True)
class Chunk:
    """Two tokens or more at the end of one sequence."""

    turns: list[Turn]
    """The first has the sequence; the others share its prompt."""
    new: Tokens
    """int32 (n,)"""

    @property
    def sequence(self) -> int:
        """The sequence in which it is computed."""
        return self.turns[0].conversation.sequence


def prefill(context: Context, parts: Sequence[Chunk]) -> Iterator[tuple[list[Chunk], list[Logits] | CallFailed]]:
    """Yield the parts of each call with the logits (V,) after each, valid until the next call, or with its failure."""
    for call in [list(parts)] if context.joins and parts else [[part] for part in parts]:
        try:
            logits = _decode(context, call)
        except CallFailed as error:
            yield call, error
        else:
            yield call, list(logits[1::2])


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
