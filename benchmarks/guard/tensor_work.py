"""Operations of torch on the hot paths: one decoding step of the sampler, one step of the trainer, on the shipped base.

On PyTorch's default library, whatever would be faster on this processor: which library multiplies is not counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.models.kernels import VARIABLE, library
from marlaas.engine.models.weights import linear_shapes
from marlaas.engine.samplers.torch.context import TorchContext
from marlaas.engine.trainer.decoder.decoder import Decoder
from marlaas.engine.trainer.group_pass import add_gradients, make_step
from marlaas.engine.trainer.memory import PolicyMemory, fresh
from marlaas.engine.trainer.protocol import PolicyConfig, TrainGroup, TrainSequence

from .watching import operations

DECODED = ((1, 1), (8, 1), (8, 8), (64, 1), (64, 8))
"""Rows and adapters of one decoding step."""
POSITION = 20
CONFIG = PolicyConfig(rank=16, alpha=32.0, denominator=64.0)
MIXED = 4
"""Policies that share passes."""
GROUPS, MEMBERS, PROMPT, ANSWER = 8, 8, 12, 6
"""Of a training step: groups, their members, and tokens."""


def measure() -> dict[str, float]:
    """Operations by name."""
    os.environ[VARIABLE] = "mkl"
    library.cache_clear()
    torch.set_num_threads(1)
    base = load_base("tiny")
    return _decoding(base) | _training(base)


def _decoding(base: BaseModel) -> dict[str, float]:
    """One token for each of several conversations; once the mix of adapters is known, and if it is a new one."""
    found: dict[str, float] = {}
    context = TorchContext(base, sequences=64, length=64)
    handles = [context.load_adapter(_adapter(base, number), CONFIG.alpha) for number in range(8)]
    for rows, adapters in DECODED:
        of_rows = np.array([handles[row * adapters // rows] for row in range(rows)])
        context.use(of_rows if adapters > 1 else of_rows[:1])
        words = f"{rows} row{'s' * (rows > 1)} under {adapters} adapter{'s' * (adapters > 1)}"
        for kind in ("new mix", "same mix"):
            step = partial(
                context.decode,
                np.full(rows, 5, np.int32),
                np.full(rows, POSITION, np.int32),
                np.arange(rows, dtype=np.int32),
                np.ones(rows, np.int8),
            )
            for name, count in operations(step).items():
                found[f"a decoding step, {words}, {kind}: {name}"] = count
    return found


def _adapter(base: BaseModel, number: int) -> dict[str, NDArray[np.float32]]:
    """A random adapter that changes the base a little."""
    random, rank = np.random.default_rng(number), CONFIG.rank
    tensors = {}
    for module, (out, into) in linear_shapes(base.config).items():
        tensors[f"{module}.lora_A"] = (random.normal(size=(rank, into)) / np.sqrt(into)).astype(np.float32)
        tensors[f"{module}.lora_B"] = (random.normal(size=(out, rank)) * 0.02).astype(np.float32)
    return tensors


def _groups(vocabulary: int) -> list[TrainGroup]:
    """The groups of one step, of random tokens."""
    random, groups = np.random.default_rng(0), []
    mask = np.repeat(np.array([0, 1], dtype=np.uint8), (PROMPT, ANSWER))
    for number in range(GROUPS):
        prompt = random.integers(0, vocabulary, PROMPT)
        sequences = (
            TrainSequence(
                np.concatenate([prompt, random.integers(0, vocabulary, ANSWER)]).astype(np.int32),
                mask,
                -2 * mask.astype(np.float32),
                float(advantage),
            )
            for advantage in random.normal(size=MEMBERS)
        )
        groups.append(TrainGroup(number, tuple(sequences)))
    return groups


def _training(base: BaseModel) -> dict[str, float]:
    """A whole step of one policy, a group that arrives alone, and groups of several policies in shared passes."""
    model = Decoder.of(base)
    groups = _groups(model.vocabulary)
    layout = model.layout(CONFIG.rank)

    def memory() -> PolicyMemory:
        return PolicyMemory.of(CONFIG, layout, fresh(CONFIG, layout))

    def step(own: PolicyMemory, some: list[TrainGroup]) -> None:
        model.unmount()
        add_gradients(model, [(own, some)])
        make_step(partial(add_gradients, model), own)

    def shared(policies: list[PolicyMemory]) -> None:
        model.unmount()
        add_gradients(model, [(own, groups[:2]) for own in policies])

    step(memory(), groups)  # what is made once
    runs: dict[str, Callable[[], object]] = {
        f"a training step of {len(groups)} groups": partial(step, memory(), groups),
        "a group in training": partial(add_gradients, model, [(memory(), groups[:1])]),
        f"groups of {MIXED} policies in training": partial(shared, [memory() for _ in range(MIXED)]),
    }
    return {f"{words}: {name}": count for words, run in runs.items() for name, count in operations(run).items()}
