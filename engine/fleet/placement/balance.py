"""When a card moves from one stage to the other, by how busy both stages were. A pure state machine.

Work for each trained token is learnt from the time that cards were busy, in units of one reference card, so that it
stays the same when cards move. A move must be worth more than it costs over the time that it is expected to last, and
comes no sooner than some time after the one before. Older windows count less: a load that wavers moves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...devices import Machine, Place, Placement
from .capacity import rates_of, sampling_speed, training_speed
from .choices import Times

HALF_LIFE = 600.0
"""Seconds after which a window counts half."""
ENOUGH = 300.0
"""Seconds of windows that are needed."""
WORTH = 0.15
"""Share of the speed that a move must gain."""
DWELL = 900.0
"""Seconds between two moves, at least."""
LASTS = 1800.0
"""Seconds for which a gain is taken to last: tasks end, and others begin."""
MOST = 20.0
"""Largest ratio of the stages' times that is believed: beyond that the shorter one was hardly measured."""


@dataclass(frozen=True)
class Window:
    """What both stages did in a stretch of time."""

    seconds: float
    tokens: float
    """Tokens trained on."""
    sampling: float
    """Seconds of a reference card in which cards sampled, as ``card_seconds`` counts them."""
    training: float
    """The same for training."""


@dataclass(frozen=True)
class Balance:
    """The windows so far, and when the cards moved last."""

    restart: float
    """Measured seconds in which nothing is done while workers start again."""
    moved: float = 0.0
    """When the present placement began."""
    seen: Window = Window(0.0, 0.0, 0.0, 0.0)
    """The sum of all windows, older ones counting less."""

    @property
    def times(self) -> Times | None:
        """Work of both stages for a token, or None until enough was seen."""
        seen = self.seen
        if seen.seconds < ENOUGH or seen.tokens <= 0 or seen.sampling + seen.training <= 0:
            return None
        least = (seen.sampling + seen.training) / MOST
        return Times(max(seen.sampling, least) / seen.tokens, max(seen.training, least) / seen.tokens, measured=True)

    def after(
        self, window: Window, now: float, present: Placement, machine: Machine, place: Callable[[Times], Placement]
    ) -> tuple[Balance, Placement | None]:
        """The state after one more window, and the placement to move to, if it is time. ``now`` is in seconds.

        ``place`` makes a placement for given times of the stages. After a move, call ``begun`` of the returned state.
        """
        state = replace(self, seen=_together(self.seen, window))
        times = state.times
        before = modelled(present, machine, times) if times else 0.0
        if times is None or before <= 0 or now - state.moved < DWELL:
            return state, None
        other = place(times)
        gain = modelled(other, machine, times) / before - 1
        worth = gain >= WORTH and gain * LASTS > (1 + gain) * self.restart
        return state, other if worth and cards(other) != cards(present) else None

    def begun(self, now: float, restart: float | None = None) -> Balance:
        """The state after a placement began at ``now``; ``restart``: measured seconds of starting it."""
        return replace(self, moved=now, restart=self.restart if restart is None else restart)


def card_seconds(place: Place, machine: Machine, busy: float, stage: str) -> float:
    """``busy`` seconds of a worker's cards at a stage, in seconds of a reference card."""
    speed = sampling_speed if stage == "rollout" else training_speed
    return busy * sum(speed(rates_of(gpu, machine.gpus)) for gpu in machine.gpus if gpu.uuid in place.gpus)


def cards(placement: Placement) -> tuple[frozenset[str], frozenset[str]]:
    """Ids of the cards that sample, and of those that train."""
    return frozenset(uuid for assignment in placement.samplers for uuid in assignment.place.gpus), frozenset(
        uuid for assignment in placement.trainers for uuid in assignment.place.gpus
    )


def modelled(placement: Placement, machine: Machine, times: Times) -> float:
    """Trained tokens a second at these times, with the cards' speeds; 0 unless each stage has cards of its own."""
    sampling, training = cards(placement)
    rates = {gpu.uuid: rates_of(gpu, machine.gpus) for gpu in machine.gpus}
    if not sampling or not training or sampling & training or not sampling | training <= set(rates):
        return 0.0
    sampled = math.fsum(sampling_speed(rates[uuid]) for uuid in sampling)
    return min(sampled / times.sampling, math.fsum(training_speed(rates[uuid]) for uuid in training) / times.training)


def _together(before: Window, window: Window) -> Window:
    kept = 0.5 ** (window.seconds / HALF_LIFE)
    return Window(
        kept * before.seconds + window.seconds,
        kept * before.tokens + window.tokens,
        kept * before.sampling + window.sampling,
        kept * before.training + window.training,
    )
