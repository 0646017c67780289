"""From a group's sequences to padded micro-batches, with the positions at which the loss needs logits.

``TrainSequence`` objects flow in, checked; numpy arrays flow out. Micro-batches keep the order of the group, never hold
sequences of two groups, and are cut by size alone: what a group adds to the gradient depends on that group only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .protocol import TrainGroup, TrainSequence

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

MAX_TOKENS = 8192
"""Padded tokens of a micro-batch: bounds the activations kept for the backward pass."""
MAX_LOGITS = 1 << 25
"""Logits of a micro-batch, 128 MiB: at a vocabulary of 152,000 that is 220 trained tokens."""


@dataclass(frozen=True)
class MicroBatch:
    """B sequences padded to length S on the right, of which N tokens are trained.

    The logits for trained token n are those at ``(rows[n], columns[n])``, one place before the token itself. Under
    causal attention no such place sees the padding, so that no attention mask is needed.
    """

    inputs: Ints
    """(B, S)"""
    rows: Ints
    """(N,), ascending; also the sequence that each trained token belongs to."""
    columns: Ints
    """(N,)"""
    targets: Ints
    """(N,): the trained tokens."""
    behaviour: Floats
    """(N,): their log-probabilities when they were sampled."""
    advantage: Floats
    """(N,)"""


def check_group(group: TrainGroup, vocabulary: int) -> None:
    """Raise ``ValueError``, naming group and sequence, unless every sequence can be trained on."""
    for number, sequence in enumerate(group.sequences):
        fault = _fault(sequence, vocabulary)
        if fault:
            raise ValueError(f"Sequence {number} of group {group.number} cannot be trained on: {fault}.")


def trained_tokens(group: TrainGroup) -> int:
    """Tokens of the group's own making, over all sequences."""
    return sum(int(np.count_nonzero(sequence.mask)) for sequence in group.sequences)


def micro_batches(
    group: TrainGroup, vocabulary: int, max_tokens: int = MAX_TOKENS, max_logits: int = MAX_LOGITS
) -> Iterator[MicroBatch]:
    """Yield the group as micro-batches within both limits; a sequence too large for them gets one of its own.

    Sequences are cut after the last token whose logits are needed; those without trained tokens are left out.
    """
    pending: list[TrainSequence] = []
    longest = trained = 0
    for sequence in group.sequences:
        own = int(np.count_nonzero(sequence.mask))
        if own == 0:
            continue
        length = max(longest, _input_length(sequence))
        if pending and (length * (len(pending) + 1) > max_tokens or (trained + own) * vocabulary > max_logits):
            yield _pack(pending)
            pending, trained, length = [], 0, _input_length(sequence)
        pending.append(sequence)
        longest, trained = length, trained + own
    if pending:
        yield _pack(pending)


def _input_length(sequence: TrainSequence) -> int:
    """The model reads up to the token before the last trained one."""
    return int(np.flatnonzero(sequence.mask)[-1])


def _pack(sequences: Sequence[TrainSequence]) -> MicroBatch:
    lengths = [_input_length(sequence) for sequence in sequences]
    inputs = np.zeros((len(sequences), max(lengths)), dtype=np.int64)
    for row, (sequence, length) in enumerate(zip(sequences, lengths, strict=True)):
        inputs[row, :length] = sequence.tokens[:length]
    places = [np.flatnonzero(sequence.mask) for sequence in sequences]
    counts = [len(own) for own in places]
    return MicroBatch(
        inputs=inputs,
        rows=np.repeat(np.arange(len(sequences)), counts),
        columns=np.concatenate(places) - 1,
        targets=np.concatenate([s.tokens[own] for s, own in zip(sequences, places, strict=True)]).astype(np.int64),
        behaviour=np.concatenate([s.logprobs[own] for s, own in zip(sequences, places, strict=True)]).astype(
            np.float32
        ),
        advantage=np.repeat(np.array([s.advantage for s in sequences], dtype=np.float32), counts),
    )


def _fault(sequence: TrainSequence, vocabulary: int) -> str:
    """What is wrong with a sequence, or nothing."""
    tokens, mask, logprobs = sequence.tokens, sequence.mask, sequence.logprobs
    if not (tokens.ndim == 1 and tokens.shape == mask.shape == logprobs.shape):
        return f"tokens, mask and log-probabilities have shapes {tokens.shape}, {mask.shape} and {logprobs.shape}"
    if tokens.size == 0:
        return "it is empty"
    if tokens.min() < 0 or tokens.max() >= vocabulary:
        return f"token ids run from {tokens.min()} to {tokens.max()}, the vocabulary from 0 to {vocabulary - 1}"
    if mask.max() > 1:
        return "its mask holds values other than 0 and 1"
    if mask[0]:
        return "its first token is marked as sampled, but nothing precedes it"
    if not np.isfinite(sequence.advantage):
        return f"its advantage is {sequence.advantage}"
    if not (logprobs <= 1e-3).all() or not np.isfinite(logprobs).all():
        return "a log-probability is positive or not finite"
    return ""
