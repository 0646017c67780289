"""How many training workers there are: several train several policies at the same time. Pure.

FlexMARL (arXiv 2602.09578) binds devices to agents in the same way. Each worker has a base. All have as many threads,
so that a policy has the same bits on each of them.
"""

from __future__ import annotations

from dataclasses import replace

from ...devices import Place, Placement, TrainerAssignment
from .processor import TRAINER, numbered_name
from .reasons import cores

PAIR = 2
"""Cores of a trainer if the placement decides how many there are. Measured on two cores with the shipped base and short
prompts: a second thread makes a step 1.2 times as fast, a second trainer 1.8 times as many of them; a task that trains
alone is left the second thread."""
MOST = 4
"""Trainers on a processor that the placement makes unasked: each has a base and a program of its own in memory."""


def with_trainers(placement: Placement, asked: int, small: bool, policies: int) -> Placement:
    """The placement with as many trainers in all as are ``asked`` for, or as pay; 0: the placement decides.

    ``small``: the base is so small that a pass gains little by further threads. Each card that trains has a trainer of
    its own while there are as many ``policies``: adapters need no exchange between trainers, and all cards hold the
    base in any case. A trainer that shares a device with a sampler stays the only one.
    """
    first, *_ = trainers = placement.trainers
    counts = [1] * len(trainers)
    total = asked or min(policies, sum(_useful(trainer.place, small) for trainer in trainers))
    while sum(counts) < total and not first.sharing:
        open_ = [n for n, own in enumerate(trainers) if not own.place.gpus or counts[n] < len(own.place.gpus)]
        if not open_:
            break
        counts[max(open_, key=lambda n: len(trainers[n].place.gpus or trainers[n].place.cores) / counts[n])] += 1
    parts = [part for own, count in zip(trainers, counts, strict=True) for part in _parts(own, count)]
    threads = min(len(part.place.cores) or 1 for part in parts)
    parts = [
        replace(part, name=numbered_name(TRAINER, number), place=replace(part.place, cores=part.place.cores[:threads]))
        for number, part in enumerate(parts, 1)
    ]
    sentences = list(placement.reasons)
    if asked > len(parts):
        cards = sum(len(trainer.place.gpus) for trainer in trainers)
        why = f"training has {cards} {'card' if cards == 1 else 'cards'}"
        why = "the trainer shares its device with a sampler" if first.sharing else why
        sentences.append(f"`trainers = {asked}` under [training] cannot be: {why}.")
    if len(parts) > len(trainers):
        sentences.append(_words(parts, asked))
    return replace(placement, trainer=parts[0], more=tuple(parts[1:]), reasons=tuple(sentences))


def _useful(place: Place, small: bool) -> int:
    """Trainers that pay."""
    return len(place.gpus) or (min(MOST, max(1, len(place.cores) // PAIR)) if small else 1)


def _parts(trainer: TrainerAssignment, count: int) -> list[TrainerAssignment]:
    place, parts = trainer.place, []
    for number in range(count):
        gpus = place.gpus[len(place.gpus) * number // count : len(place.gpus) * (number + 1) // count]
        each, many = len(place.cores) // count, len(place.cores)
        own = place.cores[number * each : (number + 1) * each] if count > 1 else place.cores
        if not each and many:  # fewer cores than trainers: they share them
            own = (place.cores[number % many],)
        parts.append(replace(trainer, place=Place(own, gpus, place.memory)))
    return parts


def _words(parts: list[TrainerAssignment], asked: int) -> str:
    place = parts[0].place
    taken = {(part.node, core) for part in parts for core in part.place.cores}
    shared = cores(Place(tuple(range(len(taken)))))
    where = f"with {cores(place)} each" if len(taken) >= len(parts) else f"on {shared} that they share"
    where = "with cards of their own" if place.gpus else where if place.cores else "unpinned"
    why = "for adapters need no exchange between them" if place.gpus else "for a small base gains little by threads"
    why = f"as `trainers = {asked}` under [training] asks for" if asked else why
    return f"{len(parts)} trainers train different policies at the same time, {where}, {why}."
