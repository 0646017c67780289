"""The plan for a machine or several: memory, samplers and trainers, and what their workers are started with."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.devices.limits import Loan
from marlaas.engine.devices.machine import (
    Machine,
    Place,
    Placement,
    Rates,
    SamplerAssignment,
    SamplerKind,
    Software,
    TrainerAssignment,
)
from marlaas.engine.devices.software import LlamaBuild
from marlaas.engine.devices.usable import ResourceSettings, UsableResources
from marlaas.engine.errors import BaseModelError, ConfigError, OutOfMemory, WorkerDied
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import RolloutSettings, Settings, TrainingSettings
from marlaas.engine.machine import plan as module
from marlaas.engine.machine.plan import (
    LEAST as LARGE_ENOUGH,
    LLAMA,
    TORCH,
    TRAINER,
    PlacementPlan,
    WorkerSpec,
    lending,
    loading,
    on_machine,
    on_machines,
    placed,
    plan_of,
    sampler_spec,
    stored_as,
    trainer_spec,
    until_compiled,
    with_sampler,
    worker_specs,
)
from marlaas.engine.machine.routing.router import EXACT, HALF, ROUNDED, precision, repeats
from marlaas.engine.machine.supervisor import MemoryBackoff
from marlaas.engine.models.find import BaseModel
from marlaas.engine.models.memory import ENOUGH, LEAST, Wanted, least_plan
from marlaas.engine.models.weights import parameters
from tests.engine.machine.placement.imaginary import (
    ALL,
    B06,
    GB,
    HEAD,
    NO_VLLM,
    NOTHING,
    PAIR,
    SERVER,
    cards,
    machine,
    plain,
    shape,
)

from .supervised import BASE, plan_on

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
        Settings(resources=ResourceSettings(share="memory")),
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
    assert [each.environment["CUDA_VISIBLE_DEVICES"] for each in (sampler, trainer)] == ["GPU-0", "GPU-1"]
    assert (sampler.device, trainer.device, trainer.kwargs["names"]) == ("gpu 0", "gpu 1", ("gpu 1",))
    assert (sampler.kwargs["device"], trainer.kwargs["devices"]) == ("cuda", ("cuda:0",))
    assert 0 < sampler.kwargs["memory"] < placement_plan.placement.samplers[0].place.memory
    assert sampler.kwargs["sequences"] == placement_plan.memory[0].sequences
    assert trainer.kwargs["precision"] == "bf16"
    assert trainer.kwargs["memory"] == placement_plan.placement.trainer.place.memory
    with_llama = staffed(machine("A100", "A100"), NO_VLLM, ON_CARDS)
    kwargs, assignment = specs(with_llama, ON_CARDS)[0].kwargs, with_llama.placement.samplers[0]
    assert (kwargs["devices"], kwargs["memory"]) == (("CUDA0",), assignment.place.memory)
    assert kwargs["weights"] == assignment.weights == with_llama.memory[0].weights


@pytest.mark.parametrize("share", ["base", "memory", "auto"])
def test_both_on_a_card_have_a_part_of_it_each(share: str) -> None:
    """Also with ``base``, one copy for both, of earlier versions."""
    shared = replace(ON_CARDS, training=TrainingSettings(devices=("gpu 0",)), resources=ResourceSettings(share=share))
    placement_plan = staffed(machine("A100"), settings=shared)
    assert shape(placement_plan.placement) == "vllm 0 | 0 bf16 shared"
    assert ("as `share =" in placement_plan.words) == (share != "auto")
    sampler, trainer = specs(placement_plan, shared)
    taken = placement_plan.placement.samplers[0].place.memory + trainer.kwargs["memory"]
    assert 0 < sampler.kwargs["memory"] < taken <= 80 * GB


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
    rollout = replace(MIXED.rollout, samplers=("vllm", "llama.cpp"), weights="q4_k_m")
    plan = staffed(machine("A100", "A100"), settings=replace(MIXED, rollout=rollout))
    _, card, processor = worker_specs(BASE, Home(Path("home")), replace(MIXED, rollout=rollout), plan)
    assert processor.kwargs["weights"] == plan.memory[1].weights == "q4_k_m" and "weights" not in card.kwargs
    with pytest.raises(ConfigError, match=r"`weights` under \[rollout\] is llama.cpp's"):
        staffed(machine("A100", "A100"), settings=replace(MIXED, rollout=replace(MIXED.rollout, weights="q8_0")))


def test_each_sampler_has_its_own_tolerance() -> None:
    """The trainer keeps bfloat16; on the processor, its sampler and the trainer are float32."""
    exact = replace(MIXED, training=TrainingSettings(devices=("cpu",)))
    for settings, number, expected in ((MIXED, 2, [HALF, HALF]), (exact, 1, [HALF, EXACT])):
        plan = staffed(machine(*["A100"] * number), settings=settings)
        pairs = zip(plan.placement.samplers, plan.memory, strict=True)
        found = [precision(BASE, settings, *pair, plan.placement.trainer)[1] for pair in pairs]
        assert found == expected


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


BOTH = Settings(rollout=RolloutSettings(samplers=("llama.cpp", "torch"), weights="q8_0"))


def test_two_share_the_memory_and_have_contexts_of_one_length() -> None:
    placement_plan = plan_on(BOTH, 0, 1, 2)
    first, second = placement_plan.memory
    assert placement_plan.kinds == "llama.cpp + torch" and first.context == second.context == placement_plan.context
    assert (first.weights, second.weights) == ("q8_0", "f32")
    trains = [any("train" in what for what, _ in plan.parts) for plan in placement_plan.memory]
    assert trains == [True, False], "there is one trainer"
    tight = first.total + second.total - (64 << 20)
    assert sum(plan.total for plan in plan_on(BOTH, free=tight).memory) <= tight


def test_what_does_not_fit_together_is_refused() -> None:
    one = plan_on(Settings(rollout=RolloutSettings(sampler="torch", sequences=8))).memory[0].total
    both = Settings(rollout=RolloutSettings(samplers=("torch", "torch"), sequences=8))
    with pytest.raises(BaseModelError, match="are free on this machine"):
        plan_on(both, free=one + (1 << 20))


@pytest.mark.parametrize(
    ("gigabytes", "asked", "trainers", "conversations"), [(8, 0, 4, 384), (4, 0, 1, 384), (4, 4, 4, 32), (2, 0, 1, 384)]
)
def test_trainers_nobody_asked_for_cost_no_conversation(
    gigabytes: int, asked: int, trainers: int, conversations: int
) -> None:
    settings = Settings(training=TrainingSettings(trainers=asked))
    plan = plan_on(settings, *range(16), free=gigabytes << 30)
    assert (len(plan.placement.trainers), plan.memory[0].sequences) == (trainers, conversations)


ROOM = 8 << 30


@pytest.mark.parametrize(("sampler", "sequences"), [("auto", 384), ("torch", 384), ("llama.cpp", 128)])
def test_the_shipped_base_gets_what_is_published(sampler: str, sequences: int) -> None:
    memory = plan_of(BASE, Settings(rollout=RolloutSettings(sampler=sampler)), ROOM)
    assert (memory.sequences, memory.context, memory.weights) == (sequences, 512, "f32")


def test_both_workers_get_what_was_planned(tmp_path: Path) -> None:
    training = TrainingSettings(slots=3, largest_rank=8)
    settings = Settings(rollout=RolloutSettings(sequences=16, context=256, weights="q8_0"), training=training)
    memory = plan_of(BASE, settings, ROOM)
    sampler = sampler_spec(BASE, Home(tmp_path), settings, memory)
    assert (sampler.kwargs["sequences"], sampler.kwargs["context"], sampler.kwargs["weights"]) == (16, 256, "q8_0")
    trainer = trainer_spec(BASE, Home(tmp_path), settings, memory)
    assert trainer.kwargs["room"] == memory.room and trainer.kwargs["fingerprint"] == BASE.fingerprint
    assert [trainer.kwargs[key] for key in ("slots", "held", "largest_rank")] == [3, 0, 8] and memory.slots == 3
    assert not set(sampler.cores) & set(trainer.cores), "each has cores of its own"
    alone = plan_of(BASE, settings, ROOM, trains=False)
    assert dict(alone.parts) == {what: size for what, size in memory.parts if "train" not in what}


@pytest.mark.parametrize(
    ("rollout", "sampler"),
    [
        (RolloutSettings(sampler="auto"), "torch"),
        (RolloutSettings(sampler="auto", weights="q8_0"), "llama.cpp"),
        (RolloutSettings(sampler="auto", gguf="own.gguf"), "llama.cpp"),
        (RolloutSettings(sampler="llama.cpp"), "llama.cpp"),
    ],
)
def test_auto_takes_torch_unless_something_asks_for_llama(
    monkeypatch: pytest.MonkeyPatch, rollout: RolloutSettings, sampler: str
) -> None:
    assert with_sampler(Settings(rollout=rollout), BASE).rollout.sampler == sampler
    automatic = Settings(rollout=RolloutSettings(sampler="auto"))
    other = replace(BASE, config=replace(BASE.config, architecture="gemma"))
    assert with_sampler(automatic, other).rollout.sampler == "llama.cpp", "what is unknown"
    monkeypatch.setattr("marlaas.engine.machine.placement.choices.SMALL", 4 * parameters(BASE) - 1)
    assert with_sampler(automatic, BASE).rollout.sampler == "llama.cpp", "what is large"


@pytest.mark.parametrize(("bits", "weights"), [(32, "f32"), (16, "f16"), (8.6, "q8_0"), (4.6, "q4_k_m"), (2, "q4_k_m")])
def test_a_brought_files_size_tells_its_precision(tmp_path: Path, bits: float, weights: str) -> None:
    file = tmp_path / "own.gguf"
    with file.open("wb") as opened:
        opened.truncate(int(parameters(BASE) * bits / 8))
    settings = Settings(rollout=RolloutSettings(gguf=str(file)))
    assert stored_as(BASE, settings, plan_of(BASE, settings, ROOM)) == weights


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BaseModelError, match=r"gone\.gguf: the GGUF file cannot be read"):
        plan_of(BASE, Settings(rollout=RolloutSettings(gguf=str(tmp_path / "gone.gguf"))), ROOM)


THREE = [plain(name, PAIR) for name in (HEAD, "b", "c")]
ON_CARDS_OF_BOTH = Settings(
    rollout=RolloutSettings(devices=("b/gpu 0", "b/gpu 1")), training=TrainingSettings(devices=("gpu 1",))
)


def workers_of(plan: PlacementPlan, settings: Settings = Settings()) -> list[tuple[str, str, str]]:  # noqa: B008
    return [(spec.name, spec.node, spec.device) for spec in worker_specs(BASE, Home(Path("home")), settings, plan)]


def test_workers_of_three_small_nodes() -> None:
    plan = on_machines(BASE, Settings(), THREE)
    assert workers_of(plan) == [
        ("training", "id-b", "cores 0-1"),
        ("training-2", "id-c", "cores 0-1"),
        ("rollout", "", "core 1"),
    ]
    assert len(plan.training) == 2 and len(plan.memory) == 1
    assert plan.nodes["id-b"] == THREE[1] and plan.machine_at("id-b") == THREE[1].machine
    alone = on_machines(BASE, Settings(), [THREE[0], replace(THREE[1], draining=True)])
    assert alone.placement.nodes == {""} and alone.placement.reasons[-1] == "b drains, so it gets nothing new."


def test_cards_are_those_of_their_node() -> None:
    nodes = [cards(HEAD, "A100", "A100"), cards("b", "4090", "4090")]
    plan = on_machines(BASE, ON_CARDS_OF_BOTH, nodes)
    assert workers_of(plan, ON_CARDS_OF_BOTH) == [
        ("training", "", "gpu 1"),
        ("rollout", "id-b", "gpu 0"),
        ("rollout-2", "id-b", "gpu 1"),
    ]
    assert plan.placement.cards == {"GPU-1"}, "of the engine's own machine"
    found = {spec.name: spec for spec in worker_specs(BASE, Home(Path("home")), ON_CARDS_OF_BOTH, plan)}
    assert found["rollout"].environment["CUDA_VISIBLE_DEVICES"] == "GPU-0"
    assert found["training"].environment["CUDA_VISIBLE_DEVICES"] == "GPU-1"


SCRATCH = Path("scratch")
SAMPLER, TRAINING = WorkerSpec("rollout", TORCH, {"threads": 1}, (0,)), WorkerSpec("training", TRAINER, {}, (1,))


def placement(kind: SamplerKind = "torch") -> Placement:
    return Placement((SamplerAssignment("rollout", kind, Place((0,))),), TrainerAssignment("training", Place((1,))))


@pytest.mark.parametrize("kind", ["torch", "llama.cpp"])
def test_sampler_and_trainer_of_a_large_base_lend_their_cores(kind: SamplerKind) -> None:
    trainer, sampler = lending([TRAINING, SAMPLER], placement(kind), LARGE_ENOUGH, SCRATCH)
    path = str(SCRATCH / ".cores")
    assert trainer.kwargs["loan"] == Loan(path, 0, (1,), (0,))
    assert sampler.kwargs == {"threads": 1, "loan": Loan(path, 1, (0,), (1,))}
    assert trainer.environment == sampler.environment == {"OMP_WAIT_POLICY": "passive"}


def test_nobody_else_does() -> None:
    further = SamplerAssignment("rollout-2", "torch", Place((2,)))
    several = replace(placement(), samplers=(*placement().samplers, further))
    more = replace(placement(), more=(TrainerAssignment("training-2", Place((2,))),))
    cases = {
        "a small base": ([TRAINING, SAMPLER], placement(), LARGE_ENOUGH - 1),
        "cores that both use": ([replace(TRAINING, cores=(0,)), SAMPLER], placement(), LARGE_ENOUGH),
        "workers that are not pinned": ([replace(TRAINING, cores=()), SAMPLER], placement(), LARGE_ENOUGH),
        "several cores each": (
            [replace(TRAINING, cores=(2, 3)), replace(SAMPLER, cores=(0, 1))],
            placement(),
            LARGE_ENOUGH,
        ),
        "a trainer on a card": ([replace(TRAINING, gpus=(0,)), SAMPLER], placement(), LARGE_ENOUGH),
        "one process for both": ([SAMPLER], placement(), LARGE_ENOUGH),
        "two samplers": ([TRAINING, SAMPLER, replace(SAMPLER, name="rollout-2", cores=(2,))], several, LARGE_ENOUGH),
        "two trainers": ([TRAINING, SAMPLER, replace(TRAINING, name="training-2", cores=(2,))], more, LARGE_ENOUGH),
        "vLLM": ([TRAINING, SAMPLER], placement("vllm"), LARGE_ENOUGH),
    }
    for why, (workers, planned, size) in cases.items():
        assert lending(workers, planned, size, SCRATCH) == workers, why


TORCH_AND_LLAMA = Settings(rollout=RolloutSettings(samplers=("torch", "llama.cpp"), sequences=128, context=64))
ON_CORES = plan_on(TORCH_AND_LLAMA, 0, 1, 2, free=64 << 30)
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
    words = "The sampler rollout ran out of memory on gpu 0; it goes on with 64 conversations instead of 128."
    assert after.words == words
    assert after.mended and conversations(fewer.fitted(STAFF)) == [64, 128]
    assert fewer.fitted(STAFF).placement == STAFF.placement
    assert conversations(fewer.fitted(on_card("GPU-1"))) == [128, 128], "on another device it may hold all again"
    assert conversations(fewer.fitted(on_card("GPU-0"))) == [64, 128]
    in_main_memory = MemoryBackoff().after(full("rollout-2"), STAFF, HELD, DEVICES).words
    assert in_main_memory.startswith("The sampler rollout-2 ran out of memory; it goes on"), "it needs no address"


@pytest.mark.parametrize(("held", "then"), [(40, 20), (12, 8), (9, 8)])
def test_half_of_what_it_held_but_no_fewer_than_eight(held: int, then: int) -> None:
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


COMPILING = LlamaBuild("compiling", 10.0)


def spec(factory: str) -> WorkerSpec:
    return WorkerSpec("rollout", factory, {}, ())


@pytest.mark.parametrize("end", [None, LlamaBuild("done", 300.0, 1.0), LlamaBuild("failed", 3.0, 1.0, "no compiler")])
async def test_a_sampler_on_llama_waits_for_the_end(end: LlamaBuild | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL", 0.0)
    answers = [COMPILING, COMPILING, end]
    told: list[str] = []
    await until_compiled([spec(TORCH), spec(LLAMA), spec(TRAINER)], told.append, lambda: answers.pop(0))
    assert answers == []
    assert told == ["The sampler waits for llama.cpp, which is still being compiled."]
    await asyncio.wait_for(until_compiled([spec(TORCH), spec(TRAINER)], told.append, lambda: COMPILING), 5.0)
    assert len(told) == 1, "nobody else waits"
    assert loading([spec(TORCH), spec(TRAINER)]) == "The workers load the base."
    assert loading([spec(LLAMA), spec(TRAINER)]).endswith("For llama.cpp it is converted first, once.")
