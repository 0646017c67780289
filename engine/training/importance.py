"""Collects the importance weights of trained tokens: how far the policy had moved from the version that sampled them.

They are for people to look at. The loss computes and bounds weights of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from torch import Tensor

from .inputs import TrainGroup
from .losses import LOG_RATIO_LIMIT
from .protocol import LogWeights
from .tokens import Lesson


class ImportanceNotes:
    """Collects importance weights over the batches of a pass."""

    def __init__(self) -> None:
        self._found: dict[int, LogWeights] = {}
        """By the sequence's ``id``, because batches may hold sequences in any order; the groups keep them alive."""

    def note(self, lesson: Lesson, logp: Tensor) -> None:
        """Keep the weights of a lesson's tokens; ``logp`` is (N,)."""
        trained = lesson.trained
        moved = np.clip(logp.cpu().numpy() - trained.behaviour, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).astype(np.float16)
        parts = np.split(moved, np.flatnonzero(np.diff(trained.sequence)) + 1)
        self._found.update((id(s), part) for s, part in zip(lesson.sequences, parts, strict=True))

    def of(self, groups: Iterable[TrainGroup]) -> dict[int, LogWeights]:
        """Weights by group number, of those groups whose sequences all went through a pass."""
        found = {group.number: [self._found.get(id(s)) for s in group.sequences] for group in groups}
        return {
            number: np.concatenate(whole)
            for number, parts in found.items()
            if len(whole := [part for part in parts if part is not None]) == len(parts) and whole
        }
