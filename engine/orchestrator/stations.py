"""From live sampler workers to the stations that tasks use: limits, seats in fair order, precision, what tokens take.

Handles of workers flow in, stations with their tolerances flow out; while they work, their totals flow in and costs
flow out to the router.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

from ..base.fit import MemoryPlan
from ..base.model import BaseModel
from ..base.precision import REPEATABLE
from ..base.soundness import parameters
from ..config import Settings
from ..devices.plan import SamplerPost, TrainerPost
from ..devices.routing import TokenCosts
from ..devices.token_costs import CostMeter, guessed
from ..fairness.line import Line
from ..rollout.protocol import Sampler, SamplerLimits, SamplerStats
from ..rollout.seats import Seats, Waiter
from ..rollout.station import Station
from .tolerance import Tolerance, tolerance_of
from .worker_plan import of_kind, stored_as


class Stations:
    """The stations of one incarnation, in the order of the placement."""

    def __init__(self, stations: Sequence[Station], tolerances: Mapping[str, Tolerance], base: BaseModel) -> None:
        self.by_name = {station.name: station for station in stations}
        self.tolerances = tolerances
        size = parameters(base)
        self._meters = {name: CostMeter(guessed(name, size, 4 * size, None)) for name in self.by_name}

    def costs(self) -> list[TokenCosts]:
        """What a token takes at each of them, as far as is known."""
        return [meter.costs for meter in self._meters.values()]

    @property
    def conversations(self) -> dict[str, int]:
        """That each of them holds at the same time."""
        return {name: station.seats.count for name, station in self.by_name.items()}

    async def stats(self, patience: float) -> dict[str, SamplerStats]:
        """Their totals, of those that answer within ``patience`` seconds."""
        asked = await asyncio.gather(*(self._ask(station, patience) for station in self.by_name.values()))
        return dict(answer for answer in asked if answer is not None)

    async def _ask(self, station: Station, patience: float) -> tuple[str, SamplerStats] | None:
        with contextlib.suppress(Exception):  # a dying worker is the crew's business
            async with asyncio.timeout(patience):  # Python 3.11's wait_for may swallow what is to end the caller
                stats = await station.sampler.stats()
            meter = self._meters[station.name]
            self._meters[station.name] = meter.seen(stats.prefilled_tokens, stats.sampled_tokens, stats.busy_seconds)
            return station.name, stats
        return None


def open_station(
    sampler: Sampler, limits: SamplerLimits, post: SamplerPost, stored: str, line: Line[Waiter]
) -> Station:
    """A station over a live worker, whose matrices are ``stored`` so; turns wait for its seats in ``line``."""
    seats = Seats(limits.sequences, line)
    return Station(post.name, post.kind, sampler, limits.context, seats, repeats(post, stored))


def repeats(post: SamplerPost, stored: str) -> bool:
    """Whether a sampler says the same to the last bit whatever else it is asked: neither a card's do, nor vLLM's."""
    return post.kind != "vllm" and not post.place.gpus and stored in REPEATABLE


def precision(
    base: BaseModel, settings: Settings, post: SamplerPost, memory: MemoryPlan, trainer: TrainerPost | None = None
) -> tuple[str, Tolerance]:
    """How a sampler keeps the base's matrices, and how far it may be from the trainer for it."""
    own = of_kind(settings, post.kind)
    stored = stored_as(base, own, memory)
    exact = not post.place.gpus and (trainer is None or (trainer.precision == "f32" and not trainer.place.gpus))
    return stored, tolerance_of(own.rollout, stored, exact)
