"""From live sampler workers to the stations that tasks use: limits, seats in fair order, precision, what tokens take.

Handles of workers flow in, stations with their tolerances flow out; while they work, their totals flow in and costs
flow out to the router.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...base.fit import MemoryPlan
from ...base.model import BaseModel
from ...base.precision import REPEATABLE
from ...base.soundness import parameters
from ...devices.machine import Machine
from ...devices.plan import SamplerPost, TrainerPost
from ...fairness.line import Line
from ...home.settings import Settings
from ...rollout.endpoint import Station
from ...rollout.protocol import Sampler, SamplerLimits, SamplerStats
from ...rollout.slots import Seats, Waiter
from ..tolerance import Tolerance, tolerance_of
from ..worker_specs import of_kind, stored_as
from .assignment import TokenCosts
from .token_costs import CostMeter, guessed


class Stations:
    """The stations of one incarnation, in the order of the placement."""

    def __init__(self, stations: Sequence[Station], tolerances: Mapping[str, Tolerance], base: BaseModel) -> None:
        self.by_name = {station.name: station for station in stations}
        self.tolerances = tolerances
        size = parameters(base)
        self._known: dict[str, SamplerStats] = {}
        """By station, as it has last answered."""
        self._classes = {station.name: station.alike or station.name for station in stations}
        self._meters = {name: CostMeter(guessed(name, size, 4 * size, None)) for name in self._classes.values()}
        """One for all that are alike: one that is asked little has few conversations in each of its passes, would
        therefore look slow, and be asked even less."""

    def costs(self) -> list[TokenCosts]:
        """What a token takes at each of them, as far as is known."""
        return [replace(self._meters[alike].costs, name=name) for name, alike in self._classes.items()]

    @property
    def conversations(self) -> dict[str, int]:
        """That each of them holds at the same time."""
        return {name: station.seats.count for name, station in self.by_name.items()}

    async def stats(self, patience: float) -> dict[str, SamplerStats]:
        """Their totals, of those that answer within ``patience`` seconds."""
        asked = await asyncio.gather(*(self._ask(station, patience) for station in self.by_name.values()))
        answers = dict(answer for answer in asked if answer is not None)
        self._known |= answers
        for alike, meter in self._meters.items():
            known = [stats for name, stats in self._known.items() if self._classes[name] == alike]
            read, sampled = sum(one.prefilled_tokens for one in known), sum(one.sampled_tokens for one in known)
            self._meters[alike] = meter.seen(read, sampled, sum(one.busy_seconds for one in known))
        return answers

    async def _ask(self, station: Station, patience: float) -> tuple[str, SamplerStats] | None:
        with contextlib.suppress(Exception):  # a dying worker is the crew's business
            async with asyncio.timeout(patience):  # Python 3.11's wait_for may swallow what is to end the caller
                return station.name, await station.sampler.stats()
        return None


def open_station(
    sampler: Sampler,
    limits: SamplerLimits,
    post: SamplerPost,
    stored: str,
    line: Line[Waiter],
    machine: Machine | None = None,
) -> Station:
    """A station over a live worker, whose matrices are ``stored`` so; turns wait for its seats in ``line``.

    ``machine``: whose cards the post names.
    """
    seats, device = Seats(limits.sequences, line), device_of(post, machine)
    alike = f"{post.kind}, {stored}, {device}" if device else ""
    return Station(post.name, post.kind, sampler, limits.context, seats, repeats(post, stored), alike)


def device_of(post: SamplerPost, machine: Machine | None) -> str:
    """What a post computes on, in words that are the same for devices that are alike; empty where nobody knows."""
    if not post.place.gpus:
        return f"{len(post.place.cores)} cores"
    names = {gpu.uuid: gpu.name for gpu in machine.gpus} if machine else {}
    return " + ".join(sorted(names[uuid] for uuid in post.place.gpus)) if names.keys() >= set(post.place.gpus) else ""


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
