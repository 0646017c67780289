"""Operations of torch on the hot paths: one decoding step of the sampler, one step of the trainer, on the shipped base.

On PyTorch's default library, whatever would be faster on this processor: which library multiplies is not counted.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from marlaas.engine.base.kernels import VARIABLE, library
from marlaas.engine.base.model import BaseModel, load_base
from marlaas.engine.rollout.torch_sampler.context import TorchContext
from marlaas.engine.training.decoder.decoder import Decoder
from marlaas.engine.training.group_pass import add_gradient, add_gradients
from marlaas.engine.training.inputs import PolicyConfig, TrainGroup
from marlaas.engine.training.memory.policy_memory import PolicyMemory, fresh
from marlaas.engine.training.step import make_step

from ..sampler.files import Files
from ..trainer.cases import CASES
from .watching import operations

DECODED = ((1, 1), (8, 1), (8, 8), (64, 1), (64, 8))
"""Rows and adapters of one decoding step."""
POSITION = 20
CONFIG = PolicyConfig(rank=16, alpha=32.0, denominator=64.0)
MIXED = 4
"""Policies that share passes."""


def measure() -> dict[str, float]:
    """Operations by name."""
    os.environ[VARIABLE] = "mkl"
    library.cache_clear()
    torch.set_num_threads(1)
    base = load_base("tiny")
    return _decoding(base) | _training(base)


def _decoding(base: BaseModel) -> dict[str, float]:
    """One token for each of several conversations; once the mix of adapters is known, and where it is a new one."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="marlaas-guard-") as folder:
        files = Files(Path(folder))
        context = TorchContext(base, sequences=64, length=64)
        handles = [context.load_adapter(files.tensors(number), 32.0) for number in range(8)]
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


def _training(base: BaseModel) -> dict[str, float]:
    """A whole step of one policy, a group that arrives alone, and groups of several policies in shared passes."""
    model = Decoder.of(base)
    groups = CASES[0].draw(model.vocabulary)
    layout = model.layout(CONFIG.rank)

    def memory() -> PolicyMemory:
        return PolicyMemory.of(CONFIG, layout, fresh(CONFIG, layout))

    def step(own: PolicyMemory, some: list[TrainGroup]) -> None:
        model.unmount()
        add_gradient(model, own, some)
        make_step(partial(add_gradients, model), own)

    def shared(policies: list[PolicyMemory]) -> None:
        model.unmount()
        add_gradients(model, [(own, groups[:2]) for own in policies])

    step(memory(), groups)  # what is made once
    runs: dict[str, Callable[[], object]] = {
        f"a training step of {len(groups)} groups": partial(step, memory(), groups),
        "a group in training": partial(add_gradient, model, memory(), groups[:1]),
        f"groups of {MIXED} policies in training": partial(shared, [memory() for _ in range(MIXED)]),
    }
    return {f"{words}: {name}": count for words, run in runs.items() for name, count in operations(run).items()}
