"""The tables [[mixture]] of a task file: one policy trained on several environments, each with its share of the groups.

Which of them a group belongs to follows from its number and the shares alone, so that a restart draws the same.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from .data import DataSpec
from .validation import MISSING, Fault, between

if TYPE_CHECKING:
    from .task import TaskSpec

MOST = 64
"""Components of a mixture."""
NAME = re.compile(r"[A-Za-z0-9_/-]{1,100}")
"""What a component may be called, which is what environments may be called."""
TOGETHER = " + "
"""Stands between the names of a mixture's environments where people read them."""


@dataclass(frozen=True)
class ComponentSpec:
    """One environment of a mixture."""

    environment: str
    """What it plays."""
    share: float = between(1.0, 0.001, 1000.0)
    """Its part of the groups, and of the score, relative to those of the others."""
    config: dict[str, Any] = field(default_factory=dict)
    """The environment's own parameters."""
    name: str = ""
    """What its scores are called; empty: as its environment."""
    data: DataSpec = field(default_factory=DataSpec)
    """The rows that it draws from, in place of the environment's own: the keys of [data]."""

    @property
    def called(self) -> str:
        """Its name."""
        return self.name or self.environment


def mixture_faults(spec: TaskSpec) -> Iterator[Fault]:
    """Whether a task has no environment, or both one and a mixture, or a mixture that cannot be."""
    if not spec.mixture:
        if not spec.environment:
            hint = "It must be a text in quotes; or write [[mixture]] tables."
            yield Fault("environment", "'environment' is missing.", hint, ("mixture",), MISSING)
        return
    names = [part.called for part in spec.mixture]
    for key in ("environment", "environment_config"):
        if getattr(spec, key):
            yield Fault(
                key,
                f"{key!r} stands beside [[mixture]].",
                "Keep one of the two; each table of a mixture has its own environment and config.",
            )
    if len(names) > MOST:
        yield Fault("mixture", f"'mixture' has {len(names)} tables.", f"There may be at most {MOST}.")
    if len(set(names)) < len(names):
        yield Fault("mixture", "'mixture' names two components alike.", 'Give each a name of its own: name = "easy".')
    for name in names:
        if not NAME.fullmatch(name) or name == "test":
            yield Fault(
                "mixture",
                f"'mixture' has a component that cannot be called {name!r}.",
                "A name has at most 100 letters, digits, -, _ and /, and is not test.",
            )
    for suite in spec.eval.suite:
        if suite.name in names:
            yield Fault(
                "eval.suite",
                f"a suite is called {suite.name!r}, as is a component of the mixture.",
                "Give it another name: the scores of both are kept by name.",
            )
    if spec.kind == "eval":
        says = "'mixture' is about training, but 'kind' is \"eval\"."
        yield Fault("mixture", says, "Write a task for each environment.", ("kind",))
    if spec.data.path:
        yield Fault(
            "data.path",
            "'data.path' names the rows of one environment, but [[mixture]] has several.",
            "Write the keys of [data] below the environment that they are for, in [mixture.data].",
        )
    if spec.train.sampling != "uniform":
        yield Fault(
            "train.sampling",
            f"'train.sampling' is {spec.train.sampling!r}, which a mixture cannot be drawn by.",
            'Write sampling = "uniform", or train on one environment.',
        )


def components_of(spec: TaskSpec) -> dict[str, TaskSpec]:
    """The task as each of its environments sees it, by the component's name: empty if there is no mixture."""
    if not spec.mixture:
        return {"": spec}
    return {
        part.called: replace(
            spec, environment=part.environment, environment_config=part.config, data=part.data, mixture=()
        )
        for part in spec.mixture
    }


class Interleaving:
    """Which component each group number belongs to.

    After n groups each component has had its share of n to within less than one group: Tijdeman, "The chairman
    assignment problem", Discrete Mathematics 32 (1980), section 2, keeps to within 1 − 1/(2k − 2) with k components.
    """

    def __init__(self, shares: Sequence[float]) -> None:
        """``shares``: positive; only their ratios count."""
        exact = [Fraction(str(share)) for share in shares]
        whole = math.lcm(*(share.denominator for share in exact))
        weights = [int(share * whole) for share in exact]
        self._weights = [weight // math.gcd(*weights) for weight in weights]
        self._period = sum(self._weights)
        """After this many groups each has exactly its share, and the order begins again."""
        self._drawn: list[tuple[int, int]] = []
        self._numbers: list[list[int]] = [[] for _ in weights]
        """Of each component: its groups of the first period, as far as they are known."""

    def of(self, number: int) -> tuple[int, int]:
        """The place of the component of group ``number``, and how many of the component's groups come before it."""
        periods, within = divmod(number, self._period)
        self._until(within)
        place, own = self._drawn[within]
        return place, periods * self._weights[place] + own

    def before(self, number: int) -> list[int]:
        """How many of the first ``number`` groups each component has."""
        periods, within = divmod(number, self._period)
        self._until(within)
        pairs = zip(self._weights, self._numbers, strict=True)
        return [periods * weight + bisect_left(numbers, within) for weight, numbers in pairs]

    def _until(self, number: int) -> None:
        while len(self._drawn) <= number:
            place = self._next()
            self._numbers[place].append(len(self._drawn))
            self._drawn.append((place, len(self._numbers[place]) - 1))

    def _next(self) -> int:
        """Of those that are due, the one that must be drawn first to stay within the bound."""
        total, number, slack = self._period, len(self._drawn) + 1, 2 * len(self._weights) - 2
        if slack == 0:
            return 0
        pairs = zip(self._weights, self._numbers, strict=True)
        behind = [weight * number - total * len(drawn) for weight, drawn in pairs]
        due = [place for place, by in enumerate(behind) if slack * by >= total]
        return min(due, key=lambda place: Fraction((slack - 1) * total - slack * behind[place], self._weights[place]))
