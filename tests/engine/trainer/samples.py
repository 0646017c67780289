"""Groups to train on: random tokens, lengths and rewards from a seed."""

from dataclasses import replace
from typing import Any

import numpy as np

from marlaas.engine.trainer.group_pass import group_logprobs, scored_group
from marlaas.engine.trainer.memory import PolicyMemory
from marlaas.engine.trainer.model import Model
from marlaas.engine.trainer.protocol import TrainGroup, TrainSequence
from marlaas.engine.trajectories import Logprobs, Tokens

from .tiny_qwen import VOCABULARY


def sequence(tokens: list[int], prompt: int, advantage: float, logprob: float = -3.0) -> TrainSequence:
    """All tokens after the first ``prompt`` ones are trained."""
    mask = np.array([0] * prompt + [1] * (len(tokens) - prompt), dtype=np.uint8)
    logprobs = np.where(mask, np.float32(logprob), np.float32(0))
    return TrainSequence(np.array(tokens, dtype=np.int32), mask, logprobs, advantage)


def group(seed: int, members: int = 4, longest: int = 12) -> TrainGroup:
    """Several turns each: masks with gaps, a given tail now and then, behaviour log-probabilities near chance."""
    draw = np.random.default_rng(seed)
    sequences = []
    for advantage in draw.permutation(np.linspace(-0.5, 0.5, members)):
        length = int(draw.integers(4, longest + 1))
        mask = (draw.random(length) < 0.6).astype(np.uint8)
        mask[0], mask[2] = 0, 1
        logprobs = (draw.uniform(-5, -1, length) * mask).astype(np.float32)
        tokens = draw.integers(0, VOCABULARY, length).astype(np.int32)
        sequences.append(TrainSequence(tokens, mask, logprobs, float(advantage)))
    return TrainGroup(seed, tuple(sequences))


def shown(seed: int) -> TrainGroup:
    """Demonstrations: nobody has sampled their tokens."""
    made = group(seed)
    given = [
        replace(each, logprobs=np.where(each.mask, np.float32(np.nan), np.float32(0)), advantage=1.0)
        for each in made.sequences
    ]
    return replace(made, sequences=tuple(given))


def pair(seed: int) -> TrainGroup:
    """A chosen and a rejected demonstration, with and without a common prompt."""
    made = shown(seed)
    chosen, rejected = made.sequences[:2]
    if seed % 2:
        rejected = replace(rejected, tokens=np.where(rejected.mask, rejected.tokens, 7).astype(np.int32))
    return replace(made, sequences=(chosen, replace(rejected, advantage=-1.0)))


def sequence_logprobs(
    model: Model[Any], memory: PolicyMemory, tokens: Tokens, start: int, temperature: float
) -> Logprobs:
    """Of ``tokens[start:]``."""
    return group_logprobs(model, memory, scored_group([(tokens, start)]), temperature)[0]
