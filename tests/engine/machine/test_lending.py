"""Which workers lend each other their cores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.devices.limits import Loan
from marlaas.engine.devices.machine import Place, Placement, SamplerAssignment, SamplerKind, TrainerAssignment
from marlaas.engine.machine.plan import LEAST, TORCH, TRAINER, WorkerSpec, lending

SCRATCH = Path("scratch")
SAMPLER, TRAINING = WorkerSpec("rollout", TORCH, {"threads": 1}, (0,)), WorkerSpec("training", TRAINER, {}, (1,))


def placement(kind: SamplerKind = "torch") -> Placement:
    return Placement((SamplerAssignment("rollout", kind, Place((0,))),), TrainerAssignment("training", Place((1,))))


@pytest.mark.parametrize("kind", ["torch", "llama.cpp"])
def test_sampler_and_trainer_of_a_large_base_lend_their_cores(kind: SamplerKind) -> None:
    trainer, sampler = lending([TRAINING, SAMPLER], placement(kind), LEAST, SCRATCH)
    path = str(SCRATCH / ".cores")
    assert trainer.kwargs["loan"] == Loan(path, 0, (1,), (0,))
    assert sampler.kwargs == {"threads": 1, "loan": Loan(path, 1, (0,), (1,))}
    assert trainer.environment == sampler.environment == {"OMP_WAIT_POLICY": "passive"}


def test_nobody_else_does() -> None:
    further = SamplerAssignment("rollout-2", "torch", Place((2,)))
    several = replace(placement(), samplers=(*placement().samplers, further))
    more = replace(placement(), more=(TrainerAssignment("training-2", Place((2,))),))
    cases = {
        "a small base": ([TRAINING, SAMPLER], placement(), LEAST - 1),
        "cores that both use": ([replace(TRAINING, cores=(0,)), SAMPLER], placement(), LEAST),
        "workers that are not pinned": ([replace(TRAINING, cores=()), SAMPLER], placement(), LEAST),
        "several cores each": ([replace(TRAINING, cores=(2, 3)), replace(SAMPLER, cores=(0, 1))], placement(), LEAST),
        "a trainer on a card": ([replace(TRAINING, gpus=(0,)), SAMPLER], placement(), LEAST),
        "one process for both": ([SAMPLER], placement(), LEAST),
        "two samplers": ([TRAINING, SAMPLER, replace(SAMPLER, name="rollout-2", cores=(2,))], several, LEAST),
        "two trainers": ([TRAINING, SAMPLER, replace(TRAINING, name="training-2", cores=(2,))], more, LEAST),
        "vLLM": ([TRAINING, SAMPLER], placement("vllm"), LEAST),
    }
    for why, (specs, planned, parameters) in cases.items():
        assert lending(specs, planned, parameters, SCRATCH) == specs, why
