"""Imaginary machines, and where the work goes there: tables to be read."""

from dataclasses import replace

import pytest

from marlaas.engine.devices.machine import Cpu, Gpu, Machine, Rates, Software
from marlaas.engine.errors import ConfigError
from marlaas.engine.machine.placement.choices import Choices, Copy, CopySpeed
from marlaas.engine.models.memory import Wanted
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
    gpu,
    machine,
    other,
    place,
    shape,
)

VULKAN = replace(NOTHING, llama_backend="vulkan")
METAL = replace(NOTHING, llama_backend="metal")
ONE_CORE = replace(LAPTOP, cores=(3,), count=1)
QUOTA = replace(SERVER, count=4)
LITTLE = replace(LAPTOP, memory=2 * GB)


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
    ("small card", machine("3060"), ALL, B06, "vllm 0 | 0 bf16 base"),
    ("usual card", machine("4090"), ALL, B17, "vllm 0 | 0 bf16 base"),
    ("one H200", machine("H200"), ALL, B17, "vllm 0 | 0 bf16 base"),
    ("one H200, large base", machine("H200"), ALL, B32, "vllm 0 | 0 bf16 base"),
    ("larger still", machine("H200"), ALL, B70, "llama.cpp q4_k_m 0 | 0 nf4 memory"),
    ("larger still, for one task", machine("H200"), ALL, replace(B70, tasks=1), "llama.cpp q5_k_m 0 | 0 nf4 memory"),
    ("half of it is taken", cards(gpu("H200", free=60)), ALL, B8, "vllm 0 | 0 bf16 base"),
    ("a part of a divided card", cards(gpu("MIG", part=1)), ALL, B06, "vllm 01 | 01 bf16 base"),
    ("four bits, as nothing else fits", machine("4090"), ALL, B8, "llama.cpp cpu:31 | 0 nf4"),
    ("adapters of 32 tasks fill it", machine("V100"), ALL, replace(B8, tasks=32), "llama.cpp q4_k_m 0 | cpu:31 f32"),
    ("not even those are installed", machine("4090"), NO_BNB, B8, "llama.cpp q6_k 0 | cpu:31 f32"),
    ("vLLM missing", machine("A100"), NO_VLLM, B17, "llama.cpp q8_0 0 | 0 bf16 memory"),
    ("vLLM missing, llama.cpp as well", machine("A100"), NO_CARD_SAMPLER, B17, "llama.cpp cpu:31 | 0 bf16"),
    ("torch without CUDA", machine("A100"), LLAMA_ONLY, B17, "llama.cpp q8_0 0 | cpu:31 f32"),
    ("vLLM with such a torch", machine("A100"), replace(ALL, torch_cuda=False), B17, "vllm 0 | cpu:31 f32"),
    ("Volta", machine("V100"), ALL, B06, "llama.cpp q8_0 0 | 0 f32 memory"),
    ("Volta, larger base", machine("V100"), ALL, B8, "llama.cpp q8_0 0 | cpu:31 f32"),
    ("Pascal", machine("P40"), ALL, B06, "llama.cpp q8_0 0 | 0 f32 memory"),
    ("Apple", cards(other("metal", 24), cpu=LAPTOP), METAL, B06, "llama.cpp q8_0 metal-0 | cpu:3 f32"),
    ("Vulkan", cards(other("vulkan", 16)), VULKAN, B17, "llama.cpp q8_0 vulkan-0 | cpu:31 f32"),
    ("Vulkan card, llama.cpp without", cards(other("vulkan", 16)), NOTHING, B17, "llama.cpp cpu:16 | cpu:16 f32"),
    ("one process at a time", EXCLUSIVE, ALL, B17, "vllm 0 | 0 bf16 base"),
    ("likewise, vLLM missing", EXCLUSIVE, NO_VLLM, B17, "llama.cpp cpu:31 | 0 bf16"),
]
SEVERAL = [
    ("two equal", machine("4090", "4090"), ALL, B06, "vllm 0 | 1 bf16"),
    ("two equal, not measured", UNMEASURED, ALL, B06, "vllm 0 | 1 bf16"),
    ("compute trains, bandwidth samples", machine("H100", "H20"), ALL, B8, "vllm 1 | 0 bf16"),
    ("whichever comes first", machine("H20", "H100"), ALL, B8, "vllm 0 | 1 bf16"),
    ("one far weaker: left out", machine("H200", "T4"), ALL, B17, "vllm 0 | 0 bf16 base"),
    ("one of them has room", cards(gpu("A100", 0, free=1), gpu("A100", 1)), ALL, B17, "vllm 1 | 1 bf16 base"),
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
CORES = machine(cpu=LAPTOP)
FOUR_BITS = replace(B8, weights="q4_k_m")
CHOSEN = [
    ("cards for a tiny base", TWO, TINY, Choices(rollout=["gpu 0"], training=["gpu 1"]), "vllm 0 | 1 bf16"),
    ("which one samples", TWO, B8, Choices(rollout=["gpu 1"]), "vllm 1 | 0 bf16"),
    ("which one trains", TWO, B8, Choices(training=["GPU-0"]), "vllm 1 | 0 bf16"),
    ("both on one", TWO, B8, Choices(rollout=["gpu 1"], training=["gpu 1"]), "vllm 1 | 1 bf16 base"),
    ("one more samples", TWO, B8, Choices(rollout=["gpu 0", "gpu 1"], training=["gpu 1"]), "vllm 1 0 | 1 bf16 base"),
    ("training on the processor", TWO, B8, Choices(training=["cpu"]), "vllm 0 1 | cpu:31 f32"),
    ("sampling on the processor", TWO, B8, Choices(rollout=["cpu"]), "llama.cpp cpu:31 | 0 1 bf16"),
    ("all on the processor", TWO, B8, Choices(rollout=["cpu"], training=["cpu"]), "llama.cpp cpu:16 | cpu:16 f32"),
    ("llama.cpp by name", TWO, B8, Choices(sampler="llama.cpp"), "llama.cpp q8_0 0 | 1 bf16"),
    ("llama.cpp by its key", TWO, FOUR_BITS, Choices(llama="weights"), "llama.cpp q4_k_m 0 | 1 bf16"),
    ("the torch sampler", TWO, B06, Choices(sampler="torch"), "torch cpu:31 | 0 1 bf16"),
    ("four bits", TWO, B8, Choices(precision="nf4"), "vllm 0 | 1 nf4"),
    ("float32", TWO, B06, Choices(precision="f32"), "vllm 0 | 1 f32"),
    ("a part of the memory each", machine("H200"), B8, Choices(share="memory"), "vllm 0 | 0 bf16 memory"),
    ("one copy did not work", machine("H200"), B8, Choices(without=("base",)), "vllm 0 | 0 bf16 memory"),
    ("one copy on a processor", CORES, B06, Choices(sampler="vllm", share="base"), "vllm cpu:4 | cpu:4 f32 base"),
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
    ("sharing, apart", Choices(share="base", rollout=["gpu 0"], training=["gpu 1"]), ALL, "names different cards"),
    ("one copy in four bits", Choices(share="base", precision="nf4"), ALL, "needs `precision = \"bf16\"`"),
    ("one copy with llama.cpp", Choices(share="base", sampler="llama.cpp"), ALL, "is for vLLM"),
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


def test_a_modest_base_may_be_sampled_by_torch_in_float32() -> None:
    modest = replace(B06, parameters=60_000_000)
    copies = speeds(torch_f32=(1.1, 0.0), llama_f16=(1.0, 0.001))
    assert shape(place(machine(cpu=LAPTOP), NOTHING, modest, copies=copies)) == "torch f32 cpu:2 | cpu:2 f32"


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


def test_bfloat16_is_the_torch_samplers_alone() -> None:
    for kind in ("llama.cpp", "vllm"):
        with pytest.raises(ConfigError, match="is torch's"):
            place(machine(), ALL, B06, Choices(sampler=kind, weights="bf16"))
