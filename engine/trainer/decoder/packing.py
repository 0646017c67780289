"""From groups to packed batches: every prompt once, every answer once, and the place of each row."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...models.memory import AGAIN
from ..model import Ints, Lesson, lesson_of
from ..protocol import TrainGroup, TrainSequence

# Sequences of a group with the same tokens before their first trained one are a *family*: that prompt is in the batch
# once. Equal inputs, or beginnings of others, share a row. Sums and gradient stay the same.

PADDED = 2
"""The most slots of attention for each place of a batch."""
ROUND_TOKENS, ROUND_SLOTS = 32, 8
"""Lengths are rounded up to these: a new shape takes a fraction of a millisecond to prepare."""


@dataclass(frozen=True)
class PackedBatch:
    """A batch of T places: for each policy its prompts, then its answers; then unused ones.

    There are F families of at most G rows each. The last place is always unused: padding in index arrays points to it.
    """

    tokens: Ints
    """(T,)"""
    positions: Ints
    prefixes: Ints
    """(F, P): places of each prompt."""
    prefix_lengths: Ints
    """(F,)"""
    rows: Ints
    """(F, G, L): places of each answer."""
    needed: Ints
    """(M,): places whose logits are needed, ascending, then padding."""
    source: Ints
    """(N,): the needed place that predicts each trained token."""
    lessons: tuple[Lesson, ...]
    """For each policy its trained tokens, N together."""
    spans: tuple[slice, ...]
    needed_spans: tuple[slice, ...]

    @property
    def targets(self) -> Ints:
        """(N,): the trained tokens."""
        return np.concatenate([lesson.trained.targets for lesson in self.lessons])


@dataclass(frozen=True)
class Family:
    """Sequences of a group with one prompt. No row is the beginning of another."""

    group: int
    prompt: Ints
    rows: tuple[Ints, ...]
    members: tuple[tuple[TrainSequence, int], ...]

    @property
    def size(self) -> int:
        return len(self.prompt) + sum(len(row) for row in self.rows)


def packed_batches(
    jobs: Sequence[Iterable[TrainGroup]], max_tokens: int, most_tokens: int = 0
) -> Iterator[PackedBatch]:
    """Yield the trained tokens of each policy's groups in batches of at most ``max_tokens`` places, in order.

    Too large families are divided by samples. Families of very different lengths get different batches, because
    attention pads each to the longest. A family with a long prompt is divided into parts of up to ``most_tokens``, in
    separate batches with recomputed layers.
    """
    pending: list[tuple[int, Family]] = []
    before = max_tokens
    for policy, groups in enumerate(jobs):
        for family in (
            part for group in groups for whole in families(group) for part in parts(whole, max_tokens, most_tokens)
        ):
            limit = max_tokens if family.size <= max_tokens else max(max_tokens, most_tokens)
            if pending and (limit != before or not _fit([*(each for _, each in pending), family], limit)):
                yield pack(pending, len(jobs))
                pending = []
            pending.append((policy, family))
            before = limit
    if pending:
        yield pack(pending, len(jobs))


def _fit(some: Sequence[Family], limit: int) -> bool:
    longest = max(len(row) for family in some for row in family.rows)
    slots = max(len(family.prompt) for family in some) + max(len(family.rows) for family in some) * longest
    return sum(family.size for family in some) <= limit and len(some) * slots <= PADDED * limit


def parts(whole: Family, max_tokens: int, most_tokens: int) -> list[Family]:
    """A family in parts of at most ``max_tokens``, or of ``most_tokens`` if that is faster."""
    small = list(divide(whole, max_tokens))
    if most_tokens <= max_tokens or sum(part.size for part in small) <= AGAIN * whole.size:
        return small
    return list(divide(whole, most_tokens))


def families(group: TrainGroup) -> list[Family]:
    """The group's sequences by prompt, in order of first appearance; those without trained tokens are left out."""
    found: dict[bytes, list[TrainSequence]] = {}
    for sequence in group.sequences:
        if sequence.mask.any():
            found.setdefault(sequence.tokens[: int(sequence.mask.argmax())].tobytes(), []).append(sequence)
    return [family(group.number, sequences) for sequences in found.values()]


def family(group: int, sequences: Sequence[TrainSequence]) -> Family:
    """Sequences that share what comes before their first trained token."""
    start = int(sequences[0].mask.argmax())
    answers = [tuple(s.tokens[start : int(np.flatnonzero(s.mask)[-1])].tolist()) for s in sequences]
    rows: list[tuple[int, ...]] = []
    row_of = {}
    for answer in sorted(set(answers), reverse=True):  # an answer comes right before its own beginnings
        if not rows or rows[-1][: len(answer)] != answer:
            rows.append(answer)
        row_of[answer] = len(rows) - 1
    return Family(
        group,
        sequences[0].tokens[:start].astype(np.int64),
        tuple(np.array(row, dtype=np.int64) for row in rows),
        tuple((sequence, row_of[answer]) for sequence, answer in zip(sequences, answers, strict=True)),
    )


def divide(whole: Family, max_tokens: int) -> Iterator[Family]:
    """Divide a family that is too large into runs of samples, each with the prompt."""
    if whole.size <= max_tokens or len(whole.members) == 1:
        yield whole
        return
    half = len(whole.members) // 2
    for members in (whole.members[:half], whole.members[half:]):
        yield from divide(family(whole.group, [sequence for sequence, _ in members]), max_tokens)


def pack(owned: Sequence[tuple[int, Family]], policies: int = 1) -> PackedBatch:
    """Make a batch of families, each with its policy's number, in order of policies."""
    pieces = [piece for _, piece in owned]
    total = _round(sum(piece.size for piece in pieces) + 1, ROUND_TOKENS)
    tokens, positions = np.zeros(total, dtype=np.int64), np.zeros(total, dtype=np.int64)
    lengths = np.array([len(piece.prompt) for piece in pieces], dtype=np.int64)
    longest = max(1, *(len(row) for piece in pieces for row in piece.rows))
    widest = max(len(piece.rows) for piece in pieces)
    prefixes = np.full((len(pieces), _round(int(lengths.max()), ROUND_SLOTS)), total - 1)
    rows = np.full((len(pieces), widest, _round(longest, ROUND_SLOTS)), total - 1)
    place, borders = 0, [0]
    for policy in range(policies):
        own = [(number, piece) for number, (owner, piece) in enumerate(owned) if owner == policy]
        for number, piece in own:
            place = _lay(piece.prompt, 0, place, tokens, positions, prefixes[number])
        for number, piece in own:
            for index, row in enumerate(piece.rows):
                place = _lay(row, len(piece.prompt), place, tokens, positions, rows[number, index])
        borders.append(place)
    predicting = np.concatenate(
        [
            _predicting(sequence, prefixes[number], int(lengths[number]), rows[number, row])
            for number, piece in enumerate(pieces)
            for sequence, row in piece.members
        ]
    )
    needed, source = np.unique(predicting, return_inverse=True)
    spare = _round(len(needed), ROUND_TOKENS) - len(needed)
    needed_borders = np.searchsorted(needed, borders).tolist()
    if policies == 1:  # it gets the unused places, too, so that few shapes occur in its products
        borders[1], needed_borders[1] = total, len(needed) + spare
    return PackedBatch(
        tokens,
        positions,
        prefixes,
        lengths,
        rows,
        np.append(needed, np.full(spare, total - 1)),
        source.reshape(-1),
        tuple(_lessons(owned)),
        _spans(borders),
        _spans(needed_borders),
    )


def _lessons(owned: Sequence[tuple[int, Family]]) -> Iterator[Lesson]:
    first = 0
    for policy in sorted({policy for policy, _ in owned}):
        own = [piece for owner, piece in owned if owner == policy]
        groups = [piece.group for piece in own for _ in piece.members]
        lesson = lesson_of(policy, first, groups, [sequence for piece in own for sequence, _ in piece.members])
        yield lesson
        first = lesson.tokens.stop


def _spans(borders: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in itertools.pairwise(borders))


def _lay(piece: Ints, position: int, place: int, tokens: Ints, positions: Ints, slots: Ints) -> int:
    count = len(piece)
    tokens[place : place + count] = piece
    positions[place : place + count] = np.arange(position, position + count)
    slots[:count] = np.arange(place, place + count)
    return place + count


def _predicting(sequence: TrainSequence, prefix: Ints, start: int, row: Ints) -> NDArray[np.int64]:
    before = np.flatnonzero(sequence.mask) - 1 - start
    return np.where(before < 0, prefix[start - 1], row[np.maximum(before, 0)] if row.size else prefix[start - 1])


def places_within(tokens: int) -> int:
    """The most places of a batch of at most this many, without its unused ones."""
    return max(tokens // ROUND_TOKENS * ROUND_TOKENS, min(tokens, ROUND_TOKENS)) - 1


def _round(count: int, to: int) -> int:
    return -(-count // to) * to


@dataclass(frozen=True)
class Places:
    """The arrays of a ``PackedBatch`` as int64 tensors on a device."""

    tokens: Tensor
    positions: Tensor
    prefixes: Tensor
    prefix_lengths: Tensor
    rows: Tensor
    needed: Tensor
    source: Tensor
    targets: Tensor

    @classmethod
    def of(cls, batch: PackedBatch, device: torch.device) -> Places:
        return cls(*(torch.from_numpy(getattr(batch, part.name)).to(device) for part in fields(cls)))
