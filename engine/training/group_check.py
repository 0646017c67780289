"""Refuses groups that cannot be trained on, in words that name the sequence. Pure; knows nothing of tensors."""

from __future__ import annotations

import numpy as np

from .protocol import TrainGroup, TrainSequence


def check_group(group: TrainGroup, vocabulary: int) -> None:
    """Raise ``ValueError``, naming group and sequence, unless every sequence can be trained on."""
    for number, sequence in enumerate(group.sequences):
        fault = _fault(sequence, vocabulary)
        if fault:
            raise ValueError(f"Sequence {number} of group {group.number} cannot be trained on: {fault}.")


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
