"""A probe on its way through the passes of a policy's groups: as the last group of all, which teaches nothing.

So its log-probabilities cost the products of its few tokens, and no pass of their own. It is taken out again before the
loss sees it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from ..trajectories import Logprobs, Tokens
from .inputs import TrainGroup, TrainSequence
from .model import Lesson, trained_tokens_of
from .protocol import Probe

PROBED = -1
"""The number of the group that a probe is; others count from 0."""


def probe_group(probe: Probe) -> TrainGroup:
    """The group that a probe is. Raises ``ValueError`` where scoring cannot begin at a sequence's ``start``."""
    return TrainGroup(PROBED, tuple(_sequence(tokens, start) for tokens, start in probe.sequences))


def is_probe(group: TrainGroup) -> bool:
    """Whether a group is a probe."""
    return group.number == PROBED


def _sequence(tokens: Tokens, start: int) -> TrainSequence:
    if not 1 <= start <= len(tokens):
        raise ValueError(f"Scoring can start at 1 to {len(tokens)} in this sequence, not at {start}.")
    mask = np.zeros(len(tokens), dtype=np.uint8)
    mask[start:] = 1
    return TrainSequence(tokens, mask, np.zeros(len(tokens), dtype=np.float32), 0.0)


def taught(lesson: Lesson) -> Lesson | None:
    """A lesson without its probe, whose tokens are the last ones; None where nothing is left."""
    count = sum(number != PROBED for number in lesson.groups)
    if count == len(lesson.groups):
        return lesson
    if not count:
        return None
    trained = trained_tokens_of(lesson.sequences[:count])
    tokens = slice(lesson.tokens.start, lesson.tokens.start + len(trained.targets))
    return replace(
        lesson, tokens=tokens, groups=lesson.groups[:count], sequences=lesson.sequences[:count], trained=trained
    )


class ProbeNotes:
    """Collects the scores of a policy's probe over the batches of a pass."""

    def __init__(self) -> None:
        self._found: dict[int, Logprobs] = {}
        """By the sequence's ``id``, as in ``ImportanceNotes``."""

    def note(self, lesson: Lesson, logp: Tensor) -> None:
        """Keep what a batch says of the probe; ``logp`` (N,) is of all of the lesson's tokens."""
        if PROBED not in lesson.groups:
            return
        parts = np.split(logp.numpy(), np.flatnonzero(np.diff(lesson.trained.sequence)) + 1)
        of = zip(lesson.groups, lesson.sequences, parts, strict=True)
        self._found.update((id(sequence), part.copy()) for number, sequence, part in of if number == PROBED)

    def of(self, groups: Iterable[TrainGroup]) -> tuple[Logprobs, ...]:
        """The scores, by sequence; none without a probe. One without a token to score has none."""
        return tuple(_scores(groups, self._found))


def _scores(groups: Iterable[TrainGroup], found: dict[int, Logprobs]) -> Iterator[Logprobs]:
    nothing = np.zeros(0, dtype=np.float32)
    for group in groups:
        if is_probe(group):
            yield from (found.get(id(sequence), nothing) for sequence in group.sequences)


def joined(
    groups: Sequence[TrainGroup], parts: Iterable[tuple[Sequence[TrainGroup], tuple[Logprobs, ...]]]
) -> tuple[Logprobs, ...]:
    """The scores of a policy's ``groups`` from those of its parts."""
    found: dict[int, Logprobs] = {}
    for own, scores in parts:
        sequences = (sequence for group in own if is_probe(group) for sequence in group.sequences)
        found.update((id(sequence), one) for sequence, one in zip(sequences, scores, strict=True))
    return tuple(_scores(groups, found))
