"""One machine: tables of imaginary ones and where the work goes there, and what holds for every plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st

from marlaas.engine.devices.machine import (
    Cpu,
    Gpu,
    Machine,
    Place,
    Placement,
    Rates,
    SamplerAssignment,
    SamplerKind,
    Software,
    TrainerAssignment,
)
from marlaas.engine.errors import BaseModelError, ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import Settings, TrainingSettings
from marlaas.engine.machine.placement.capacity import (
    PROGRAM,
    base_bytes,
    least_memory,
    memory_plans,
    trainer_limits,
    usable,
)
from marlaas.engine.machine.placement.choices import Choices, Copy, CopySpeed, on_cores
from marlaas.engine.machine.placement.place import MOST_TRAINERS, with_trainers
from marlaas.engine.machine.plan import trainer_spec
from marlaas.engine.models.memory import FEW_SLOTS, LEAST, Wanted, card_pass_bytes, slot_bytes
from tests.engine.machine.placement.imaginary import (
    ALL,
    B06,
    B8,
    B17,
    B32,
    B70,
    GB,
    LAPTOP,
    LLAMA_ONLY,
    NO_BNB,
    NO_VLLM,
    NOTHING,
    SERVER,
    TINY,
    bases,
    gpu,
    machine,
    machines,
    other,
    place,
    shape,
    software,
    wishes,
)

from ..supervised import BASE, plan_on

VULKAN = replace(NOTHING, llama_backend="vulkan")
METAL = replace(NOTHING, llama_backend="metal")
ONE_CORE = replace(LAPTOP, cores=(3,), count=1)
QUOTA = replace(SERVER, count=4)


def cards(*found: Gpu, cpu: Cpu = SERVER) -> Machine:
    return Machine(cpu, found)


UNMEASURED = cards(gpu("4090", 0, measured=False), gpu("4090", 1, measured=False))
EXCLUSIVE = cards(replace(gpu("A100"), mode="exclusive"))
PARTS = cards(*(gpu("MIG", part=part) for part in range(4)))
MIXED = machine("H100", "H100", "H20", "H20", "L40S", "4090", "T4", "P40")
NO_CARD_SAMPLER = replace(NO_VLLM, llama_backend="cpu")

# what samples, with what, where | where and how the base is trained, and how a card is shared
PROCESSORS = [
    ("laptop, shipped base", machine(cpu=LAPTOP), NOTHING, TINY, "torch cpu:2 | cpu:2 f32"),
    ("laptop, half a billion", machine(cpu=LAPTOP), NOTHING, B06, "llama.cpp cpu:2 | cpu:2 f32"),
    ("one core: nothing is pinned", machine(cpu=ONE_CORE), NOTHING, TINY, "torch cpu:0 | cpu:0 f32"),
    ("32 cores, a quota of 4", machine(cpu=QUOTA), NOTHING, TINY, "torch cpu:2 | cpu:2 f32"),
    ("a card, but a tiny base", machine("H200"), ALL, TINY, "torch cpu:16 | cpu:16 f32"),
    ("driver without CUDA", machine("4090"), NOTHING, B06, "llama.cpp cpu:16 | cpu:16 f32"),
    ("a card too small for anything", machine("3060"), ALL, B32, "llama.cpp cpu:16 | cpu:16 f32"),
    ("somebody left 2 GB", cards(gpu("H200", free=2)), ALL, B06, "llama.cpp cpu:16 | cpu:16 f32"),
]
ONE_CARD = [
    ("small card", machine("3060"), ALL, B06, "vllm 0 | 0 bf16 shared"),
    ("usual card", machine("4090"), ALL, B17, "vllm 0 | 0 bf16 shared"),
    ("one H200", machine("H200"), ALL, B17, "vllm 0 | 0 bf16 shared"),
    ("one H200, large base", machine("H200"), ALL, B32, "vllm 0 | 0 nf4 shared"),
    ("larger still", machine("H200"), ALL, B70, "llama.cpp q4_k_m 0 | 0 nf4 shared"),
    ("larger still, for one task", machine("H200"), ALL, replace(B70, tasks=1), "llama.cpp q5_k_m 0 | 0 nf4 shared"),
    ("half of it is taken", cards(gpu("H200", free=60)), ALL, B8, "vllm 0 | 0 bf16 shared"),
    ("a part of a divided card", cards(gpu("MIG", part=1)), ALL, B06, "vllm 01 | 01 bf16 shared"),
    ("four bits, as nothing else fits", machine("4090"), ALL, B8, "llama.cpp cpu:31 | 0 nf4"),
    ("adapters of 32 tasks fill it", machine("V100"), ALL, replace(B8, tasks=32), "llama.cpp q4_k_m 0 | cpu:31 f32"),
    ("not even those are installed", machine("4090"), NO_BNB, B8, "llama.cpp q6_k 0 | cpu:31 f32"),
    ("vLLM missing", machine("A100"), NO_VLLM, B17, "llama.cpp q8_0 0 | 0 bf16 shared"),
    ("vLLM missing, llama.cpp as well", machine("A100"), NO_CARD_SAMPLER, B17, "llama.cpp cpu:31 | 0 bf16"),
    ("torch without CUDA", machine("A100"), LLAMA_ONLY, B17, "llama.cpp q8_0 0 | cpu:31 f32"),
    ("vLLM with such a torch", machine("A100"), replace(ALL, torch_cuda=False), B17, "vllm 0 | cpu:31 f32"),
    ("Volta", machine("V100"), ALL, B06, "llama.cpp q8_0 0 | 0 f32 shared"),
    ("Volta, larger base", machine("V100"), ALL, B8, "llama.cpp q8_0 0 | cpu:31 f32"),
    ("Pascal", machine("P40"), ALL, B06, "llama.cpp q8_0 0 | 0 f32 shared"),
    ("Apple", cards(other("metal", 24), cpu=LAPTOP), METAL, B06, "llama.cpp q8_0 metal-0 | cpu:3 f32"),
    ("Vulkan", cards(other("vulkan", 16)), VULKAN, B17, "llama.cpp q8_0 vulkan-0 | cpu:31 f32"),
    ("Vulkan card, llama.cpp without", cards(other("vulkan", 16)), NOTHING, B17, "llama.cpp cpu:16 | cpu:16 f32"),
    ("one process at a time", EXCLUSIVE, ALL, B17, "llama.cpp cpu:31 | 0 bf16"),
    ("likewise, vLLM missing", EXCLUSIVE, NO_VLLM, B17, "llama.cpp cpu:31 | 0 bf16"),
]
SEVERAL = [
    ("two equal", machine("4090", "4090"), ALL, B06, "vllm 0 | 1 bf16"),
    ("two equal, not measured", UNMEASURED, ALL, B06, "vllm 0 | 1 bf16"),
    ("compute trains, bandwidth samples", machine("H100", "H20"), ALL, B8, "vllm 1 | 0 bf16"),
    ("whichever comes first", machine("H20", "H100"), ALL, B8, "vllm 0 | 1 bf16"),
    ("one far weaker: left out", machine("H200", "T4"), ALL, B17, "vllm 0 | 0 bf16 shared"),
    ("one of them has room", cards(gpu("A100", 0, free=1), gpu("A100", 1)), ALL, B17, "vllm 1 | 1 bf16 shared"),
    ("one is full, but for training", cards(gpu("A100", 0), gpu("A100", 1, free=11)), ALL, B17, "vllm 0 | 1 bf16"),
    ("three", machine("A100", "A100", "A100"), ALL, B8, "vllm 0 1 | 2 bf16"),
    ("four", machine("H100", "H100", "H100", "H100"), ALL, B8, "vllm 0 1 2 | 3 bf16"),
    ("eight", machine(*("A100",) * 8), ALL, B8, "vllm 0 1 2 3 4 5 | 6 7 bf16"),
    ("eight, all sorts", MIXED, ALL, B8, "vllm 0 2 3 | 1 4 bf16"),
    ("two Turing", machine("T4", "T4"), ALL, B06, "llama.cpp q8_0 0 | 1 f32"),
    ("two parts of one card", cards(gpu("MIG", part=0), gpu("MIG", part=1)), ALL, B06, "vllm 00 | 01 bf16"),
    ("four parts: one process, one part", PARTS, ALL, B06, "vllm 00 01 02 | 03 bf16"),
    ("fits no card in bfloat16", machine("4090", "4090"), ALL, B8, "llama.cpp q6_k 0 | 1 nf4"),
    ("fits no card but in four bits", machine(*("A100",) * 4), ALL, B70, "llama.cpp q4_k_m 0 1 2 | 3 nf4"),
    ("fits none at all", machine("4090", "4090"), ALL, B70, "llama.cpp cpu:16 | cpu:16 f32"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("found", "software", "base", "plan"),
    [pytest.param(*row[1:], id=row[0]) for row in PROCESSORS + ONE_CARD + SEVERAL],
)
def test_where_work_goes(found: Machine, software: Software, base: Wanted, plan: str) -> None:
    assert shape(place(found, software, base)) == plan


TWO = machine("A100", "A100")
FOUR_BITS = replace(B8, weights="q4_k_m")
CHOSEN = [
    ("cards for a tiny base", TWO, TINY, Choices(rollout=["gpu 0"], training=["gpu 1"]), "vllm 0 | 1 bf16"),
    ("which one samples", TWO, B8, Choices(rollout=["gpu 1"]), "vllm 1 | 0 bf16"),
    ("which one trains", TWO, B8, Choices(training=["GPU-0"]), "vllm 1 | 0 bf16"),
    ("both on one", TWO, B8, Choices(rollout=["gpu 1"], training=["gpu 1"]), "vllm 1 | 1 bf16 shared"),
    ("one more samples", TWO, B8, Choices(rollout=["gpu 0", "gpu 1"], training=["gpu 1"]), "vllm 1 0 | 1 bf16 shared"),
    ("training on the processor", TWO, B8, Choices(training=["cpu"]), "vllm 0 1 | cpu:31 f32"),
    ("sampling on the processor", TWO, B8, Choices(rollout=["cpu"]), "llama.cpp cpu:31 | 0 1 bf16"),
    ("all on the processor", TWO, B8, Choices(rollout=["cpu"], training=["cpu"]), "llama.cpp cpu:16 | cpu:16 f32"),
    ("llama.cpp by name", TWO, B8, Choices(sampler="llama.cpp"), "llama.cpp q8_0 0 | 1 bf16"),
    ("llama.cpp by its key", TWO, FOUR_BITS, Choices(llama="weights"), "llama.cpp q4_k_m 0 | 1 bf16"),
    ("the torch sampler", TWO, B06, Choices(sampler="torch"), "torch cpu:31 | 0 1 bf16"),
    ("four bits", TWO, B8, Choices(precision="nf4"), "vllm 0 | 1 nf4"),
    ("float32", TWO, B06, Choices(precision="f32"), "vllm 0 | 1 f32"),
    ("a part of the memory each", machine("H200"), B8, Choices(share="memory"), "vllm 0 | 0 bf16 shared"),
    ("vLLM on a processor", machine(cpu=LAPTOP), B06, Choices(sampler="vllm"), "vllm cpu:2 | cpu:2 f32"),
]  # fmt: skip


@pytest.mark.parametrize(("found", "base", "choices", "plan"), [pytest.param(*row[1:], id=row[0]) for row in CHOSEN])
def test_the_user_decides(found: Machine, base: Wanted, choices: Choices, plan: str) -> None:
    assert shape(place(found, ALL, base, choices)) == plan


REFUSED = [
    ("no such card", Choices(rollout=["gpu 7"]), ALL, "'gpu 7', which is no device that may be used here"),
    ("processor and cards", Choices(training=["cpu", "gpu 0"]), ALL, "names the processor and cards"),
    ("vLLM, which is missing", Choices(sampler="vllm"), NO_VLLM, "there is no vLLM that works here"),
    ("vLLM with llama.cpp's key", Choices(sampler="vllm", llama="gguf"), ALL, "`gguf` under .rollout. is llama.cpp's"),
    ("vLLM on the processor", Choices(sampler="vllm", rollout=["cpu"]), ALL, "contradict each other"),
    ("torch sampler on a card", Choices(sampler="torch", rollout=["gpu 0"]), ALL, "computes on the processor"),
    ("training without CUDA", Choices(training=["gpu 0"]), LLAMA_ONLY, "torch does not reach them"),
    ("four bits on the processor", Choices(precision="nf4", training=["cpu"]), ALL, "needs a card"),
    ("four bits, not installed", Choices(precision="nf4"), NO_BNB, "needs bitsandbytes"),
    ("bfloat16 with llama.cpp", Choices(sampler="llama.cpp", weights="bf16"), ALL, "is torch's"),
    ("bfloat16 with vLLM", Choices(sampler="vllm", weights="bf16"), ALL, "is torch's"),
    ("sharing, apart", Choices(share="memory", rollout=["gpu 0"], training=["gpu 1"]), ALL, "names different cards"),
    ("sharing with the processor", Choices(share="memory", training=["cpu"]), ALL, "puts a stage on the processor"),
    ("both and more", Choices(rollout=["gpu 0"], training=["gpu 0", "gpu 1"]), ALL, "name the same card"),
]  # fmt: skip


@pytest.mark.parametrize(("choices", "software", "words"), [pytest.param(*row[1:], id=row[0]) for row in REFUSED])
def test_contradictions_are_refused(choices: Choices, software: Software, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        place(TWO, software, B8, choices)
    assert raised.value.message.endswith(".")


def test_a_named_card_that_cannot_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"names gpu 1, which cannot sample: a sampler of this base takes .* GB"):
        place(machine("A100", "3060"), ALL, B8, Choices(sampler="vllm", rollout=["gpu 1"]))
    with pytest.raises(ConfigError, match=r"names gpu 1, which cannot train: training this base takes .* GB"):
        place(machine("A100", "3060"), ALL, B32, Choices(training=["gpu 1"]))
    with pytest.raises(ConfigError, match="do not fit there together"):
        place(machine("4090", "4090"), ALL, B8, Choices(rollout=["gpu 0"], training=["gpu 0"]))
    with pytest.raises(ConfigError, match="no card that may be used serves this base"):
        place(machine("3060"), ALL, B8, Choices(sampler="vllm"))


def speeds(**measured: tuple[float, float]) -> list[CopySpeed]:
    """Seconds and gap of copies, by sampler and precision: ``llama_f16``."""
    copies = {
        "llama_f16": Copy("llama.cpp", "f16"),
        "llama_q8_0": Copy("llama.cpp", "q8_0"),
        "llama_gguf": Copy("llama.cpp", "gguf"),
        "torch_f32": Copy("torch", "f32"),
        "torch_bf16": Copy("torch", "bf16"),
    }
    return [CopySpeed(copies[name], *figures) for name, figures in measured.items()]


COPIES = [
    ("as seen with AVX2 alone", speeds(llama_f16=(19.4, 0.001), llama_q8_0=(20.3, 0.053)), "llama.cpp f16"),
    ("noise does not decide", speeds(llama_f16=(22.0, 0.001), llama_q8_0=(20.0, 0.053)), "llama.cpp f16"),
    ("much faster", speeds(llama_f16=(30.0, 0.001), llama_q8_0=(20.0, 0.053)), "llama.cpp q8_0"),
    ("the base's own file", speeds(llama_f16=(30.0, 0.001), llama_gguf=(20.0, 0.05)), "llama.cpp gguf"),
    ("of equals the exact one", speeds(llama_gguf=(20.0, 0.05), llama_q8_0=(20.0, 0.04)), "llama.cpp q8_0"),
    ("not measured", [], "llama.cpp"),
    ("other bases' samplers do not count", speeds(torch_f32=(1.0, 0.0)), "llama.cpp"),
    ("bfloat16 is not fast here", speeds(torch_bf16=(1.0, 0.01)), "llama.cpp"),
]


@pytest.mark.parametrize(("copies", "plan"), [pytest.param(*row[1:], id=row[0]) for row in COPIES])
def test_the_most_exact_of_the_fast_copies_is_sampled_from(copies: list[CopySpeed], plan: str) -> None:
    chosen = place(machine(cpu=LAPTOP), NOTHING, B06, copies=copies).samplers[0]
    assert f"{chosen.kind} {chosen.weights}".strip() == plan
    named = place(machine(cpu=LAPTOP), NOTHING, B06, Choices(llama="weights", weights="q4_k_m"), copies).samplers[0]
    assert (named.kind, named.weights) == ("llama.cpp", ""), "what the settings name is not chosen"
    assert place(machine(cpu=LAPTOP), NOTHING, TINY, copies=copies).samplers[0].kind == "torch", "a small base"
    modest = replace(B06, parameters=60_000_000)
    close = speeds(torch_f32=(1.1, 0.0), llama_f16=(1.0, 0.001))
    assert shape(place(machine(cpu=LAPTOP), NOTHING, modest, copies=close)) == "torch f32 cpu:2 | cpu:2 f32"


FAST = replace(LAPTOP, rates=Rates(100e9, 10e9, bfloat16=400e9))
SLOW = replace(LAPTOP, rates=Rates(100e9, 10e9, bfloat16=150e9))


@pytest.mark.parametrize(
    ("cpu", "base", "choices", "plan"),
    [
        (FAST, B06, Choices(), "torch bf16 cpu:2"),
        (SLOW, B06, Choices(), "llama.cpp cpu:2"),
        (LAPTOP, B06, Choices(), "llama.cpp cpu:2"),
        (FAST, TINY, Choices(), "torch cpu:2"),
        (FAST, replace(B06, config=replace(B06.config, architecture="gemma")), Choices(), "llama.cpp cpu:2"),
        (FAST, B06, Choices(llama="weights", weights="q8_0"), "llama.cpp cpu:2"),
        (FAST, B06, Choices(llama="gguf"), "llama.cpp cpu:2"),
        (FAST, B06, Choices(sampler="llama.cpp"), "llama.cpp cpu:2"),
        (FAST, B06, Choices(sampler="torch"), "torch bf16 cpu:2"),
        (FAST, B06, Choices(sampler="torch", llama="weights", weights="f32"), "torch cpu:2"),
        (SLOW, B06, Choices(sampler="torch"), "torch cpu:2"),
        (LAPTOP, B06, Choices(weights="bf16"), "torch bf16 cpu:2"),
        (LAPTOP, TINY, Choices(weights="bf16"), "torch bf16 cpu:2"),
    ],
)
def test_torch_keeps_large_bases_in_bfloat16_where_that_is_fast(
    cpu: Cpu, base: Wanted, choices: Choices, plan: str
) -> None:
    placement = place(machine(cpu=cpu), NOTHING, base, choices)
    assert shape(placement).split(" | ")[0] == plan
    said = [reason for reason in placement.reasons if "Sampling takes" in reason]
    assert ("in bfloat16" in said[0]) == ("bf16" in plan)
    if cpu is FAST and "bf16" in plan:
        assert "which this processor multiplies 4.0 times as fast as float32" in said[0]


BOTH = ("gpu 0", "cpu")
WITH_TORCH = Choices(sampler="vllm", next_to_cards="torch", rollout=BOTH)
LLAMA_TWICE = Choices(sampler="llama.cpp", next_to_cards="llama.cpp", rollout=BOTH)
TRAINED_THERE = Choices(rollout=BOTH, training=["cpu"])
ASKED = [
    ("vLLM and llama.cpp", B17, ALL, Choices(rollout=BOTH), "vllm 0 + llama.cpp cpu:16 | 0 bf16 shared"),
    (
        "the other way round",
        B17,
        ALL,
        Choices(rollout=("CPU", "gpu 0")),
        "vllm 0 + llama.cpp cpu:16 | 0 bf16 shared",
    ),
    ("vLLM and torch", B17, ALL, WITH_TORCH, "vllm 0 + torch cpu:16 | 0 bf16 shared"),
    ("llama.cpp on both", B17, ALL, LLAMA_TWICE, "llama.cpp q8_0 0 + llama.cpp cpu:16 | 0 bf16 shared"),
    ("a tiny base", TINY, ALL, Choices(rollout=BOTH), "vllm 0 + torch cpu:16 | 0 bf16 shared"),
    (
        "vLLM missing",
        B17,
        NO_VLLM,
        Choices(rollout=BOTH),
        "llama.cpp q8_0 0 + llama.cpp cpu:16 | 0 bf16 shared",
    ),
    (
        "training there",
        B17,
        LLAMA_ONLY,
        Choices(rollout=BOTH),
        "llama.cpp q8_0 0 + llama.cpp cpu:16 | cpu:16 f32",
    ),
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


@pytest.mark.parametrize("gigabytes", [14, 20, 40])
def test_contexts_are_alike_and_main_memory_is_counted_once(gigabytes: int) -> None:
    found, free = (
        place(machine("A100"), LLAMA_ONLY, B06, Choices(rollout=BOTH)),
        gigabytes * GB,
    )
    (card, processor), training = memory_plans(found.samplers, found.trainers, B06, free)
    assert training and card.context == processor.context == training.context and processor.sequences > 0
    assert card.total == 0 and processor.total + training.total <= free
    least = least_memory(replace(B06, context=2048), "llama.cpp", True, True)
    assert memory_plans(found.samplers, found.trainers, B06, least + GB)
    with pytest.raises(BaseModelError, match="GB of memory"):
        memory_plans(found.samplers, found.trainers, B06, least - GB)


AMX = Rates(150e9, 12e9, 1.1e12)
DOUBLE = Rates(150e9, 12e9, 320e9)
"""AVX-512 BF16 alone: 1.9 to 2.2 times, by the look."""
EMULATED = Rates(150e9, 12e9, 1e9)


@pytest.mark.parametrize(
    ("rates", "precision", "chosen"),
    [
        (AMX, "auto", "bf16"),
        (DOUBLE, "auto", "f32"),
        (replace(DOUBLE, bfloat16=285e9), "auto", "f32"),
        (replace(DOUBLE, bfloat16=450e9), "auto", "bf16"),
        (EMULATED, "auto", "f32"),
        (replace(AMX, bfloat16=0.0), "auto", "f32"),
        (None, "auto", "f32"),
        (AMX, "f32", "f32"),
        (EMULATED, "bf16", "bf16"),
        (None, "bf16", "bf16"),
    ],
)
def test_a_large_base_goes_by_the_measured_gain(rates: Rates | None, precision: str, chosen: str) -> None:
    machine = Machine(replace(LAPTOP, rates=rates))
    assert place(machine, NOTHING, B06, Choices(precision=precision)).trainer.precision == chosen
    small = place(machine, NOTHING, TINY, Choices(precision=precision)).trainer.precision
    assert small == ("bf16" if precision == "bf16" else "f32"), "a small base stays as exact as it is"


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        (AMX, "The trainer's base is in bfloat16: this processor multiplies it 7.3 times as fast as float32."),
        (EMULATED, "This processor has no fast bfloat16; the trainer uses float32."),
        (replace(AMX, bfloat16=0.0), "The trainer's base is in float32: bfloat16 is multiplied wrongly here, or not"),
        (None, "Whether bfloat16 is faster here is not measured: `marlaas doctor --measure` does."),
    ],
)
def test_the_reason_has_the_figure(rates: Rates | None, said: str) -> None:
    machine = Machine(replace(LAPTOP, rates=rates))
    assert said in place(machine, NOTHING, B06).reasons[-1]
    for base, choices in (
        (TINY, Choices()),
        (B06, Choices(precision="f32", sampler="llama.cpp")),
    ):
        assert "bfloat16" not in " ".join(place(machine, NOTHING, base, choices).reasons)


KINDS: tuple[SamplerKind, ...] = ("llama.cpp", "torch")


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=5), st.integers(0, 64))
@example(["torch"], 0)
@example(["torch"], 1)
@example(["torch"], 2)
@example(["llama.cpp", "torch"], 2)
def test_no_core_is_given_twice_where_there_are_enough(kinds: list[SamplerKind], count: int) -> None:
    placement = on_cores(kinds, range(count))
    places = [*(assignment.place.cores for assignment in placement.samplers), placement.trainer.place.cores]
    if count > len(kinds):
        assert sorted(core for cores in places for core in cores) == list(range(count)) and all(places)
    elif count == 1:
        assert not any(places), "nothing is pinned"
    assert [assignment.name for assignment in placement.samplers][:2] == ["rollout", "rollout-2"][: len(kinds)]
    assert [assignment.kind for assignment in placement.samplers] == list(kinds)


ENOUGH = 64 << 30


def on_cards(count: int, sampler: str = "GPU-9") -> Placement:
    place = Place(gpus=tuple(f"GPU-{number}" for number in range(count)), memory=1 << 30)
    samples = SamplerAssignment("rollout", "vllm", Place(gpus=(sampler,)))
    return Placement((samples,), TrainerAssignment("training", place, "bf16"))


@pytest.mark.parametrize(("cores", "trainers"), [(1, 1), (2, 1), (4, 1), (6, 1), (8, 2), (16, 4), (64, MOST_TRAINERS)])
def test_a_small_base_has_a_trainer_for_two_cores(cores: int, trainers: int) -> None:
    plan = plan_on(Settings(), *range(cores), free=ENOUGH)
    assert len(plan.placement.trainers) == trainers
    assert len(with_trainers(on_cores(("torch",), range(cores)), 0, small=False, policies=32).trainers) == 1


@given(st.integers(0, 64), st.integers(1, 9))
def test_all_have_as_many_cores_and_none_is_left_out(cores: int, asked: int) -> None:
    plan = on_cores(("torch",), tuple(range(cores)))
    parts = [trainer.place.cores for trainer in with_trainers(plan, asked, small=True, policies=1).trainers]
    assert len(parts) == asked and len({len(part) for part in parts}) == 1, "else bits would differ"
    whole = plan.trainer.place.cores
    assert {core for part in parts for core in part} <= set(whole)
    if len(whole) >= asked:
        assert len({core for part in parts for core in part}) == len(whole) // asked * asked
    else:
        assert all(len(part) == bool(whole) for part in parts)


@given(st.integers(1, 8), st.integers(0, 12), st.integers(1, 40))
def test_each_has_cards_of_its_own(cards: int, asked: int, policies: int) -> None:
    placement = with_trainers(on_cards(cards), asked, small=True, policies=policies)
    parts = [trainer.place.gpus for trainer in placement.trainers]
    assert len(parts) == min(asked or policies, cards) and all(parts)
    assert [card for part in parts for card in part] == list(on_cards(cards).trainer.place.gpus)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert any("cannot be: training has" in reason for reason in placement.reasons) == (asked > cards)
    assert placement.cards == on_cards(cards).cards
    assert [trainer.name for trainer in placement.trainers][:2] == ["training", "training-2"][: len(parts)]


def test_one_that_shares_a_card_with_a_sampler_stays_alone() -> None:
    shared = on_cards(1, "GPU-0")
    placement = with_trainers(shared, 2, small=True, policies=8)
    assert len(placement.trainers) == 1 and "shares its card with a sampler" in placement.reasons[-1]
    assert with_trainers(shared, 0, small=True, policies=8) == shared


def test_each_has_a_base_and_they_divide_the_room_for_policies(tmp_path: Path) -> None:
    one, two = (
        plan_on(Settings(training=TrainingSettings(trainers=count)), *range(4), free=4 << 30) for count in (1, 2)
    )
    parts = [dict(plan.memory[0].parts) for plan in (one, two)]
    for what in ("the trainer's weights", "a training pass", "the trainer's program"):
        assert parts[1][what] == 2 * parts[0][what]
    spec = trainer_spec(BASE, Home(tmp_path), Settings(), two.memory[0], two.placement.trainers[1], 2)
    assert spec.kwargs["held"] == -(-two.memory[0].held // 2) and spec.kwargs["threads"] == 1
    assert spec.name == "training-2"


@pytest.mark.parametrize("base", [B06, B17, B8])
def test_limits_stay_within_the_trainers_part(base: Wanted) -> None:
    trainer = place(machine("H200"), ALL, base).trainer
    limits = trainer_limits(trainer, base)
    one_pass = card_pass_bytes(base.config, 2048, limits.room, trainer.precision)
    assert PROGRAM + base_bytes(base, trainer.precision) + limits.held + one_pass <= trainer.place.memory
    assert limits.held >= limits.slots * slot_bytes(base.config, 2048) and limits.slots >= FEW_SLOTS


VULKAN_CARD = Machine(machine().cpu, (other("vulkan", 24),))
TORCH_ONLY = replace(ALL, vllm="", llama_backend="cpu")
PLANS = [
    ("both on a card", machine("H200"), ALL),
    ("the trainer on a card", machine("A100"), TORCH_ONLY),
    ("the sampler on a card", VULKAN_CARD, VULKAN),
    ("neither", machine(), NOTHING),
]


@pytest.mark.parametrize(("found", "software"), [pytest.param(*row[1:], id=row[0]) for row in PLANS])
def test_cards_take_no_main_memory(found: Machine, software: Software) -> None:
    placement = place(found, software, B06)
    (sampling,), training = memory_plans(placement.samplers, placement.trainers, B06, 400 * GB)
    assert training and training.room > 0 and sampling.sequences >= LEAST
    assert bool(sampling.total) == (not placement.samplers[0].place.gpus)
    assert bool(training.total) == (not placement.trainer.place.gpus)
    assert (training is sampling) == (found is PLANS[-1][1]), "both are planned together"


def test_a_card_for_the_trainer_leaves_main_memory_free() -> None:
    """The sampler's context, chosen for the memory, is not planned again as if somebody had asked for it."""
    placement = place(machine("A100"), TORCH_ONLY, B06)
    (sampling,), training = memory_plans(placement.samplers, placement.trainers, B06, 10 * GB)
    assert training and training.context == sampling.context == 1024 and sampling.total < 7 * GB


def taken(plan: Placement, uuid: str) -> int:
    """The most that the plan's workers hold of a card at a time."""
    sampling = sum(assignment.place.memory for assignment in plan.samplers if uuid in assignment.place.gpus)
    training = plan.trainer.place.memory if uuid in plan.trainer.place.gpus else 0
    return sampling + training


@given(machines(), software, bases, wishes)
def test_a_plan_keeps_its_promises(machine: Machine, installed: Software, base: Wanted, choices: Choices) -> None:
    plan = place(machine, installed, base, choices)

    assert place(machine, installed, base, choices) == plan, "the same in, the same out"
    assert plan.samplers, "somebody samples"
    assert len({assignment.name for assignment in plan.samplers}) == len(plan.samplers)
    assert plan.samplers[0].name == "rollout"
    assert plan.reasons, "and says why"
    assert all(reason.endswith(".") for reason in plan.reasons)

    known = {card.uuid: card for card in machine.gpus}
    for uuid, card in known.items():
        assert taken(plan, uuid) <= usable(card) < card.free or taken(plan, uuid) == 0
    assignments: list[SamplerAssignment | TrainerAssignment] = [*plan.samplers, plan.trainer]
    used = [uuid for assignment in assignments for uuid in assignment.place.gpus]
    assert set(used) <= set(known), "no card that is not there"
    shared = [uuid for assignment in plan.samplers for uuid in assignment.place.gpus if uuid in plan.trainer.place.gpus]
    assert len(used) - len(shared) == len(set(used)), "one sampler on a card"
    assert bool(shared) == plan.shared
    assert all(known[uuid].mode == "shared" for uuid in shared), "else one process at a time"
    parts = [uuid for uuid in plan.trainer.place.gpus if known[uuid].part is not None]
    assert not parts or len(plan.trainer.place.gpus) == 1, "a process computes on one part"

    for assignment in plan.samplers:
        assert assignment.kind != "vllm" or installed.vllm
        assert assignment.kind != "torch" or not assignment.place.gpus
        assert all(known[uuid].capability >= (8, 0) for uuid in assignment.place.gpus if assignment.kind == "vllm")
    assert not plan.trainer.place.gpus or installed.torch_cuda
    assert plan.trainer.precision != "nf4" or installed.bitsandbytes
    cores = [core for assignment in assignments for core in assignment.place.cores]
    assert len(cores) == len(set(cores)) <= machine.cpu.count, "cores of their own"
