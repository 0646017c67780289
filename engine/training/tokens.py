"""The trained tokens of some sequences, one after the other: what a loss needs to know besides log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .protocol import TrainGroup, TrainSequence

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


def trained_tokens_of(sequences: Sequence[TrainSequence]) -> TrainedTokens:
    """Collect the tokens that the masks mark."""
    places = [np.flatnonzero(sequence.mask) for sequence in sequences]
    counts = [len(own) for own in places]
    pairs = list(zip(sequences, places, strict=True))
    whole = [sequence.episode_tokens or count for sequence, count in zip(sequences, counts, strict=True)]
    return TrainedTokens(
        targets=np.concatenate([s.tokens[own] for s, own in pairs]).astype(np.int64),
        behaviour=np.concatenate([s.logprobs[own] for s, own in pairs]).astype(np.float32),
        advantage=np.repeat(np.array([s.advantage for s in sequences], dtype=np.float32), counts),
        sequence=np.repeat(np.arange(len(sequences)), counts),
        share=np.repeat((1.0 / np.array(whole)).astype(np.float32), counts),
    )


def count_trained(group: TrainGroup) -> int:
    """Tokens of the group's own making, over all sequences."""
    return sum(int(np.count_nonzero(sequence.mask)) for sequence in group.sequences)
