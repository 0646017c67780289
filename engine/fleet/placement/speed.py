"""How fast cards are at each stage, from their measured rates: relative numbers, for comparing cards. Pure.

Training and reading prompts take arithmetic, writing replies reads the weights again and again. The unit is a card of
``REFERENCE``; what the arithmetic leaves out is the same for all cards, as far as it goes.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...devices import Cpu, Gpu, Rates

REFERENCE = Rates(matrix=100e12, bandwidth=1e12)
CORE = Rates(matrix=50e9, bandwidth=10e9)
"""A core that is not measured."""
FILLING = 4
"""Cores that are taken to have all of the memory's bandwidth: it is measured for one core alone."""
WRITING = 0.8
"""Share of a reference card's sampling time in which it writes replies, which is bound by bandwidth."""
BUS = 20e9
"""Bytes a second between main memory and a card; PCIe 4.0 with 16 lanes reaches a little more."""
LAUNCHES = 3e-3
"""Seconds that every pass of a sampler takes, whatever it computes."""
REACHED = 0.4
"""Share of the matrix rate that training reaches."""
TRAINED, READ = 8, 2
"""Operations per token and weight: in training (forwards, backwards, forwards once more), and in reading a prompt."""


def rates_of(gpu: Gpu, gpus: Sequence[Gpu]) -> Rates:
    """A card's measured rates; for one that is not measured the lowest of the others', else the reference."""
    if gpu.rates is not None:
        return gpu.rates
    known = [other.rates for other in gpus if other.rates is not None]
    if not known:
        return REFERENCE
    return Rates(min(rates.matrix for rates in known), min(rates.bandwidth for rates in known))


def rates_of_cores(cpu: Cpu, count: int) -> Rates:
    """Rates of so many cores, from the measured ones of one, or those of the usual core."""
    core, count = cpu.rates or CORE, max(1, count)
    return Rates(count * core.matrix, min(count, FILLING) * core.bandwidth)


def sampling_speed(rates: Rates) -> float:
    """Speed at sampling, as a multiple of a reference card's."""
    reading = (1 - WRITING) * REFERENCE.matrix / rates.matrix
    return 1 / (reading + WRITING * REFERENCE.bandwidth / rates.bandwidth)


def training_speed(rates: Rates) -> float:
    """Speed at training, as a multiple of a reference card's."""
    return rates.matrix / REFERENCE.matrix


def sampled_per_second(rates: Rates, parameters: int, weights: int, conversations: int, each: int) -> float:
    """Sampled tokens a second of ``conversations`` half-grown conversations; ``each``: bytes of one at its longest."""
    reading = (weights + conversations * each / 2) / rates.bandwidth
    computing = READ * parameters * conversations / (REACHED * rates.matrix)
    return conversations / (LAUNCHES + reading + computing)


def trained_per_second(rates: Rates, parameters: int) -> float:
    """Trained tokens a second, where batches are long."""
    return REACHED * rates.matrix / (TRAINED * parameters)
