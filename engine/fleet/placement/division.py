"""Several cards: which sample and which train, in proportion to how long the stages take. Pure.

Chosen is the division that trains on the most tokens. Cards stand in a row from those that are better at sampling to
those that are better at training, and the row is cut where the slower stage is fastest (cards with much bandwidth
sample, cards with much arithmetic train).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from .cards import Card
from .speed import sampling_speed, training_speed
from .wishes import Times

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
