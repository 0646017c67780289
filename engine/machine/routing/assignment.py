"""Assigns tasks to samplers by shares and token costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ...devices.machine import Rates
from ...fairness.line import PREFILLED, SAMPLED, rollout_cost

# Tasks by mix (arithmetic suits prompts, bandwidth replies) and samplers by what suits them form a row, cut so that all
# are equally busy (RollArt, arXiv 2512.22560, with a computed map).

WORTH = 0.1
"""Least gain, as a share of the busiest sampler's time: changes lose caches."""
LEAST_PART = 0.1
"""Smallest part of a task's demand for one more sampler."""
CELLS = 4
"""Classes of mixes per octave; not sorted inside."""
HALVINGS = 40


@dataclass(frozen=True)
class TokenCosts:
    """Seconds per token, both above 0."""

    name: str
    prefilled: float
    sampled: float
    turn: float = 0.0
    """Seconds per turn in which a slot waits for its link."""


@dataclass(frozen=True)
class Demand:
    """Tokens of a task, in a common unit.

    Best: an episode's tokens times episodes in progress.
    """

    task: str
    prefilled: float
    sampled: float
    only: tuple[str, ...] = ()
    whole: bool = False
    turns: float = 0.0


@dataclass(frozen=True)
class Share:
    """A part of a task's demand, above 0.

    Turns choose by load (``rollout/slots``); parts only explain.
    """

    sampler: str
    part: float


Routes: TypeAlias = Mapping[str, tuple[Share, ...]]
"""By task; parts add up to 1, largest first."""


def route(
    samplers: Sequence[TokenCosts], demands: Sequence[Demand], before: Routes | None = None, worth: float = WORTH
) -> dict[str, tuple[Share, ...]]:
    """Least time of the busiest sampler, to within a class of mixes.

    ``before`` stays unless others gain more than ``worth``; new tasks go to the idlest. Raises ``ValueError`` for a
    task without a sampler.
    """
    _check(samplers, demands)
    samplers = sorted(samplers, key=lambda sampler: sampler.name)
    demands = sorted(demands, key=lambda demand: demand.task)
    routes = _completed(samplers, demands, before or {})
    while True:
        other = _cut(samplers, demands, routes)
        now, then = (max(busy_seconds(samplers, demands, one).values(), default=0.0) for one in (routes, other))
        if now <= (1 + worth) * then:
            return routes
        routes = other


def place(
    samplers: Sequence[TokenCosts],
    demands: Iterable[Demand],
    busy: dict[str, float],
    routes: dict[str, tuple[Share, ...]],
) -> None:
    """Each task, largest first, to the least busy sampler.

    Changes ``busy`` (seconds) and ``routes``; each task needs a sampler.
    """
    for demand in sorted(demands, key=lambda demand: (-_seconds(samplers[0], demand), demand.task)):
        able = [sampler for sampler in samplers if _allowed(sampler, demand)]
        chosen = min(able, key=lambda sampler: (busy[sampler.name] + _seconds(sampler, demand), sampler.name))
        busy[chosen.name] += _seconds(chosen, demand)
        routes[demand.task] = (Share(chosen.name, 1.0),)


def mean_of(demands: Sequence[Demand]) -> Demand | None:
    """The average demand; None without any."""
    if not demands:
        return None
    read, written = (
        math.fsum(tokens) / len(demands)
        for tokens in ((one.prefilled for one in demands), (one.sampled for one in demands))
    )
    return Demand("", read, written)


def guess(
    task: str, prompt: int, reply: int, other: Demand | None = None, only: tuple[str, ...] = (), whole: bool = False
) -> Demand:
    """From the first prompt's tokens and the longest reply, scaled to the cost of ``other``."""
    mean = PREFILLED * other.prefilled + SAMPLED * other.sampled if other is not None else 1.0
    scale = mean / max(1, rollout_cost(prompt, reply))
    return Demand(task, scale * prompt, scale * reply, only, whole, turns=scale)


def busy_seconds(samplers: Sequence[TokenCosts], demands: Sequence[Demand], routes: Routes) -> dict[str, float]:
    """Seconds of computing by sampler."""
    costs = {sampler.name: sampler for sampler in samplers}
    busy = dict.fromkeys(costs, 0.0)
    for demand in demands:
        for share in routes[demand.task]:
            busy[share.sampler] += share.part * _seconds(costs[share.sampler], demand)
    return busy


def _seconds(sampler: TokenCosts, demand: Demand) -> float:
    return sampler.prefilled * demand.prefilled + sampler.sampled * demand.sampled + sampler.turn * demand.turns


def _allowed(sampler: TokenCosts, demand: Demand) -> bool:
    return not demand.only or sampler.name in demand.only


def _check(samplers: Sequence[TokenCosts], demands: Sequence[Demand]) -> None:
    if any(not (sampler.prefilled > 0 and sampler.sampled > 0) for sampler in samplers):
        raise ValueError("a sampler's tokens must cost something")
    for demand in demands:
        if not any(_allowed(sampler, demand) for sampler in samplers):
            raise ValueError(f"no sampler may serve the task {demand.task}")


def _completed(
    samplers: Sequence[TokenCosts], demands: Sequence[Demand], before: Routes
) -> dict[str, tuple[Share, ...]]:
    routes: dict[str, tuple[Share, ...]] = {}
    names = {sampler.name for sampler in samplers}
    for demand in demands:
        possible = names.intersection(demand.only) if demand.only else names
        shares = before.get(demand.task, ())
        parts = {share.sampler: share.part for share in shares if share.sampler in possible}
        if parts:
            unchanged = len(parts) == len(shares) and not (demand.whole and len(parts) > 1)
            routes[demand.task] = shares if unchanged else _shares(parts, demand.whole)
    new = [demand for demand in demands if demand.task not in routes]
    busy = busy_seconds(samplers, [demand for demand in demands if demand.task in routes], routes)
    place(samplers, new, busy, routes)
    return routes


def _cut(samplers: Sequence[TokenCosts], demands: Sequence[Demand], before: Routes) -> dict[str, tuple[Share, ...]]:
    routes: dict[str, tuple[Share, ...]] = {}
    busy = {sampler.name: 0.0 for sampler in samplers}
    place(samplers, [demand for demand in demands if demand.only], busy, routes)
    far = any(sampler.turn for sampler in samplers)
    mixes = {own.name: own.prefilled / own.sampled for own in samplers}
    if far:
        mixes = {name: round(CELLS * math.log2(mix)) for name, mix in mixes.items()}
    order = sorted(samplers, key=lambda own: (mixes[own.name], own.turn if far else 0.0, own.name))
    row = _row([demand for demand in demands if not demand.only], [sampler.name for sampler in order], before, far)
    everything = math.fsum(_seconds(order[0], demand) for demand in row)
    least, most = 0.0, (1 + 1e-9) * (max(busy.values()) + everything)  # sums are rounded
    for _ in range(HALVINGS):
        middle = (least + most) / 2
        least, most = (least, middle) if _filled(order, row, busy, middle) is not None else (middle, most)
    for demand, parts in zip(row, _filled(order, row, busy, most) or (), strict=True):
        routes[demand.task] = _shares(parts, demand.whole)
    return routes


def _row(demands: Sequence[Demand], order: Sequence[str], before: Routes, far: bool) -> list[Demand]:
    """From mostly reading to mostly writing. Alike tasks: by sampler, or, if some are ``far``, by falling turns."""
    numbers = {name: number for number, name in enumerate(order)}

    def position(demand: Demand) -> tuple[float, float, float, str]:
        mix = math.log2((1e-9 + demand.prefilled) / (1e-9 + demand.sampled))
        often = math.log2((1e-9 + demand.turns) / (1e-9 + demand.prefilled + demand.sampled)) if far else 0.0
        known = [numbers[share.sampler] for share in before.get(demand.task, ()) if share.sampler in numbers]
        where = sum(known) / len(known) if known else len(order) / 2
        return -round(CELLS * mix), -round(CELLS * often), where, demand.task

    return sorted(demands, key=position)


def _filled(
    order: Sequence[TokenCosts], row: Sequence[Demand], busy: Mapping[str, float], time: float
) -> list[dict[str, float]] | None:
    parts: list[dict[str, float]] = [{} for _ in row]
    at, left = 0, 1.0
    for sampler in order:
        room = time - busy[sampler.name]
        while at < len(row) and room > 0:
            seconds = _seconds(sampler, row[at])
            taken = left if left * seconds <= room else room / seconds
            parts[at][sampler.name] = taken
            room, left = room - taken * seconds, left - taken
            if left <= 0:
                at, left = at + 1, 1.0
            else:
                break
    return parts if at == len(row) else None


def _shares(parts: Mapping[str, float], whole: bool) -> tuple[Share, ...]:
    ranked = sorted(parts.items(), key=lambda item: (-item[1], item[0]))
    total = math.fsum(parts.values())
    large = [(name, part) for name, part in ranked if part >= LEAST_PART * total and not whole] or ranked[:1]
    together = math.fsum(part for _, part in large)
    return tuple(Share(name, part / together) for name, part in large)


# The guess gives the proportion, busy seconds the scale; different mixes separate the token kinds.

HALF_LIFE = 60.0
"""Busy seconds after which a window counts half."""
SHORTEST = 1e-3
NOTHING = 1e-9
"""Least guessed seconds: squares of less would underflow."""
PULL = 0.02
"""Pull towards the guess's proportion; share of the measured."""
LEAST = 0.05
"""Share of the scaled guess."""
ROWS = 32
REACHED = 0.5
"""Share of measured rates that passes reach; a guess."""
PROPORTION = 3.0
"""Sampled over prefilled, rates unknown; 1 to 11 measured on a processor (``fairness/line.py``)."""


@dataclass(frozen=True)
class CostMeter:
    """Learns one sampler's costs from totals."""

    guess: TokenCosts
    totals: tuple[float, float, float] = (0.0, 0.0, 0.0)
    products: tuple[float, float, float, float, float] = (0.0,) * 5
    """Decayed sums of products of guessed prefill (p), sampling (s) and busy (b) seconds."""

    def seen(self, prefilled: float, sampled: float, busy: float) -> CostMeter:
        totals = (prefilled, sampled, busy)
        fell = any(now < then for now, then in zip(totals, self.totals, strict=True))
        before = (0.0, 0.0, 0.0) if fell else self.totals
        window = [now - then for now, then in zip(totals, before, strict=True)]
        read, written, spent = window[0] * self.guess.prefilled, window[1] * self.guess.sampled, window[2]
        if spent < SHORTEST:
            return replace(self, totals=before)
        if read + written < NOTHING:
            return replace(self, totals=totals)
        kept = 0.5 ** (spent / HALF_LIFE)
        fresh = (read * read, read * written, written * written, read * spent, written * spent)
        products = tuple(kept * old + new / spent for old, new in zip(self.products, fresh, strict=True))
        return replace(self, totals=totals, products=products)

    @property
    def measured(self) -> bool:
        return any(self.products)

    @property
    def costs(self) -> TokenCosts:
        if not self.measured:
            return self.guess
        squared, mixed, other, first, second = self.products
        scale = (first + second) / (squared + 2 * mixed + other)
        pull = PULL * (squared + 2 * mixed + other)
        squared, other, first, second = squared + pull, other + pull, first + pull * scale, second + pull * scale
        determinant = squared * other - mixed * mixed
        read = max(LEAST * scale, (first * other - second * mixed) / determinant)
        written = max(LEAST * scale, (second * squared - first * mixed) / determinant)
        return TokenCosts(self.guess.name, read * self.guess.prefilled, written * self.guess.sampled)


def guessed(name: str, parameters: int, weight_bytes: int, rates: Rates | None) -> TokenCosts:
    """By the base's size: prompts take arithmetic, replies read weights."""
    if rates is None:
        return TokenCosts(name, 1e-4, PROPORTION * 1e-4)
    prefilled = 2 * parameters / (REACHED * rates.matrix)
    return TokenCosts(name, prefilled, prefilled + weight_bytes / (ROWS * REACHED * rates.bandwidth))
