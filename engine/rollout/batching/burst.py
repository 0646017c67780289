"""The inner loop: running turns, decoded together token after token until one of them may have ended.

Works on arrays; no Python runs for a single row. Which rows a call holds is decided in ``slots``; finished turns are
the scheduler's to handle.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...trajectories import Logprobs, Tokens
from ..sampling import Floats, choose
from ..truncation import WHOLE, Cuts
from .context import Context, DrawingContext
from .slots import BRIDGE, rows_with_fillers
from .turn import Turn
from .wished import wanted_of

Pressed = Callable[[], bool]
"""Says whether a call waits for the thread."""
NOTHING = -1
"""Pads the stop tokens of a turn that has fewer than another; no token has this id."""


def never() -> bool:
    """No call waits for the thread."""
    return False


def burst(
    context: Context, turns: list[Turn], limit: int, pressed: Pressed = never, bridge: int = BRIDGE
) -> tuple[Tokens, Logprobs]:
    """Sample up to ``limit`` tokens for each of ``turns``, which are in the order of their sequences.

    They are of one version unless the context mixes. Returns tokens int32 (n, k) and log-probabilities float32 (n, k),
    n turns and k >= 1 tokens, where only the last token of a turn may end it. Rows of other sequences that serve as
    fillers, in holes of up to ``bridge``, are left as they were. Ends once ``pressed``. Raises ``DecodeFailed``.
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
                else:  # the other rows get the bits that they would have without
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
    """The active row that each row is, or that stands before it: a filler has a neighbour's adapter."""
    return np.maximum(np.searchsorted(active, rows, side="right") - 1, 0)


def cuts_of(turns: list[Turn], temperatures: Floats) -> Cuts | None:
    """Which tokens the turns may draw; None where all may draw any, as in training."""
    truncations = [turn.truncation for turn in turns]
    return None if all(one is WHOLE or one == WHOLE for one in truncations) else Cuts(truncations, temperatures)


def _stops(turns: list[Turn]) -> NDArray[np.int32]:
    """The stop tokens of each turn, one below the other: int32 (most that any has, n)."""
    stops = np.full((max(len(turn.stop) for turn in turns), len(turns)), NOTHING, np.int32)
    for column, turn in enumerate(turns):
        stops[: len(turn.stop), column] = turn.stop
    return stops
