"""Where workers compute on the processor, and which sampler is the faster one there. Pure."""

from __future__ import annotations

from ...base import FLOAT, SMALL, BaseConfig, Wanted, unsupported
from ...devices import Cpu, Place, SamplerKind
from .asked import Choices, Times


def is_small(parameters: int) -> bool:
    """Whether a base is so small that a card would be busier with starting kernels than with computing them."""
    return FLOAT * parameters <= SMALL


def processor_sampler(wanted: Wanted, choices: Choices, times: Times) -> SamplerKind:
    """The sampler that is named, else the one that was measured to be faster, else the usual one."""
    if choices.sampler == "vllm":
        return "vllm"
    if choices.sampler == "torch":
        return "torch"
    if choices.sampler == "llama.cpp" or choices.llama or unsupported(wanted.config):
        return "llama.cpp"
    measured = dict(times.samplers)
    if "torch" in measured and "llama.cpp" in measured:
        return "torch" if measured["torch"] > measured["llama.cpp"] else "llama.cpp"
    return usual_sampler(wanted.config, wanted.parameters)


def usual_sampler(config: BaseConfig, parameters: int) -> SamplerKind:
    """The faster one for most bases of this size.

    That is torch for bases up to ``SMALL`` that it can compute. One pass over the rows of all versions is then 1.8 to 5
    times as fast as a call of llama.cpp for each, and 1.3 to 1.8 times where that keeps weights of eight bits (bases of
    5 to 55 MB, 64 conversations under 1 to 32 versions); with few conversations of a single version it is slower.
    Larger bases gain by llama.cpp's eight-bit weights.
    """
    return "torch" if is_small(parameters) and not unsupported(config) else "llama.cpp"


def halves(cpu: Cpu) -> tuple[Place, Place]:
    """Places of sampler and trainer: cores of their own where there are two or more, one thread each; else unpinned."""
    cores = allowed(cpu)
    half = len(cores) // 2
    return (Place(cores[:half]), Place(cores[half:])) if half else (Place(), Place())


def together(cpu: Cpu) -> tuple[Place, Place]:
    """Places of sampler and trainer in one process: the same cores."""
    cores = allowed(cpu)
    return Place(cores), Place(cores)


def alone(cpu: Cpu) -> Place:
    """Place of the only worker on the processor: all cores but one, which feeds the cards."""
    cores = allowed(cpu)
    return Place(cores[1:]) if len(cores) > 1 else Place()


def allowed(cpu: Cpu) -> tuple[int, ...]:
    """Cores to pin workers to: no more than the processor time that this process may have."""
    return tuple(sorted(cpu.cores))[: max(1, cpu.count)]
