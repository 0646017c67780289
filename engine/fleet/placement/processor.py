"""Where workers compute on the processor, and which sampler is the faster one there. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ...base import BFLOAT16, FLOAT, GGUF, SMALL, BaseConfig, Wanted, unsupported
from ...devices import Cpu, Place, Placement, Precision, SamplerAssignment, SamplerKind, TrainerAssignment
from ...home import RolloutSettings
from .choices import Choices, Copy, CopySpeed, Times

BFLOAT16_FROM = 3.0
"""How many times as fast as float32 a processor must multiply bfloat16 for a large base to be trained and sampled in
it. Those with AMX reach 5 to 8, and training takes 0.33 to 0.53 of the time (measured on bases 256 to 896 wide). Those
with AVX-512 BF16 alone reach 2.0, a little more or less at each look: training SmolLM2-135M then takes 0.9 of the time,
for six times the gap."""
MODEST = 4 * SMALL
"""Bytes of float32 weights up to which torch in float32 is a candidate, too: 67 million parameters."""
SLOWER = 1.15
"""How many times as long as the fastest copy a more exact one may take; a difference below is noise, or not felt."""


def is_small(parameters: int) -> bool:
    """Whether a base is so small that a card would be busier with starting kernels than with computing them."""
    return FLOAT * parameters <= SMALL


def copies(wanted: Wanted, choices: Choices, cpu: Cpu) -> tuple[Copy, ...]:
    """The copies of the base that the sampler on this processor may keep. The first is used until they are measured.

    llama.cpp's f16 is the usual one of a large base. torch in bfloat16 comes first on processors that multiply bfloat16
    fast: with 64 conversations it is then several times as fast as llama.cpp.
    """
    kind, weights, able = choices.sampler, choices.weights, not unsupported(wanted.config)
    small = is_small(wanted.parameters)
    fast = cpu.rates is not None and cpu.rates.gain >= BFLOAT16_FROM and not small and able
    rounded = (Copy("torch", BFLOAT16),) if weights == BFLOAT16 or (weights == "auto" and fast) else ()
    exact = (Copy("torch", "f32"),)
    if kind == "vllm":
        return (Copy("vllm", "f32"),)
    if kind == "torch" or (kind == "auto" and weights == BFLOAT16):
        return rounded if weights == BFLOAT16 else rounded + exact
    if choices.llama or weights != "auto":
        return (Copy("llama.cpp", ""),)
    if small:
        return exact if kind == "auto" and able else (Copy("llama.cpp", "f32"),)
    llama = (Copy("llama.cpp", "f16"), Copy("llama.cpp", "q8_0"))
    if kind == "llama.cpp" or not able:
        return llama
    return rounded + llama + (exact if FLOAT * wanted.parameters <= MODEST else ())


def best(measured: Sequence[CopySpeed]) -> CopySpeed:
    """The copy with the smallest gap among those that are about as fast as the fastest; at least one is measured."""
    fastest = min(speed.seconds for speed in measured)
    enough = (speed for speed in measured if speed.seconds <= SLOWER * fastest)
    return min(enough, key=lambda speed: (speed.gap, speed.seconds))


def usual_sampler(config: BaseConfig, parameters: int) -> SamplerKind:
    """The faster one for most bases of this size.

    That is torch for bases up to ``SMALL`` that it can compute. One pass over the rows of all versions is then 1.8 to 5
    times as fast as a call of llama.cpp for each, and 1.3 to 1.8 times where that keeps weights of eight bits (bases of
    5 to 55 MB, 64 conversations under 1 to 32 versions); with few conversations of a single version it is slower.
    Copies of larger bases are measured (``copies``).
    """
    return "torch" if is_small(parameters) and not unsupported(config) else "llama.cpp"


def processor_precision(cpu: Cpu, wanted: Wanted, choices: Choices) -> Precision:
    """How a trainer on the processor keeps the base: as the settings say, else as the processor's speed decides.

    A small base stays in float32, in which sampler and trainer agree to 1e-5; it would not be faster in bfloat16.
    """
    if choices.precision != "auto":
        return "bf16" if choices.precision == "bf16" else "f32"
    fast = decides_precision(wanted.parameters, choices.precision) and cpu.rates and cpu.rates.gain >= BFLOAT16_FROM
    return "bf16" if fast else "f32"


def decides_precision(parameters: int, precision: str) -> bool:
    """Whether the precision of a trainer on the processor depends on how fast that is; ``precision`` is as set."""
    return precision == "auto" and not is_small(parameters)


def decides_weights(parameters: int, rollout: RolloutSettings) -> bool:
    """Whether the sampler on the processor, or how it keeps the base, depends on how fast that is."""
    free = rollout.weights == "auto" and not rollout.gguf and not rollout.samplers
    return free and rollout.sampler in ("auto", "torch") and not is_small(parameters)


def processor_sampler(
    name: str, place: Place, wanted: Wanted, choices: Choices, times: Times, cpu: Cpu
) -> SamplerAssignment:
    """A sampler with the measured best copy of the base, or with the usual one of this processor."""
    available = copies(wanted, choices, cpu)
    free = {*available, Copy("llama.cpp", GGUF)} if len(available) > 1 else ()
    measured = [speed for speed in times.copies if speed.copy in free]
    kind, weights = best(measured).copy if measured else available[0]
    return SamplerAssignment(name, kind, place, weights=weights if measured or weights == BFLOAT16 else "")


def allowed(cpu: Cpu) -> tuple[int, ...]:
    """Cores to pin workers to: no more than the processor time that this process may have."""
    return tuple(sorted(cpu.cores))[: max(1, cpu.count)]


SAMPLER, TRAINER = "rollout", "training"
"""Names of the workers; further ones have a number behind theirs."""


def numbered_name(name: str, number: int) -> str:
    """``rollout``, ``rollout-2``, …"""
    return name if number == 1 else f"{name}-{number}"


def spread(cores: Sequence[int], workers: int) -> list[Place]:
    """As many cores for each worker; with fewer cores than workers, workers share them."""
    many = len(cores)
    if many <= workers:
        return [Place((cores[number % many],) if many else ()) for number in range(workers)]
    bounds = [many * number // workers for number in range(workers + 1)]
    return [Place(tuple(cores[a:b])) for a, b in pairwise(bounds)]


def halves(cores: Sequence[int], samplers: int = 1) -> tuple[list[Place], Place]:
    """Half of the cores for the samplers, half for the trainer, one thread for each core.

    Spinning threads that share a core are ten times slower and more. With fewer cores than workers, each sampler has
    one, and the trainer's only thread is not pinned; on a single core no worker is.
    """
    if len(cores) < 2:
        return [Place()] * samplers, Place()
    if len(cores) <= samplers:
        return spread(cores, samplers), Place()
    half = max(samplers, len(cores) // 2)
    return spread(cores[:half], samplers), Place(tuple(cores[half:]))


def on_cores(kinds: Sequence[SamplerKind], cores: Sequence[int]) -> Placement:
    """These samplers and a trainer on the processor."""
    places, rest = halves(cores, len(kinds))
    samplers = tuple(
        SamplerAssignment(numbered_name(SAMPLER, number), kind, place)
        for number, (kind, place) in enumerate(zip(kinds, places, strict=True), 1)
    )
    return Placement(samplers, TrainerAssignment(TRAINER, rest))
