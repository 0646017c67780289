"""Draws a group's instance, and holds a task's prompts."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Iterator
from itertools import count, islice
from operator import itemgetter
from random import Random

from marlaas.plugins.data import row_at

from ..environments.protocol import DataFacts
from ..environments.served_version import Lease
from ..errors import EnvironmentFailure, Paused
from ..machine.services import Services
from ..rollout.episodes import PromptHash
from ..spec.task import TaskSpec
from ..store.experience import Draw
from ..trainer.advantages import RewardSummary
from ..trajectories import Split
from .environment import Component, Mixture
from .held_out import HeldOutPrompts
from .opening import TrainedPolicy

# Difficulty sampling draws rows that teach little less often.
#
# A row's signal is the variance of its group's rewards: *sampling for learnability* (Rutherford et al. 2024, arXiv
# 2408.15099; for language models Foster and Foerster 2025, arXiv 2502.12272); here training groups give the estimate. A
# new row has weight 1; afterwards the mean of old weight and newest value, at least ``FLOOR``. Mean and floor are ours.
#
# Rows come in their epoch's shuffled order, with the weight as probability. Draws of step k depend only on groups of
# steps before k - ``max_staleness``: committed by then, so a restart draws the same rows.

FLOOR = 0.1
LATEST = 0.5
"""The newest group's share of a row's weight."""
_FARTHEST = 1000
"""Rows passed over at most; practically impossible."""


class Curriculum:
    """One policy's draws, past and next."""

    def __init__(self, seed: int, groups_per_step: int, max_staleness: int, known: Iterable[Draw] = ()) -> None:
        self._seed = seed
        self._batch = groups_per_step
        self._staleness = max_staleness
        self._draws: dict[int, list[tuple[int, Draw]]] = {}
        """By row, the draws of its groups in the order of their numbers."""
        self._first: dict[int, int] = {}
        self._rows = 0
        for draw in known:
            self.learn(draw)

    def learn(self, draw: Draw) -> None:
        if draw.attempt == 0:
            self._first[draw.number] = draw.position
        if draw.rows != self._rows:  # for other rows the records are useless
            self._rows, self._draws = draw.rows, {}
        insort(self._draws.setdefault(draw.row, []), (draw.number, draw), key=itemgetter(0))

    def position(self, number: int, rows: int) -> int:
        """``rows``: of a train split. Needs all groups committed before this one could begin."""
        begin = number
        while begin > 0 and begin - 1 not in self._first:
            begin -= 1
        for each in range(begin, number + 1):
            if each not in self._first:
                self._first[each] = self.taken(self._first[each - 1] + 1 if each else 0, each, rows)
        return self._first[number]

    def weight(self, row: int, step: int, extremes: tuple[float, float] | None = None) -> float:
        """``extremes``: from ``_range``."""
        draws = [draw for number, draw in self._draws.get(row, ()) if number < step * self._batch]
        lowest, highest = extremes or self._range(step)
        if not draws or highest <= lowest:
            return 1.0
        most, weight = (highest - lowest) ** 2 / 4, 1.0  # the largest variance of rewards in that range
        for draw in draws:
            weight += LATEST * (min(1.0, draw.spread**2 / most) - weight)
        return max(FLOOR, weight)

    def solved(self) -> tuple[int, int, int]:
        """Rows whose last group had only highest rewards, only lowest, or others."""
        lowest, highest = self._range()
        last = [draws[-1][1] for draws in self._draws.values()]
        solved = sum(draw.least >= highest > lowest for draw in last)
        unsolved = sum(draw.most <= lowest for draw in last)
        return solved, unsolved, len(last) - solved - unsolved

    def taken(self, begin: int, number: int, rows: int) -> int:
        step = max(0, number // self._batch - self._staleness)
        extremes = self._range(step)
        for position in range(begin, begin + _FARTHEST):
            chance = Random(f"{self._seed}/curriculum/{position}").random()
            if chance < self.weight(row_at("train", self._seed, position, rows), step, extremes):
                return position
        return begin + _FARTHEST

    def _range(self, step: float = math.inf) -> tuple[float, float]:
        before = [draw for draws in self._draws.values() for number, draw in draws if number < step * self._batch]
        lowest = min((draw.least for draw in before), default=math.inf)
        return lowest, max((draw.most for draw in before), default=-math.inf)


# Repeated attempts draw from far ahead, so first attempts still cover all rows.

STRIDE = 1_000_003
"""Between successive attempts; a prime, to cover tables evenly."""


def instances(number: int, seed: int, rows: int) -> Iterator[int]:
    """Instances of successive attempts; pure, so a restart draws the same.

    ``rows`` = 0: none.
    """
    met: set[int] = set()
    for step in count():
        index = number + step * STRIDE
        if 0 < len(met) < rows and row_at("train", seed, index, rows) in met:
            continue
        if len(met) < rows:
            met.add(row_at("train", seed, index, rows))
        yield index


class Drawing:
    """One task's draws, and the statistics of its rows."""

    def __init__(self, services: Services, spec: TaskSpec, policy: int) -> None:
        self._services = services
        self._spec = spec
        self._known: dict[tuple[str, str], DataFacts] = {}
        self._rows = 0
        self._tried: dict[int, tuple[Draw, ...]] = {}
        self._met: dict[int, set[int]] = {}
        self._curriculum: Curriculum | None = None
        if spec.train.sampling == "difficulty":
            train, known = spec.train, services.store.experience.draws(policy)
            self._curriculum = Curriculum(train.seed, train.groups_per_step, train.max_staleness, known)

    async def instance(self, lease: Lease, number: int, attempt: int) -> int:
        """Raises ``Paused`` if a curriculum has no rows."""
        facts = await self._facts(lease)
        if self._curriculum is None or facts is None:
            found = instances(number, self._spec.train.seed, facts.train if facts else 0)
            return next(islice(found, attempt, None))
        if not facts.train:
            raise Paused(f"{lease.environment} has no rows to choose from: 'train.sampling' must be \"uniform\".")
        return self._chosen(self._curriculum, number, attempt, facts.train)

    def drawn(self, number: int, attempt: int, position: int, rewards: RewardSummary) -> tuple[Draw, ...]:
        """The draws of group ``number``, with the rewards of the newest; none without a curriculum."""
        if self._curriculum is None or not self._rows:
            return ()
        row = row_at("train", self._spec.train.seed, position, self._rows)
        summary = rewards.least, rewards.most, rewards.spread
        return (*self.tried(number), Draw(number, attempt, position, row, self._rows, *summary))

    def tried(self, number: int) -> tuple[Draw, ...]:
        return self._tried.get(number, ())

    def keep(self, number: int, draws: tuple[Draw, ...]) -> None:
        """For the next attempt at the same group."""
        self._tried[number] = draws

    def learn(self, number: int, draws: Iterable[Draw]) -> None:
        """Once the group is stored."""
        self._met.pop(number, None)
        self._tried.pop(number, None)
        for draw in draws:
            assert self._curriculum is not None
            self._curriculum.learn(draw)

    def metrics(self, groups: int) -> dict[str, float]:
        """Empty without rows.

        - ``epoch``: passes over all rows; ``rows``: their number.
        - ``prompts_solved``, ``prompts_unsolved``, ``prompts_between``: rows by their last group.
        """
        if not self._rows:
            return {}
        if self._curriculum is None:
            return {"rows": float(self._rows), "epoch": groups / self._rows}
        solved, unsolved, between = self._curriculum.solved()
        met = self._curriculum.position(groups - 1, self._rows) + 1
        return {
            "rows": float(self._rows),
            "epoch": met / self._rows,
            "prompts_solved": float(solved),
            "prompts_unsolved": float(unsolved),
            "prompts_between": float(between),
        }

    def _chosen(self, curriculum: Curriculum, number: int, attempt: int, rows: int) -> int:
        position, met = curriculum.position(number, rows), self._met.setdefault(number, set())
        if attempt:
            position = curriculum.taken(position + attempt * STRIDE, number, rows)
            while len(met) < rows and self._row(position, rows) in met:
                position = curriculum.taken(position + 1, number, rows)
        met.add(self._row(position, rows))
        return position

    def _row(self, position: int, rows: int) -> int:
        return row_at("train", self._spec.train.seed, position, rows)

    async def _facts(self, lease: Lease) -> DataFacts | None:
        if lease.rows not in self._known:
            try:
                self._known[lease.rows] = await self._services.environments.facts(lease)
            except EnvironmentFailure:
                return None
        self._rows = self._known[lease.rows].train
        return self._known[lease.rows]


class TaskPrompts:
    """Draws and prompts of all components, by name; training excludes held-out ones."""

    def __init__(self, services: Services, task: int, first: TrainedPolicy, mixture: Mixture) -> None:
        self._mixture = mixture
        self._drawing = {one.name: Drawing(services, first.spec, first.number) for one in mixture.components}
        measure = first.spec.eval
        self._held_out = {
            one.name: HeldOutPrompts(services, task, measure.prompts, component=one.name) for one in mixture.components
        }
        self._last = self._held_out
        """The prompts of the split test, if there is one: they know those of evaluations."""
        if measure.test_prompts:
            self._last = {
                name: HeldOutPrompts(services, task, measure.test_prompts, "test", held_out, name)
                for name, held_out in self._held_out.items()
            }

    async def look(self) -> None:
        for one in self._mixture.components:
            async with one.environment.bound() as lease:
                await self._last[one.name].of(lease)

    def of(self, component: Component, split: Split) -> HeldOutPrompts:
        return (self._last if split == "test" else self._held_out)[component.name]

    def drawing(self, component: Component) -> Drawing:
        return self._drawing[component.name]

    async def kept_out(self, component: Component, lease: Lease) -> frozenset[PromptHash]:
        """First prompts that training must not meet.

        Other components count as last seen. Raises as ``HeldOutPrompts.of`` does.
        """
        own = await self._last[component.name].of(lease)
        return own.union(*(other.newest for name, other in self._last.items() if name != component.name))

    def metrics(self, groups: int) -> dict[str, float]:
        found = {}
        for one, own in zip(self._mixture.components, self._mixture.before(groups), strict=True):
            before = f"{one.name}: " if one.name else ""
            for name, value in self._drawing[one.name].metrics(own).items():
                found[before + name] = value
        return found
