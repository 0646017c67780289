"""When a card moves from one stage to the other, by how busy both stages were. A pure state machine.

Work for each trained token is learnt from the time that cards were busy, in units of one reference card, so that it
stays the same when cards move. A move must be worth more than it costs over the time that it is expected to last, must
have looked so for a while, and comes no sooner than some time after the one before: a load that wavers moves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...devices import Machine, Place, Placement
from .capacity import rates_of, sampling_speed, training_speed
from .sharing import apart_speed, shared_speed
from .wishes import Times

HALF_LIFE = 600.0
"""Seconds after which a window counts half."""
ENOUGH = 300.0
"""Seconds of windows that are needed, and for which a move must have looked worth while."""
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
    """The windows so far, and since when a move looks worth while."""

    restart: float
    """Measured seconds in which nothing is done while workers start anew."""
    moved: float = 0.0
    """When the present placement began."""
    seen: Window = Window(0.0, 0.0, 0.0, 0.0)
    """The sum of all windows, older ones counting less."""
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
        """The state after one more window, and the placement to move to, if it is time. ``now`` is in seconds.

        ``place`` makes a placement for given times of the stages. After a move, call ``begun`` of the returned state.
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
        """The state after a placement began at ``now``; ``restart``: measured seconds of starting it."""
        cost = self.restart if restart is None else restart
        return replace(self, moved=now, worth_since=None, better=None, restart=cost)


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
    """Modelled speed of a placement in trained tokens a second at these times; 0 where a stage is on no card."""
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
