"""How far each trained token's policy had moved from the one that sampled it: what passes over some groups found.

Lessons with the log-probabilities of their tokens flow in, an array for each group flows out: for people to look at,
not for the loss, which bounds these weights in ways of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from torch import Tensor

from .losses.ratios import LOG_RATIO_LIMIT
from .protocol import LogWeights, TrainGroup
from .tokens import Lesson


class ImportanceNotes:
    """Collects them over the batches of a pass."""

    def __init__(self) -> None:
        self._found: dict[int, LogWeights] = {}
        """By the identity of the sequence, for batches may hold them in any order; the groups keep them alive."""

    def note(self, lesson: Lesson, logp: Tensor) -> None:
        """Remember the weights of a lesson's tokens; ``logp`` is (N,)."""
        trained = lesson.trained
        moved = np.clip(logp.cpu().numpy() - trained.behaviour, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).astype(np.float16)
        parts = np.split(moved, np.flatnonzero(np.diff(trained.sequence)) + 1)
        self._found.update((id(s), part) for s, part in zip(lesson.sequences, parts, strict=True))

    def of(self, groups: Iterable[TrainGroup]) -> dict[int, LogWeights]:
        """By number, of those groups whose sequences all went through a pass."""
        found = {group.number: [self._found.get(id(s)) for s in group.sequences] for group in groups}
        return {
            number: np.concatenate(whole)
            for number, parts in found.items()
            if len(whole := [part for part in parts if part is not None]) == len(parts) and whole
        }
