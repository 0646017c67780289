"""When a card moves from one stage to the other: what both did flows in, now and then a better placement flows out.

A pure state machine. Work for each trained token is learnt from the time that cards were busy, in units of one
reference card, so that it stays the same when cards move. A move must be worth more than it costs for the time that it
is expected to last, must have looked so for a while, and comes no sooner than some time after the one before: a load
that wavers moves nothing. Carries nothing out, and knows no process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...devices import Machine, Place, Placement
from .asked import Times
from .division import apart_speed, shared_speed
from .speed import rates_of, sampling_speed, training_speed

HALF_LIFE = 600.0
"""Seconds after which what was seen counts half."""
ENOUGH = 300.0
"""Seconds that must have been seen, and for which a move must have looked worth while."""
WORTH = 0.15
"""Of the speed, that a move must gain."""
DWELL = 900.0
"""Seconds between two moves, at least."""
LASTS = 1800.0
"""Seconds for which a gain is taken to last: tasks end, and others begin."""
MOST = 20.0
"""How many times as long as the other a stage is taken to be at most: beyond that it was hardly seen."""


@dataclass(frozen=True)
class Window:
    """What both stages did in a stretch of time."""

    seconds: float
    tokens: float
    """Trained on."""
    sampling: float
    """Seconds in which cards sampled, added up by ``card_seconds``."""
    training: float
    """Likewise."""


@dataclass(frozen=True)
class Balance:
    """What was seen, and since when a move looks worth while."""

    restart: float
    """Seconds in which nothing is done while workers start anew, as measured."""
    moved: float = 0.0
    """When the present placement began."""
    seen: Window = Window(0.0, 0.0, 0.0, 0.0)
    """All windows, older ones counting less."""
    worth_since: float | None = None
    """Since when the same better placement has been worth its cost."""
    better: tuple[frozenset[str], frozenset[str]] | None = None

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
        """With one more window, and the placement to move to, if it is time. ``now`` in seconds of any clock.

        ``place`` says where everything would go at such times. Whoever moves calls ``begun`` of the state next.
        """
        state = replace(self, seen=_together(self.seen, window))
        times = state.times
        if times is None or modelled(present, machine, times) <= 0:
            return replace(state, worth_since=None, better=None), None
        other = place(times)
        gain = modelled(other, machine, times) / modelled(present, machine, times) - 1
        if cards(other) == cards(present) or gain < WORTH or gain * LASTS <= (1 + gain) * self.restart:
            return replace(state, worth_since=None, better=None), None
        if state.better != cards(other):
            state = replace(state, worth_since=now, better=cards(other))
        waited = now - (state.worth_since if state.worth_since is not None else now)
        due = waited >= ENOUGH and now - state.moved >= DWELL
        return state, other if due else None

    def begun(self, now: float, restart: float | None = None) -> Balance:
        """A placement begins at ``now``, after ``restart`` seconds of starting where that was measured."""
        cost = self.restart if restart is None else restart
        return replace(self, moved=now, worth_since=None, better=None, restart=cost)


def card_seconds(place: Place, machine: Machine, busy: float, stage: str) -> float:
    """Seconds of a reference card that ``busy`` seconds of a worker's cards stand for; ``stage`` is its name."""
    speed = sampling_speed if stage == "rollout" else training_speed
    return busy * sum(speed(rates_of(gpu, machine.gpus)) for gpu in machine.gpus if gpu.uuid in place.gpus)


def cards(placement: Placement) -> tuple[frozenset[str], frozenset[str]]:
    """Those that sample, and those that train."""
    return frozenset(uuid for assignment in placement.samplers for uuid in assignment.place.gpus), frozenset(
        placement.trainer.place.gpus
    )


def modelled(placement: Placement, machine: Machine, times: Times) -> float:
    """How fast a placement is, in trained tokens a second at these times; 0 where a stage is on no card."""
    sampling, training = cards(placement)
    rates = {gpu.uuid: rates_of(gpu, machine.gpus) for gpu in machine.gpus}
    if not sampling or not training or not sampling | training <= set(rates):
        return 0.0
    if sampling & training:
        (shared,) = training
        others = [sampling_speed(rates[uuid]) for uuid in sorted(sampling - training)]
        return shared_speed(sampling_speed(rates[shared]), training_speed(rates[shared]), others, times)
    speeds = [sampling_speed(rates[uuid]) for uuid in sorted(sampling)]
    return apart_speed(speeds, [training_speed(rates[uuid]) for uuid in sorted(training)], times)


def _together(before: Window, window: Window) -> Window:
    kept = 0.5 ** (window.seconds / HALF_LIFE)
    return Window(
        kept * before.seconds + window.seconds,
        kept * before.tokens + window.tokens,
        kept * before.sampling + window.sampling,
        kept * before.training + window.training,
    )
