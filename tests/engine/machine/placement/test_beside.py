"""The processor samples beside cards where that is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marlaas.engine.devices.machine import Cpu, Software
from marlaas.engine.errors import BaseModelError
from marlaas.engine.machine.placement.capacity import least_memory, memory_plans
from marlaas.engine.machine.placement.choices import Choices
from marlaas.engine.models.memory import Wanted
from tests.engine.machine.placement.imaginary import place

from .imaginary import ALL, B06, B17, GB, LLAMA_ONLY, NO_VLLM, TINY, machine, shape

BOTH = ("gpu 0", "cpu")
WITH_TORCH = Choices(sampler="vllm", next_to_cards="torch", rollout=BOTH)
LLAMA_TWICE = Choices(sampler="llama.cpp", next_to_cards="llama.cpp", rollout=BOTH)
TRAINED_THERE = Choices(rollout=BOTH, training=["cpu"])

ASKED = [
    ("vLLM and llama.cpp", B17, ALL, Choices(rollout=BOTH), "vllm 0 + llama.cpp cpu:16 | 0 bf16 base"),
    ("the other way round", B17, ALL, Choices(rollout=("CPU", "gpu 0")), "vllm 0 + llama.cpp cpu:16 | 0 bf16 base"),
    ("vLLM and torch", B17, ALL, WITH_TORCH, "vllm 0 + torch cpu:16 | 0 bf16 base"),
    ("llama.cpp on both", B17, ALL, LLAMA_TWICE, "llama.cpp q8_0 0 + llama.cpp cpu:16 | 0 bf16 memory"),
    ("a tiny base", TINY, ALL, Choices(rollout=BOTH), "vllm 0 + torch cpu:16 | 0 bf16 base"),
    ("vLLM missing", B17, NO_VLLM, Choices(rollout=BOTH), "llama.cpp q8_0 0 + llama.cpp cpu:16 | 0 bf16 memory"),
    ("training there", B17, LLAMA_ONLY, Choices(rollout=BOTH), "llama.cpp q8_0 0 + llama.cpp cpu:16 | cpu:16 f32"),
    ("training there by name", B17, ALL, TRAINED_THERE, "vllm 0 + llama.cpp cpu:16 | cpu:16 f32"),
]


@pytest.mark.parametrize(("base", "software", "choices", "plan"), [pytest.param(*row[1:], id=row[0]) for row in ASKED])
def test_the_user_asks_for_both(base: Wanted, software: Software, choices: Choices, plan: str) -> None:
    found = place(machine("A100"), software, base, choices)
    assert shape(found) == plan
    assert [assignment.name for assignment in found.samplers] == ["rollout", "rollout-2"]
    assert any("`devices` under [rollout] names it" in reason for reason in found.reasons)


def test_a_core_of_two_is_left_for_the_rest() -> None:
    cpu = Cpu(cores=(4, 6), count=2, memory=60 * GB)
    found = place(machine("A100", cpu=cpu), ALL, B17, Choices(rollout=BOTH, training=["cpu"]))
    assert (found.samplers[1].place.cores, found.trainer.place.cores) == ((4,), (6,))


def test_unasked_cards_sample_alone() -> None:
    assert len(place(machine("P40"), ALL, B06).samplers) == 1
    assert len(place(machine("P40"), ALL, B06, Choices(rollout=("gpu 0",))).samplers) == 1


@pytest.mark.parametrize("gigabytes", [14, 20, 40])
def test_contexts_are_alike_and_main_memory_is_counted_once(gigabytes: int) -> None:
    found, free = place(machine("A100"), LLAMA_ONLY, B06, Choices(rollout=BOTH)), gigabytes * GB
    card, processor = memory_plans(found.samplers, found.trainers, B06, free)
    assert card.context == processor.context and processor.sequences > 0
    on_card = dict(card.parts)["the sampler's part of its card"]
    assert card.total - on_card + processor.total <= free
    least = least_memory(replace(B06, context=2048), "llama.cpp", True, True)
    assert memory_plans(found.samplers, found.trainers, B06, least + GB)
    with pytest.raises(BaseModelError, match="GB of memory"):
        memory_plans(found.samplers, found.trainers, B06, least - GB)
