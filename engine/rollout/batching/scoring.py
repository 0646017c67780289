"""Teacher-forced log-probabilities under one adapter version: what the canary and the contract tests compare."""

from __future__ import annotations

import numpy as np

from ...base import scored_rows
from ...trajectories import Logprobs, Tokens
from ..sampling import logprobs_of
from .context import Context


def score(context: Context, adapter: int, sequence: int, tokens: Tokens, start: int, temperature: float) -> Logprobs:
    """float32 (T-start,): log-probabilities of ``tokens[start:]``, computed in ``sequence``, which is left empty.

    Raises ``ValueError`` unless 1 <= start <= T and all tokens fit.
    """
    check_score(context, tokens, start)
    context.use(np.array([adapter]))
    given, targets = tokens[:-1], tokens[1:]
    parts, chunk = [np.empty(0, np.float32)], scored_rows(context.vocabulary)
    try:
        for begin in range(0, len(given), chunk):
            part = slice(begin, min(begin + chunk, len(given)))
            positions = np.arange(part.start, part.stop, dtype=np.int32)
            wanted = positions >= start - 1
            logits = context.decode(given[part], positions, np.full_like(positions, sequence), wanted.astype(np.int8))
            parts.append(logprobs_of(logits, targets[part][wanted], temperature))
    finally:
        context.cut(sequence, 0)
    return np.concatenate(parts)


def check_score(context: Context, tokens: Tokens, start: int) -> None:
    """Raise ``ValueError`` unless 1 <= start <= T and all tokens fit."""
    if not 1 <= start <= len(tokens):
        raise ValueError(f"start is {start}; it must lie between 1 and the {len(tokens)} tokens.")
    if len(tokens) > context.length or tokens.min() < 0 or tokens.max() >= context.vocabulary:
        raise ValueError("The tokens do not fit the sampler's context or vocabulary.")
