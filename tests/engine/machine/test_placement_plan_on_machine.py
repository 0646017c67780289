"""A machine as it is, staffed: what assignments and specs say together, on imaginary cards."""

from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.devices.machine import Machine, Rates, Software
from marlaas.engine.devices.usable import LeftOut, ResourceSettings, UsableResources
from marlaas.engine.errors import BaseModelError, ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import RolloutSettings, Settings, TrainingSettings
from marlaas.engine.machine.plan import (
    TORCH,
    PlacementPlan,
    WorkerSpec,
    on_machine,
    placed,
    sampler_spec,
    worker_specs,
)
from marlaas.engine.machine.routing.router import EXACT, HALF, ROUNDED, precision, repeats
from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.models.memory import ENOUGH, LEAST, Wanted, least_plan
from tests.engine.machine.placement.imaginary import ALL, B06, GB, NO_VLLM, NOTHING, SERVER, machine, shape

BASE = load_base("tiny")
FREE = 100 * GB
ON_CARDS = Settings(
    rollout=RolloutSettings(devices=("gpu 0",)), training=TrainingSettings(devices=("gpu 1",)),
)  # fmt: skip


def staffed(found: Machine, software: Software = ALL, settings: Settings = Settings()) -> PlacementPlan:  # noqa: B008
    return on_machine(BASE, settings, FREE, UsableResources(found), software)


def specs(placement_plan: PlacementPlan, settings: Settings) -> list[WorkerSpec]:
    """The sampler's and the trainer's."""
    return worker_specs(BASE, Home(Path("home")), settings, placement_plan)[::-1]


LARGE = replace(B06, tasks=1)
"""For ``wanted_of``: a base of 600 million parameters."""


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings under which the base counts as a large one."""

    def wanted(base: BaseModel, settings: Settings, trains: bool) -> Wanted:
        rollout = settings.rollout
        kind = "torch" if rollout.sampler == "auto" else rollout.sampler
        return replace(LARGE, sampler=kind, weights=rollout.weights, sequences=rollout.sequences, trains=trains)

    monkeypatch.setattr("marlaas.engine.machine.plan.wanted_of", wanted)
    return Settings(training=TrainingSettings(trainers=1, precision="f32"))


def planned(settings: Settings, free: int) -> PlacementPlan:
    cpu = replace(SERVER, rates=Rates(100e9, 10e9, bfloat16=500e9))
    return on_machine(BASE, settings, free, UsableResources(Machine(cpu)), NOTHING)


def test_a_fast_processor_samples_in_bfloat16(large: Settings) -> None:
    plan = planned(large, 100 * GB)
    assert plan.placement.samplers[0].kind == "torch" and plan.memory[0].weights == "bf16"
    assert plan.memory[0].sequences == 128, "as many as with llama.cpp"
    spec = sampler_spec(BASE, Home(Path("home")), large, plan.memory[0], plan.placement.samplers[0])
    assert spec.factory == TORCH and spec.kwargs["weights"] == "bf16"
    stored, tolerance = precision(BASE, large, plan.placement.samplers[0], plan.memory[0], plan.placement.trainer)
    assert (stored, tolerance) == ("bf16", ROUNDED["bf16"])
    assert repeats(plan.placement.samplers[0], stored)


def test_eight_bits_are_taken_where_bfloat16_does_not_fit(large: Settings) -> None:
    """As much as llama.cpp needs for a few conversations is too little for bfloat16."""
    free = least_plan(replace(LARGE, weights="q8_0", sequences=LEAST, context=512)).total
    plan = planned(large, free)
    assert plan.placement.samplers[0].kind == "llama.cpp" and plan.memory[0].weights == "q8_0"
    assert "needs more memory than training leaves" in plan.words
    with pytest.raises(BaseModelError):
        planned(replace(large, rollout=RolloutSettings(weights="bf16", sequences=ENOUGH)), free)


@pytest.mark.parametrize(
    "settings",
    [
        Settings(rollout=RolloutSettings(sampler="vllm")),
        Settings(training=TrainingSettings(devices=("gpu 0",))),
        Settings(training=TrainingSettings(precision="nf4")),
        Settings(resources=ResourceSettings(share="base")),
    ],
)
def test_cards_are_refused_beside_processor_samplers(settings: Settings) -> None:
    several = replace(settings, rollout=replace(settings.rollout, samplers=("llama.cpp", "torch")))
    with pytest.raises(ConfigError, match="lists samplers on the processor, and"):
        staffed(machine("H200"), settings=several)
    settled = TrainingSettings(devices=("cpu",))
    plain = Settings(rollout=RolloutSettings(samplers=("llama.cpp", "torch")), training=settled)
    assert "`samplers` under [rollout] leaves the cards to others." in staffed(machine("H200"), settings=plain).words


def test_workers_on_cards_are_told_which_and_how_much() -> None:
    placement_plan = staffed(machine("A100", "A100"), settings=ON_CARDS)
    assert shape(placement_plan.placement) == "vllm 0 | 1 bf16"
    sampler, trainer = specs(placement_plan, ON_CARDS)
    assert sampler.environment["CUDA_VISIBLE_DEVICES"] == "GPU-0"
    assert trainer.environment["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert (sampler.device, trainer.device) == ("gpu 0", "gpu 1")
    assert sampler.kwargs["device"] == "cuda"
    assert 0 < sampler.kwargs["memory"] < placement_plan.placement.samplers[0].place.memory
    assert sampler.kwargs["sequences"] == placement_plan.memory[0].sequences
    assert trainer.kwargs["devices"] == ("cuda:0",)
    assert trainer.kwargs["names"] == ("gpu 1",)
    assert trainer.kwargs["precision"] == "bf16"
    assert trainer.kwargs["memory"] == placement_plan.placement.trainer.place.memory


def test_llama_cpp_is_told_its_devices_and_weights() -> None:
    placement_plan = staffed(machine("A100", "A100"), NO_VLLM, ON_CARDS)
    sampler, _ = specs(placement_plan, ON_CARDS)
    assert sampler.kwargs["devices"] == ("CUDA0",)
    assert sampler.kwargs["weights"] == placement_plan.placement.samplers[0].weights == placement_plan.memory[0].weights
    assert sampler.kwargs["memory"] == placement_plan.placement.samplers[0].place.memory


def test_a_trainer_that_shares_a_process_has_no_limit() -> None:
    settings = replace(ON_CARDS, training=TrainingSettings(devices=("gpu 0",)))
    placement_plan = staffed(machine("A100"), settings=settings)
    assert placement_plan.placement.trainer.sharing == "base"
    (spec,) = specs(placement_plan, settings)
    assert spec.kwargs["trainer"]["memory"] == 0
    again = on_machine(BASE, settings, FREE, UsableResources(machine("A100")), ALL, without=("base",))
    assert again.placement.trainer.sharing == "memory"


def test_cards_that_are_left_alone_are_told_with_the_plan() -> None:
    usable = UsableResources(machine(), (LeftOut("GPU-9", "gpu 9 is left alone: account eve holds 3.0 GB of it."),))
    placement_plan = on_machine(BASE, Settings(), FREE, usable, ALL)
    assert "gpu 9 is left alone: account eve holds 3.0 GB of it." in placement_plan.placement.reasons
    assert placement_plan.machine is None


def test_vllm_gets_less_cache_where_memory_ran_out() -> None:
    placement_plan = staffed(machine("A100", "A100"), settings=ON_CARDS)
    (plan,) = placement_plan.memory
    half = replace(placement_plan, memory=(replace(plan, sequences=plan.sequences // 2),))
    before, after = (specs(each, ON_CARDS)[0].kwargs for each in (placement_plan, half))
    assert (after["sequences"], after["memory"]) == (before["sequences"] // 2, before["memory"] // 2)


MIXED = Settings(
    rollout=RolloutSettings(samplers=("vllm", "torch"), devices=("gpu 0", "cpu")),
    training=TrainingSettings(devices=("gpu 1",)),
)


def test_a_card_and_the_processor_sample_side_by_side() -> None:
    plan = staffed(machine("A100", "A100"), settings=MIXED)
    assert shape(plan.placement) == "vllm 0 + torch cpu:16 | 1 bf16" and len(plan.memory) == 2
    trainer, card, processor = worker_specs(BASE, Home(Path("home")), MIXED, plan)
    assert (card.device, processor.device, trainer.device) == ("gpu 0", "cores 0-15", "gpu 1")
    assert processor.environment["CUDA_VISIBLE_DEVICES"] == "" and card.environment["CUDA_VISIBLE_DEVICES"] == "GPU-0"
    assert card.kwargs["context"] == processor.kwargs["context"] == plan.context
    assert plan.kinds == "vllm + torch"
    assert "The processor samples beside them, with the torch sampler on 16 cores" in plan.words


def test_weights_are_those_of_llama_cpp_alone() -> None:
    rollout = replace(MIXED.rollout, samplers=("vllm", "llama.cpp"), weights="q4_k_m")
    settings = replace(MIXED, rollout=rollout)
    plan = staffed(machine("A100", "A100"), settings=settings)
    _, card, processor = worker_specs(BASE, Home(Path("home")), settings, plan)
    assert processor.kwargs["weights"] == plan.memory[1].weights == "q4_k_m" and "weights" not in card.kwargs
    with pytest.raises(ConfigError, match=r"`weights` under \[rollout\] is llama.cpp's"):
        staffed(machine("A100", "A100"), settings=replace(MIXED, rollout=replace(MIXED.rollout, weights="q8_0")))


def test_each_sampler_has_its_own_tolerance() -> None:
    plan = staffed(machine("A100", "A100"), settings=MIXED)
    found = [
        precision(BASE, MIXED, assignment, memory, plan.placement.trainer)
        for assignment, memory in zip(plan.placement.samplers, plan.memory, strict=True)
    ]
    assert [tolerance for _, tolerance in found] == [HALF, HALF], "the trainer keeps bfloat16"
    exact = replace(MIXED, training=TrainingSettings(devices=("cpu",)))
    plan = staffed(machine("A100"), settings=exact)
    found = [
        precision(BASE, exact, assignment, memory, plan.placement.trainer)
        for assignment, memory in zip(plan.placement.samplers, plan.memory, strict=True)
    ]
    assert [tolerance for _, tolerance in found] == [HALF, EXACT], "the processor's sampler and its trainer are float32"


@pytest.mark.parametrize(
    "rollout",
    [
        RolloutSettings(samplers=("vllm", "torch")),
        RolloutSettings(samplers=("vllm", "torch"), devices=("cpu",)),
        RolloutSettings(samplers=("vllm", "torch"), devices=("gpu 0",)),
        RolloutSettings(samplers=("torch", "llama.cpp"), devices=("gpu 0", "cpu")),
        RolloutSettings(samplers=("llama.cpp", "vllm"), devices=("gpu 0", "cpu")),
        RolloutSettings(samplers=("vllm", "torch", "torch"), devices=("gpu 0", "cpu")),
    ],
)
def test_lists_that_do_not_fit_their_devices_are_refused(rollout: RolloutSettings) -> None:
    with pytest.raises(ConfigError, match="`samplers`") as refused:
        staffed(machine("A100"), settings=Settings(rollout=rollout))
    assert '`devices = ["gpu 0", "cpu"]`' in str(refused.value.hint)


def test_trainers_nobody_asked_for_keep_no_card_from_work() -> None:
    """Where main memory has room for one beside the cards, there is one; who asks for several hears what is missing."""
    settings = Settings(rollout=RolloutSettings(devices=("gpu 0",)), training=TrainingSettings(devices=("cpu",)))
    usable = UsableResources(machine("A100"))
    plan = on_machine(BASE, settings, 2 * GB, usable, ALL)
    assert [trainer.name for trainer in plan.placement.trainers] == ["training"]
    assert len(on_machine(BASE, settings, 16 * GB, usable, ALL).placement.trainers) > 1
    with pytest.raises(BaseModelError, match="of memory"):
        on_machine(BASE, replace(settings, training=replace(settings.training, trainers=4)), 2 * GB, usable, ALL)


@pytest.mark.parametrize(("gigabytes", "trainers"), [(1, 4), (4, 1), (16, 4)])
def test_the_placement_alone_is_that_of_the_plan(gigabytes: int, trainers: int) -> None:
    """As doctor tells it before the engine starts; what fits nowhere is placed all the same."""
    cpu = replace(SERVER, cores=tuple(range(16)), count=16, memory=gigabytes * GB)
    usable = UsableResources(Machine(cpu))
    assert len(placed(BASE, Settings(), usable, NOTHING).trainers) == trainers
    if gigabytes > 1:
        assert placed(BASE, Settings(), usable, NOTHING) == (
            on_machine(BASE, Settings(), cpu.memory, usable, NOTHING).placement
        )
