"""What workers are told never adds up to more than their assignments have, and is never less than was planned with."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.devices.machine import Machine, Sharing, Software
from marlaas.engine.errors import BaseModelError
from marlaas.engine.machine.placement.capacity import PROGRAM, base_bytes, memory_plans, sampler_limits, trainer_limits
from marlaas.engine.machine.placement.choices import Choices
from marlaas.engine.models.memory import FEW_SLOTS, LEAST, Wanted, card_pass_bytes, slot_bytes
from tests.engine.machine.placement.imaginary import ALL, B06, B8, B17, GB, NOTHING, TINY, gpu, machine, other, place

MEMORY = 400 * GB


@given(
    st.sampled_from([B06, B17, B8]),
    st.integers(10, 140),
    st.sampled_from(["auto", "base", "memory"]),
    st.sampled_from([1, 8, 32]),
)
def test_limits_stay_within_a_shared_card(base: Wanted, free: int, share: Sharing | str, tasks: int) -> None:
    wanted = replace(base, tasks=tasks)
    plan = place(Machine(machine().cpu, (gpu("H200", free=free),)), ALL, wanted)
    if share != "auto":
        try:
            plan = place(Machine(machine().cpu, (gpu("H200", free=free),)), ALL, wanted, Choices(share=share))
        except ValueError:  # it does not fit so
            return
    (sampler,) = plan.samplers
    if sampler.place.gpus:
        limits = sampler_limits(sampler, wanted)
        assert limits.sequences >= LEAST
        assert limits.cache + base_bytes(wanted, "bf16" if sampler.kind == "vllm" else "nf4") <= sampler.place.memory
        assert limits.slots >= 1
    trainer = plan.trainer
    if trainer.place.gpus:
        room = trainer_limits(trainer, wanted)
        own = 0 if trainer.sharing == "base" else PROGRAM + base_bytes(wanted, trainer.precision)
        one = card_pass_bytes(wanted.config, limits_context(wanted), room.room, trainer.precision)
        assert own + room.held + one <= trainer.place.memory
        assert room.slots >= min(tasks, FEW_SLOTS)
        assert room.held >= room.slots * slot_bytes(wanted.config, limits_context(wanted))


def limits_context(wanted: Wanted) -> int:
    return min(wanted.context or 2048, wanted.config.context_length)


VULKAN = Machine(machine().cpu, (other("vulkan", 24),))
VULKAN_ONLY = replace(NOTHING, llama_backend="vulkan")
TORCH_ONLY = replace(ALL, vllm="", llama_backend="cpu")
PLANS = [
    ("both on a card", machine("H200"), ALL, ["the sampler's part of its card", "the trainer's part of its cards"]),
    ("the trainer alone", machine("A100"), TORCH_ONLY, ["the trainer's part of its cards"]),
    ("the sampler alone", VULKAN, VULKAN_ONLY, ["the sampler's part of its card"]),
    ("neither", machine(), NOTHING, []),
]  # fmt: skip


@pytest.mark.parametrize(("found", "software", "parts"), [pytest.param(*row[1:], id=row[0]) for row in PLANS])
def test_a_memory_plan_for_every_sampler(found: Machine, software: Software, parts: list[str]) -> None:
    placement = place(found, software, B06)
    plans = memory_plans(placement.samplers, placement.trainers, B06, MEMORY)
    assert len(plans) == len(placement.samplers)
    assert [name for name, _ in plans[0].parts if "card" in name] == parts
    assert plans[0].sequences >= LEAST
    assert plans[0].room > 0
    in_memory = any("weights" in name for name, _ in plans[0].parts)
    assert in_memory == (not placement.samplers[0].place.gpus or not placement.trainer.place.gpus)


def test_the_trainer_is_counted_once_for_all_samplers() -> None:
    placement = place(machine("A100", "A100", "H20"), ALL, B8)
    plans = memory_plans(placement.samplers, placement.trainers, B8, MEMORY)
    assert len(plans) == 2
    assert plans[0].held > 0
    assert plans[1].held == 0


def test_main_memory_that_is_too_small_is_refused() -> None:
    placement = place(machine(), NOTHING, B8)
    with pytest.raises(BaseModelError):
        memory_plans(placement.samplers, placement.trainers, B8, 2 * GB)
    tiny = place(machine(), NOTHING, TINY)
    assert memory_plans(tiny.samplers, tiny.trainers, TINY, 2 * GB)
