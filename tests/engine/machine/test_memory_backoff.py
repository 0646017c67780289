"""What becomes of samplers that ran out of memory, and what is told of workers that died."""

from dataclasses import replace

import pytest

from marlaas.engine.devices.machine import Place
from marlaas.engine.errors import OutOfMemory, WorkerDied
from marlaas.engine.home.settings import RolloutSettings, Settings
from marlaas.engine.machine.plan import PlacementPlan, on_processor
from marlaas.engine.machine.supervisor import MemoryBackoff
from marlaas.engine.models.find import load_base

BOTH = Settings(rollout=RolloutSettings(samplers=("torch", "llama.cpp"), sequences=128, context=64))
ON_CORES = on_processor(load_base("tiny"), BOTH, 64 << 30, (0, 1, 2))
FIRST, SECOND = ON_CORES.placement.samplers


def on_card(card: str) -> PlacementPlan:
    """The first sampler there, the other one on a core."""
    samplers = (replace(FIRST, place=Place(gpus=(card,))), SECOND)
    return replace(ON_CORES, placement=replace(ON_CORES.placement, samplers=samplers))


STAFF = on_card("GPU-0")
HELD = {"rollout": 128, "rollout-2": 128}
DEVICES = {"rollout": "gpu 0", "rollout-2": "core 1", "training": "core 2"}


def full(name: str) -> dict[str, WorkerDied]:
    return {name: OutOfMemory(f"Worker {name} ran out of memory: no room.")}


def conversations(placement_plan: PlacementPlan) -> list[int]:
    return [plan.sequences for plan in placement_plan.memory]


def test_a_sampler_without_memory_goes_on_with_half() -> None:
    fewer = MemoryBackoff()
    assert fewer.fitted(STAFF) == STAFF
    after = fewer.after(full("rollout"), STAFF, HELD, DEVICES)
    said = "The sampler rollout ran out of memory on gpu 0; it goes on with 64 conversations instead of 128."
    assert after.words == said
    assert after.mended and conversations(fewer.fitted(STAFF)) == [64, 128]
    assert fewer.fitted(STAFF).placement == STAFF.placement


def test_half_of_what_it_really_held_though_more_was_planned() -> None:
    fewer = MemoryBackoff()
    assert "20 conversations instead of 40" in fewer.after(full("rollout"), STAFF, {"rollout": 40}, DEVICES).words
    assert conversations(fewer.fitted(STAFF)) == [20, 128]


@pytest.mark.parametrize(("held", "then"), [(24, 12), (12, 8), (9, 8)])
def test_there_are_no_fewer_than_eight(held: int, then: int) -> None:
    fewer = MemoryBackoff()
    assert fewer.after(full("rollout"), STAFF, {"rollout": held}, DEVICES).mended
    assert conversations(fewer.fitted(STAFF))[0] == then


@pytest.mark.parametrize("held", [8, 4])
def test_where_fewer_are_not_tried_there_is_a_way_out(held: int) -> None:
    fewer = MemoryBackoff()
    after = fewer.after(full("rollout"), STAFF, {"rollout": held}, DEVICES)
    assert not after.mended and conversations(fewer.fitted(STAFF)) == [128, 128]
    assert f"ran out of memory on gpu 0 with {held} conversations, and fewer are not tried" in after.words
    assert "Lower `context`" in after.words and after.words.endswith("A new one takes its place.")


def test_other_deaths_take_nothing_away() -> None:
    fewer = MemoryBackoff()
    for deaths in ({"rollout": WorkerDied("Worker rollout ended.")}, full("training")):
        after = fewer.after(deaths, STAFF, HELD, DEVICES)
        (death,) = deaths.values()
        assert after.words == f"{death.message} A new one takes its place." and not after.mended
    both = fewer.after(full("rollout-2") | full("training"), STAFF, HELD, DEVICES)
    assert not both.mended and conversations(fewer.fitted(STAFF)) == [128, 64]


def test_a_sampler_on_another_device_may_hold_all_again() -> None:
    fewer = MemoryBackoff()
    fewer.after(full("rollout"), STAFF, HELD, DEVICES)
    assert conversations(fewer.fitted(on_card("GPU-1"))) == [128, 128]
    assert conversations(fewer.fitted(on_card("GPU-0"))) == [64, 128]


def test_main_memory_needs_no_address() -> None:
    told = MemoryBackoff().after(full("rollout-2"), STAFF, HELD, DEVICES).words
    assert told == "The sampler rollout-2 ran out of memory; it goes on with 64 conversations instead of 128."
