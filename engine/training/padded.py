"""From groups to padded batches: how models that know nothing of packing take their tokens.

Checked groups flow in, numpy arrays flow out. Batches keep the order of the groups, never hold sequences of two groups,
and are cut by size alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .protocol import TrainGroup, TrainSequence
from .tokens import Ints, Lesson, TrainedTokens, lesson_of


@dataclass(frozen=True)
class PaddedBatch:
    """B sequences padded to length S on the right, of which N tokens are trained.

    The logits for trained token n are those at ``(trained.sequence[n], columns[n])``, one place before the token. Under
    causal attention no such place sees the padding, so that no attention mask is needed.
    """

    inputs: Ints
    """(B, S)"""
    columns: Ints
    """(N,)"""
    lesson: Lesson

    @property
    def lessons(self) -> tuple[Lesson, ...]:
        """The only one's."""
        return (self.lesson,)

    @property
    def trained(self) -> TrainedTokens:
        """N tokens."""
        return self.lesson.trained


def padded_batches(groups: Iterable[TrainGroup], max_tokens: int) -> Iterator[PaddedBatch]:
    """Yield the groups in batches of at most ``max_tokens``; a sequence too large for that gets one of its own.

    Sequences are cut after the last token whose logits are needed; those without trained tokens are left out.
    """
    for group in groups:
        yield from _cut(group, max_tokens)


def _cut(group: TrainGroup, max_tokens: int) -> Iterator[PaddedBatch]:
    pending: list[TrainSequence] = []
    longest = 0
    for sequence in group.sequences:
        if not sequence.mask.any():
            continue
        length = max(longest, _input_length(sequence))
        if pending and length * (len(pending) + 1) > max_tokens:
            yield _pad(group.number, pending)
            pending, length = [], _input_length(sequence)
        pending.append(sequence)
        longest = length
    if pending:
        yield _pad(group.number, pending)


def _input_length(sequence: TrainSequence) -> int:
    """The model reads up to the token before the last trained one."""
    return int(np.flatnonzero(sequence.mask)[-1])


def _pad(group: int, sequences: Sequence[TrainSequence]) -> PaddedBatch:
    lengths = [_input_length(sequence) for sequence in sequences]
    inputs = np.zeros((len(sequences), max(lengths)), dtype=np.int64)
    for row, (sequence, length) in enumerate(zip(sequences, lengths, strict=True)):
        inputs[row, :length] = sequence.tokens[:length]
    columns = np.concatenate([np.flatnonzero(sequence.mask) for sequence in sequences]) - 1
    return PaddedBatch(inputs, columns, lesson_of(0, 0, [group] * len(sequences), sequences))
