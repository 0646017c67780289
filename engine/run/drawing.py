"""Which instance a group draws: for environments with rows, every row of the train split once in an epoch, or rather
those that teach most (``curriculum``).

An attempt that is made again draws another row, from far ahead in the order of rows: the first attempts of an epoch's
groups are still all of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

from marlaas.plugins.data import row_at

from ..environments import DataFacts, Lease
from ..errors import EnvironmentFailure, Paused
from ..fleet import Services
from ..spec import TaskSpec
from ..store import Draw
from ..training import RewardSummary
from .curriculum import Curriculum

STRIDE = 1_000_003
"""Distance between the instances that successive attempts at one group number draw; a prime, so that tables of rows
are walked through evenly."""


def instances(number: int, seed: int, rows: int) -> Iterator[int]:
    """The instances of successive attempts at a group: a pure function, so that a restart draws the same ones.

    Of ``rows`` rows each attempt draws another, as long as there are others; 0: the environment has no rows.
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
    """The instances that one task's groups draw, and what is known of the rows that these are."""

    def __init__(self, services: Services, spec: TaskSpec, policy: int) -> None:
        """``spec`` as the policy sees it whose groups a curriculum goes by; ``policy``: its number in the store."""
        self._services = services
        self._spec = spec
        self._known: dict[tuple[str, str], DataFacts] = {}
        self._rows = 0
        """Rows of the train split, as far as is known; 0: none."""
        self._tried: dict[int, list[Draw]] = {}
        """By group under way: the attempts whose rewards are known."""
        self._met: dict[int, set[int]] = {}
        """By group under way: the rows that it drew."""
        self._curriculum: Curriculum | None = None
        if spec.train.sampling == "difficulty":
            train, known = spec.train, services.store.experience.draws(policy)
            self._curriculum = Curriculum(train.seed, train.groups_per_step, train.max_staleness, known)

    async def instance(self, lease: Lease, number: int, attempt: int) -> int:
        """The instance of an attempt at a group. Raises ``Paused`` where a curriculum has no rows to choose from."""
        facts = await self._facts(lease)
        if self._curriculum is None or facts is None:
            found = instances(number, self._spec.train.seed, facts.train if facts else 0)
            return next(islice(found, attempt, None))
        if not facts.train:
            raise Paused(f"{lease.environment} has no rows to choose from: 'train.sampling' must be \"uniform\".")
        return self._chosen(self._curriculum, number, attempt, facts.train)

    def note(self, number: int, attempt: int, position: int, rewards: RewardSummary) -> None:
        """Take note of the rewards of an attempt, be it trained on or thrown away."""
        if self._curriculum is not None and self._rows:
            row = row_at("train", self._spec.train.seed, position, self._rows)
            said = rewards.least, rewards.most, rewards.spread
            self._tried.setdefault(number, []).append(Draw(number, attempt, position, row, self._rows, *said))

    def tried(self, number: int) -> tuple[Draw, ...]:
        """What is known of the attempts at a group, to be stored with it."""
        return tuple(self._tried.get(number, ()))

    def take_back(self, number: int) -> None:
        """Forget the newest attempt that was noted of a group: it could not be stored."""
        if tried := self._tried.get(number):
            tried.pop()

    def learn(self, number: int) -> None:
        """Go by the attempts at a group from now on: they are stored."""
        self._met.pop(number, None)
        for draw in self._tried.pop(number, ()):
            assert self._curriculum is not None
            self._curriculum.learn(draw)

    def metrics(self, groups: int) -> dict[str, float]:
        """What to show after a number of groups; nothing where there are no rows.

        - ``epoch``: how often all rows were met; ``rows``: how many there are.
        - ``prompts_solved``, ``prompts_unsolved``, ``prompts_between``: rows by the rewards of their last group, where
          rows are drawn by difficulty.
        """
        if not self._rows:
            return {}
        if self._curriculum is None:
            return {"rows": float(self._rows), "epoch": groups / self._rows}
        solved, met = self._curriculum.solved, self._curriculum.position(groups - 1, self._rows) + 1
        return {
            "rows": float(self._rows),
            "epoch": met / self._rows,
            "prompts_solved": float(solved.solved),
            "prompts_unsolved": float(solved.unsolved),
            "prompts_between": float(solved.between),
        }

    def _chosen(self, curriculum: Curriculum, number: int, attempt: int, rows: int) -> int:
        """The position that a curriculum draws; another row than those that the group drew before."""
        position, met = curriculum.position(number, rows), self._met.setdefault(number, set())
        if attempt:
            position = curriculum.again(number, position + attempt * STRIDE, rows)
            while len(met) < rows and self._row(position, rows) in met:
                position = curriculum.again(number, position + 1, rows)
        met.add(self._row(position, rows))
        return position

    def _row(self, position: int, rows: int) -> int:
        return row_at("train", self._spec.train.seed, position, rows)

    async def _facts(self, lease: Lease) -> DataFacts | None:
        """What is known of the rows that a lease draws from, asked for once for each version and file.

        None where they cannot be had; the episodes then fail for the same reason, and say so.
        """
        if lease.rows not in self._known:
            try:
                self._known[lease.rows] = await self._services.environments.facts(lease)
            except EnvironmentFailure:
                return None
        self._rows = self._known[lease.rows].train
        return self._known[lease.rows]
