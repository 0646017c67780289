"""Which instance a group draws: for environments with rows, every row of the train split once in an epoch.

An attempt that is made again draws another row, from far ahead in the order of rows: the first attempts of an epoch's
groups are still all of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from marlaas.plugins.data import row_at

from ..environments import DataFacts, Lease
from ..errors import EnvironmentFailure
from ..fleet import Services
from .environment import TaskEnvironment

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


def epochs(groups: int, rows: int) -> float:
    """How often all rows were drawn by a number of groups."""
    return groups / rows


class TaskRows:
    """What is known of the rows of a task, asked for once for each version of its environment."""

    def __init__(self, services: Services, environment: TaskEnvironment) -> None:
        self._services = services
        self._environment = environment
        self._known: dict[str, DataFacts] = {}

    async def of(self, lease: Lease) -> DataFacts:
        """What is known of the rows that a lease draws from.

        Where they cannot be had there is none; the episodes then fail for the same reason, and say so.
        """
        version = lease.environment_version
        if version not in self._known:
            try:
                self._known[version] = await self._services.environments.facts(lease)
            except EnvironmentFailure:
                return DataFacts()
        self._environment.rows = self._known[version].train
        return self._known[version]
