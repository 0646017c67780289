"""How one card serves both sampler and trainer: with one copy of the base, a part of the memory each, or in turns.

Pure arithmetic; its constants were read in sources, not measured on a card.

One copy takes the least and is the fastest wherever vLLM keeps the base as the trainer reads it. Where it must not be,
two copies leave less room for conversations; where that makes passes so short that reading the weights dominates,
taking turns is faster in spite of what it moves between card and main memory at each turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...base import ENOUGH, LEAST, Wanted, unsupported
from ...devices import Machine, Precision, Rates, SamplerKind, Sharing
from .cards import Card
from .room import CROWD, PROGRAM, SamplerRoom, TrainerRoom, context_of
from .speed import BUS, REACHED, READ, sampled_per_second, trained_per_second
from .wishes import Choices

GAIN = 1.2
"""How many times as fast taking turns must be to be preferred: it holds up all replies that are being sampled."""


@dataclass(frozen=True)
class Way:
    """One way to share a card."""

    sharing: Sharing
    kind: SamplerKind
    precision: Precision
    stored: str
    """How the sampler keeps the base."""
    sampler: int
    """Bytes of the card that the sampler may take; its base is among them."""
    trainer: int
    """Bytes that the trainer may take, beside the sampler's; where they take turns, each has most of the card."""
    conversations: int
    rate: float
    """Tokens a second that are sampled and trained on, as modelled."""


def ways(card: Card, machine: Machine, wanted: Wanted, choices: Choices) -> list[Way]:
    """All ways that fit and are allowed, the best first; those with a base in four bits come last."""
    found: list[Way] = []
    for kind, sampler in card.samplers:
        for precision, trainer in card.trainers:
            for way in _ways(card, machine, wanted, (kind, sampler), (precision, trainer)):
                if choices.share in ("auto", way.sharing) and way.sharing not in choices.without:
                    found.append(replace(way, rate=_rate(way, card.rates, wanted, sampler, trainer)))
    rooms = [room.stored for _, room in card.samplers]

    def place(way: Way) -> tuple[bool, bool, bool, int, float]:
        llama, few = way.kind == "llama.cpp", way.conversations < ENOUGH
        stored = -way.conversations if few else rooms.index(way.stored)
        handicap = GAIN if way.sharing == "sleep" else 1.0
        return llama, way.precision == "nf4", llama and few, stored if llama else 0, -way.rate / handicap

    return sorted(found, key=place)


def _ways(
    card: Card,
    machine: Machine,
    wanted: Wanted,
    sampled: tuple[SamplerKind, SamplerRoom],
    trained: tuple[Precision, TrainerRoom],
) -> Iterator[Way]:
    (kind, sampler), (precision, trainer) = sampled, trained
    room = card.usable

    def way(sharing: Sharing, least: int, good: int, most: int) -> Iterator[Way]:
        """The way with ``least`` to ``good`` bytes for the trainer, of ``most`` for both, if that leaves enough."""
        spare = most - sampler.fixed - CROWD * sampler.each
        given = max(least, min(good, spare))
        memory = sampler.of_use(most - given)
        conversations = sampler.conversations(memory)
        if conversations >= LEAST:
            yield Way(sharing, kind, precision, sampler.stored, memory, given, conversations, 0.0)

    if kind == "vllm" and precision == "bf16" and not unsupported(wanted.config):
        beside = trainer.base + PROGRAM
        yield from way("base", trainer.beside, trainer.good - beside, room)
    if card.gpu.mode != "exclusive":
        yield from way("memory", trainer.least, trainer.good, room)
    if kind == "vllm" and precision != "nf4" and sampler.weights + trainer.base <= machine.cpu.memory:
        asleep = trainer.beside  # its policies stay on the card
        memory = sampler.of_use(room - asleep)
        conversations = sampler.conversations(memory)
        given = room - (sampler.fixed - sampler.weights)  # keys, values and weights go, the rest stays
        if conversations >= LEAST and given >= trainer.least:
            given = min(given, max(trainer.good, trainer.least))
            yield Way("sleep", kind, precision, sampler.stored, memory, given, conversations, 0.0)


def _rate(way: Way, rates: Rates, wanted: Wanted, sampler: SamplerRoom, trainer: TrainerRoom) -> float:
    """Tokens a second through both stages in turn, with what goes over the bus for each wave of conversations."""
    sampled = sampled_per_second(rates, wanted.parameters, sampler.weights, way.conversations, sampler.each)
    seconds = 1 / sampled + 1 / trained_per_second(rates, wanted.parameters)
    if way.sharing == "sleep":
        wave = way.conversations * context_of(wanted) / 2
        moved = 2 * sampler.weights + trainer.base  # the sampler's go and come back, the trainer's are copies
        seconds += moved / BUS / wave
        seconds += READ * wanted.parameters / (REACHED * rates.matrix)  # keys and values are computed anew
    return 1 / seconds
