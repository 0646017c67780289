"""Checks groups before a pass, and explains a loss that is not finite."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from .inputs import TrainGroup, TrainSequence
from .model import Lesson


def check_group(group: TrainGroup, vocabulary: int) -> None:
    """Raise ``ValueError``, naming group and sequence, unless every sequence can be trained on."""
    for number, sequence in enumerate(group.sequences):
        fault = _fault(sequence, vocabulary)
        if fault:
            raise ValueError(f"Sequence {number} of group {group.number} cannot be trained on: {fault}.")


def _fault(sequence: TrainSequence, vocabulary: int) -> str:
    """What is wrong with a sequence; empty if nothing is."""
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
    if sequence.advantages is not None and sequence.advantages.shape != tokens.shape:
        return f"tokens have shape {tokens.shape}, their advantages {sequence.advantages.shape}"
    if sequence.advantages is not None and not np.isfinite(sequence.advantages).all():
        return "the advantage of a token is not finite"
    if not (logprobs <= 1e-3).all() or not np.isfinite(logprobs).all():
        return "a log-probability is positive or not finite"
    return ""


def fault_of(lesson: Lesson, logp: Tensor, gradient: Tensor) -> str:
    """Name the first trained token at which ``logp`` or ``gradient``, (N,) each, is not finite; empty where all are."""
    broken = ~(logp.isfinite() & gradient.isfinite())
    count = int(broken.sum())
    if not count:
        return ""
    first, trained = int(broken.nonzero()[0]), lesson.trained
    group = lesson.groups[int(trained.sequence[first])]
    return (
        f"{count} of {len(trained.targets)} tokens, the first of them in group {group}: token {trained.targets[first]} "
        f"has log-probability {float(logp[first]):.4g} (the sampler's: {trained.behaviour[first]:.4g}), advantage "
        f"{trained.advantage[first]:.4g} and gradient {float(gradient[first]):.4g}"
    )
