"""Whether the processor samples beside samplers on cards, with what and where. Pure.

It costs a part of the cores, and each version is published and compared at one sampler more. So by default it does so
where the measured rates say that it adds enough; `devices` under [rollout] asks for it, or for cards alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...base import FLOAT, SAMPLERS, Wanted
from ...devices import Cpu, Machine, Place, SamplerKind
from .cards import Card
from .limits import least_beside
from .processor import copies, halves
from .room import CROWD, llama_room
from .speed import rates_of_cores, sampled_per_second
from .wishes import Choices, Times, Wishes

LEAST_GAIN = 0.1
"""Share of the cards' sampling speed that the processor must add to be used unasked: as much as the router asks for
before it moves a policy."""
ROWS = 32
"""Conversations that a processor is taken to sample in one pass: more take as long again."""


@dataclass(frozen=True)
class Beside:
    """What the processor is to do beside cards that sample."""

    kind: SamplerKind | None = None
    """The sampler on the processor; None: there is none."""
    place: Place = field(default_factory=Place)
    rest: Place = field(default_factory=Place)
    """The other cores: a trainer on the processor has these."""
    gain: float | None = None
    """The share of the cards' sampling speed that it adds; None where the rates are not known."""
    lacks: str = ""
    """What it has too little of, in words, where it would gain enough."""


def beside(
    machine: Machine, on: Sequence[Card], wanted: Wanted, choices: Choices, times: Times, wishes: Wishes, trains: bool
) -> Beside:
    """What the processor does beside the cards ``on``, each of which samples; ``trains``: whether it trains, too."""
    if not on or wishes.beside is False:
        return Beside()
    unrated = replace(machine.cpu, rates=None)  # copies are not measured next to cards
    kind = copies(wanted, replace(choices, sampler=choices.beside or "auto"), unrated)[0].sampler
    place, rest = halves(machine.cpu)
    gain = _gain(machine.cpu, len(place.cores), kind, on, wanted)
    if wishes.beside:
        return Beside(kind, place, rest, gain)
    if gain is None or gain < LEAST_GAIN:
        return Beside(gain=gain)
    if not place.cores:
        return Beside(gain=gain, lacks="cores")
    if least_beside(wanted, kind, trains) > machine.cpu.memory:
        return Beside(gain=gain, lacks="main memory")
    return Beside(kind, place, rest, gain)


def _gain(cpu: Cpu, cores: int, kind: SamplerKind, on: Sequence[Card], wanted: Wanted) -> float | None:
    if cpu.rates is None or any(card.gpu.rates is None for card in on):
        return None
    rates = rates_of_cores(cpu, cores)
    room = llama_room(wanted, "f16")
    weights = room.weights if SAMPLERS[kind].gguf else FLOAT * wanted.parameters
    own = sampled_per_second(rates, wanted.parameters, weights, ROWS, room.each)
    return own / sum(_speed(card, wanted) for card in on)


def _speed(card: Card, wanted: Wanted) -> float:
    _, room = card.samplers[0]
    conversations = max(1, min(CROWD, room.conversations(card.usable)))
    return sampled_per_second(card.rates, wanted.parameters, room.weights, conversations, room.each)
