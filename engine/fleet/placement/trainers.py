"""How many training workers there are: one, or the place of one divided among several, each with a base of its own.

Several train several policies at the same time (FlexMARL, arXiv 2602.09578, binds devices to agents). All have as many
threads, so that a policy has the same bits wherever it is trained. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...devices import Place, Placement, TrainerAssignment
from .words import cores

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
