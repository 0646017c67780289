"""What of some groups a pass is made over, and how much that is. Knows nothing of tensors."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .inputs import PolicyConfig, TrainGroup, TrainSequence


def has_signal(group: TrainGroup, config: PolicyConfig) -> bool:
    """Whether the group's gradient can differ from zero."""
    return config.kl > 0.0 or config.entropy > 0.0 or teaches(group)


def teaches(group: TrainGroup) -> bool:
    """Whether any of its sampled tokens has an advantage."""
    return any(map(_pulls, group.sequences))


def pass_tokens(groups: Iterable[TrainGroup], config: PolicyConfig) -> int:
    """Tokens of a pass over those with a signal; a prompt that all members of a group share counts once."""
    return sum(_tokens(group) for group in groups if has_signal(group, config))


def _pulls(sequence: TrainSequence) -> bool:
    """Whether any sampled token has an advantage."""
    if sequence.advantages is None:
        return sequence.advantage != 0.0
    return bool(sequence.advantages[sequence.mask != 0].any())


def _tokens(group: TrainGroup) -> int:
    every = sum(len(sequence.tokens) for sequence in group.sequences)
    if len(group.sequences) < 2:
        return every
    prompts = [sequence.tokens[: int(np.argmax(sequence.mask))] for sequence in group.sequences]
    shared = all(np.array_equal(prompt, prompts[0]) for prompt in prompts[1:])
    return every - (len(prompts) - 1) * len(prompts[0]) if shared else every
