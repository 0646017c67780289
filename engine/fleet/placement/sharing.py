"""How cards are divided among samplers and trainers, how one serves both, what the processor adds."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ...base import ENOUGH, FLOAT, LEAST, SAMPLERS, Wanted, unsupported
from ...devices import Cpu, Machine, Place, Placement, Precision, Rates, SamplerKind, Sharing, TrainerAssignment
from .capacity import (
    BUS,
    CROWD,
    PROGRAM,
    REACHED,
    READ,
    Card,
    SamplerRoom,
    TrainerRoom,
    context_of,
    llama_room,
    rates_of_cores,
    sampled_per_second,
    sampling_speed,
    trained_per_second,
    training_speed,
)
from .limits import least_beside
from .processor import copies, halves
from .wishes import Choices, Times, Wishes
from .words import cores

# Several cards: which sample and which train, in proportion to how long the stages take. Pure.
#
# Chosen is the division that trains on the most tokens. Cards stand in a row from those that are better at sampling
# to those that are better at training, and the row is cut where the slower stage is fastest (cards with much
# bandwidth sample, cards with much arithmetic train).

GAIN = 2.0
"""How many times as fast a division in which one card serves both stages must be to be preferred to one that keeps the
stages apart: workers on one card hold each other up in ways that this arithmetic does not know."""
DISTURBED = 0.5
"""Share of its sampling speed that a card keeps beside a trainer."""


@dataclass(frozen=True)
class Worth:
    """A card, and how fast it is at both stages; 0 where it cannot, or may not, do them."""

    card: Card
    sampling: float
    training: float

    @property
    def leaning(self) -> float:
        """Speed at training over speed at sampling: cards are ordered by it."""
        if not self.sampling or not self.training:
            return math.inf if self.training else 0.0
        return self.training / self.sampling


@dataclass(frozen=True)
class Division:
    """Which cards sample, and which train."""

    rollout: tuple[Card, ...]
    """A card that also trains comes first."""
    training: tuple[Card, ...]
    speed: float
    """Speed of the slower stage; above 0."""
    apart: float = 0.0
    """The best ``speed`` of a division in which no card does both; 0 where there is none."""

    @property
    def shared(self) -> Card | None:
        """The card that does both."""
        return next((card for card in self.training if card in self.rollout), None)


def worth_of(card: Card, samples: bool, trains: bool) -> Worth:
    """A card's speeds, where it may sample and train."""
    return Worth(
        card,
        sampling_speed(card.rates) if samples and card.samplers else 0.0,
        training_speed(card.rates) if trains and card.trainers else 0.0,
    )


def divide(
    worths: Sequence[Worth], times: Times, shareable: Collection[str], together: bool = False
) -> Division | None:
    """The best division, or None where no cards are left for one of the stages.

    ``shareable`` are the ids of cards on which sampler and trainer fit together; ``together`` says that one of them
    must do both. Else one card does both where the stages cannot be kept apart, or where that is ``GAIN`` times as
    fast, as it is where the other card is far weaker.
    """
    apart = None if together else max(_apart(worths, times), key=_best, default=None)
    both = max(_both(worths, times, shareable), key=_best, default=None)
    if apart is None or both is None:
        return apart or both
    return replace(both, apart=apart.speed) if both.speed > GAIN * apart.speed else apart


def apart_speed(sampling: Sequence[float], training: Sequence[float], times: Times) -> float:
    """Speed of the slower stage, where each has cards of its own with these speeds."""
    return min(sum(sampling) / times.sampling, sum(training) / times.training)


def shared_speed(sampling: float, training: float, others: Sequence[float], times: Times) -> float:
    """Speed of both stages, where one card trains and, for the rest of its time, samples beside ``others``."""
    kept = DISTURBED * sampling if others else sampling
    return (sum(others) + kept) / (times.sampling + kept * times.training / training)


def _best(division: Division) -> tuple[float, int]:
    return division.speed, len(division.rollout)


def _apart(worths: Sequence[Worth], times: Times) -> Iterator[Division]:
    row = sorted(worths, key=lambda worth: (worth.leaning, worth.card.gpu.index, worth.card.gpu.uuid))
    for cut in range(1, len(row)):
        rollout = [worth for worth in row[:cut] if worth.sampling]
        training = _one_process([worth for worth in row[cut:] if worth.training])
        if rollout and training:
            speeds = [worth.sampling for worth in rollout], [worth.training for worth in training]
            speed = apart_speed(*speeds, times)
            yield Division(_cards(rollout), _cards(training), speed)


def _both(worths: Sequence[Worth], times: Times, shareable: Collection[str]) -> Iterator[Division]:
    for worth in worths:
        if worth.sampling and worth.training and worth.card.gpu.uuid in shareable:
            others = [other for other in worths if other is not worth and other.sampling]
            speed = shared_speed(worth.sampling, worth.training, [other.sampling for other in others], times)
            yield Division((worth.card, *_cards(others)), (worth.card,), speed)


def _one_process(worths: Sequence[Worth]) -> list[Worth]:
    """Cards that one trainer may have: of the parts of a divided card (MIG), a process can use only one."""
    parts = [worth for worth in worths if worth.card.gpu.part is not None]
    whole = [worth for worth in worths if worth.card.gpu.part is None]
    best = max(parts, key=lambda worth: worth.training, default=None)
    if best is None or sum(worth.training for worth in whole) >= best.training:
        return whole
    return [best]


def _cards(worths: Sequence[Worth]) -> tuple[Card, ...]:
    return tuple(sorted((worth.card for worth in worths), key=lambda card: (card.gpu.index, card.gpu.uuid)))


# How one card serves both sampler and trainer: with one copy of the base, a part of the memory each, or in turns.
#
# Pure arithmetic; its constants were read in sources, not measured on a card.
#
# One copy takes the least and is the fastest wherever vLLM keeps the base as the trainer reads it. Where it must not
# be, two copies leave less room for conversations; where that makes passes so short that reading the weights
# dominates, taking turns is faster in spite of what it moves between card and main memory at each turn.

TURNS_GAIN = 1.2
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
        handicap = TURNS_GAIN if way.sharing == "sleep" else 1.0
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


# Whether the processor samples beside samplers on cards, with what and where. Pure.
#
# It costs a part of the cores, and each version is published and compared at one sampler more. So by default it does
# so where the measured rates say that it adds enough; `devices` under [rollout] asks for it, or for cards alone.

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


# How many training workers there are: one, or the place of one divided among several, each with a base of its own.
#
# Several train several policies at the same time (FlexMARL, arXiv 2602.09578, binds devices to agents). All have as
# many threads, so that a policy has the same bits wherever it is trained. Pure.

PAIR = 2
"""Cores of a trainer where the placement decides how many there are. Measured on two cores with the shipped base and
short prompts: a second thread makes a step 1.2 times as fast, a second trainer 1.8 times as many of them; a task that
trains alone is left the second thread."""
MOST = 4
"""Trainers that the placement makes by itself: each has a base and a program of its own in memory."""


def with_trainers(placement: Placement, asked: int, small: bool, policies: int) -> Placement:
    """The same placement with as many trainers as are ``asked`` for, or as pay; 0: the placement decides.

    ``small`` says whether the base is so small that a pass gains little by further threads. Where cards train, each has
    a trainer of its own, as long as there are as many ``policies``: adapters need no exchange between trainers, and all
    cards hold the base in any case. A trainer that shares a card with a sampler stays alone.
    """
    trainer = placement.trainer
    count, why = _count(trainer, asked, small, policies)
    parts = tuple(_parts(trainer, count))
    said = [*placement.reasons, *([why] if why else [])]
    if count > 1:
        said.append(_words(parts, asked))
    return replace(placement, trainer=parts[0], more=parts[1:], reasons=tuple(said))


def _count(trainer: TrainerAssignment, asked: int, small: bool, policies: int) -> tuple[int, str]:
    """How many, and why not as many as were asked for."""
    place, wish = trainer.place, f"`trainers = {asked}` under [training]"
    if trainer.sharing:
        why = f"{wish} cannot be: the trainer shares its device with a sampler." if asked > 1 else ""
        return 1, why
    if place.gpus:
        count = min(asked or max(1, policies), len(place.gpus))
        have = "1 card" if len(place.gpus) == 1 else f"{len(place.gpus)} cards"
        return count, f"{wish} cannot be: training has {have}." if count < asked else ""
    return asked or (min(MOST, max(1, len(place.cores) // PAIR)) if small else 1), ""


def _parts(trainer: TrainerAssignment, count: int) -> Iterator[TrainerAssignment]:
    place = trainer.place
    for number in range(count):
        name = trainer.name if number == 0 else f"{trainer.name}-{number + 1}"
        gpus = place.gpus[len(place.gpus) * number // count : len(place.gpus) * (number + 1) // count]
        own = place if count == 1 else Place(_cores(place.cores, number, count), gpus, place.memory)
        yield replace(trainer, name=name, place=own)


def _cores(every: tuple[int, ...], number: int, count: int) -> tuple[int, ...]:
    """As many for each trainer; one that they share where there are fewer cores than trainers."""
    each = len(every) // count
    if each:
        return every[number * each : (number + 1) * each]
    return (every[number % len(every)],) if every else ()


def _words(parts: tuple[TrainerAssignment, ...], asked: int) -> str:
    first = parts[0].place
    taken = {core for part in parts for core in part.place.cores}
    if first.gpus:
        where = "with cards of their own"
    elif not first.cores:
        where = "unpinned"
    elif len(taken) < len(parts):
        where = f"on {cores(Place(tuple(taken)))} that they share"
    else:
        where = f"with {cores(first)} each"
    why = "for adapters need no exchange between them" if first.gpus else "for a small base gains little by threads"
    why = f"as `trainers = {asked}` under [training] asks for" if asked else why
    return f"{len(parts)} trainers train different policies at the same time, {where}, {why}."
