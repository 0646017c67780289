"""The trained tokens of some sequences, with what a loss needs besides the current log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .inputs import TrainGroup, TrainSequence

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class TrainedTokens:
    """N tokens in order of sequence and position."""

    targets: Ints
    """(N,): the tokens."""
    behaviour: Floats
    """(N,): their log-probabilities when they were sampled."""
    advantage: Floats
    """(N,)"""
    sequence: Ints
    """(N,): which sequence each belongs to, ascending from 0."""
    share: Floats
    """(N,): 1 / (trained tokens of the episode that it belongs to), its weight in a mean over the episode."""
    proximal: Floats | None = None
    """(N,): their log-probabilities before the step's first update; None in the first epoch."""


@dataclass(frozen=True)
class Lesson:
    """The trained tokens of one policy in a batch, with their sequences."""

    policy: int
    """Its number among the mounted policies."""
    tokens: slice
    """Its part of all trained tokens of the batch."""
    groups: tuple[int, ...]
    """The number of each sequence's group."""
    sequences: tuple[TrainSequence, ...]
    trained: TrainedTokens
    """The sequences' tokens."""


def lesson_of(policy: int, first: int, groups: Sequence[int], sequences: Sequence[TrainSequence]) -> Lesson:
    """The lesson whose trained tokens begin at ``first`` of the batch."""
    trained = trained_tokens_of(sequences)
    return Lesson(policy, slice(first, first + len(trained.targets)), tuple(groups), tuple(sequences), trained)


def trained_tokens_of(sequences: Sequence[TrainSequence]) -> TrainedTokens:
    """Collect the tokens that the masks mark."""
    places = [np.flatnonzero(sequence.mask) for sequence in sequences]
    counts = [len(own) for own in places]
    pairs = list(zip(sequences, places, strict=True))
    whole = [sequence.episode_tokens or count for sequence, count in zip(sequences, counts, strict=True)]
    proximal = [s.proximal[own] for s, own in pairs if s.proximal is not None]
    return TrainedTokens(
        targets=np.concatenate([s.tokens[own] for s, own in pairs]).astype(np.int64),
        behaviour=np.concatenate([s.logprobs[own] for s, own in pairs]).astype(np.float32),
        advantage=np.concatenate([_advantages(s, own) for s, own in pairs]),
        sequence=np.repeat(np.arange(len(sequences)), counts),
        share=np.repeat((1.0 / np.array(whole)).astype(np.float32), counts),
        proximal=np.concatenate(proximal).astype(np.float32) if proximal else None,
    )


def _advantages(sequence: TrainSequence, own: Ints) -> Floats:
    """Those of the tokens at ``own`` (n,)."""
    if sequence.advantages is None:
        return np.full(len(own), sequence.advantage, dtype=np.float32)
    return sequence.advantages[own]


def count_trained(group: TrainGroup) -> int:
    """The number of sampled tokens in all sequences of a group."""
    return sum(int(np.count_nonzero(sequence.mask)) for sequence in group.sequences)
