"""The tables [[mixture]] of a task file: one policy trained on several environments, each with its share of the groups.

Which of them a group belongs to follows from its number and the shares alone, so that a restart draws the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .validation import CONFLICT, MISSING, between

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
    """Its part of the groups, relative to those of the others."""
    config: dict[str, Any] = field(default_factory=dict)
    """The environment's own parameters."""
    name: str = ""
    """What its scores are called; empty: as its environment."""

    @property
    def called(self) -> str:
        """Its name."""
        return self.name or self.environment


def check_mixture(spec: TaskSpec, where: str) -> None:
    """Raise ``ConfigError`` where a task has no environment, or both one and a mixture, or a mixture that cannot be."""
    parts = spec.mixture
    if not parts and not spec.environment:
        says, hint = f"{where}: 'environment' is missing.", "It must be a text in quotes; or write [[mixture]] tables."
        raise ConfigError(says, hint, path="environment", code=MISSING)
    names = [part.called for part in parts]
    for broken, path, says, hint in (
        (
            parts and (spec.environment or spec.environment_config),
            "environment" if spec.environment else "environment_config",
            "stands beside [[mixture]].",
            "Keep one of the two; each table of a mixture has its own environment and config.",
        ),
        (len(parts) > MOST, "mixture", f"has {len(parts)} tables.", f"There may be at most {MOST}."),
        (
            len(set(names)) < len(names),
            "mixture",
            "names two components alike.",
            'Give each a name of its own: name = "easy".',
        ),
        (
            not all(NAME.fullmatch(name) for name in names),
            "mixture",
            "names a component that cannot be called so.",
            "A name has at most 100 letters, digits, -, _ and /.",
        ),
    ):
        if broken:
            raise ConfigError(f"{where}: {path!r} {says}", hint, path=path, code=CONFLICT)


def components_of(spec: TaskSpec) -> dict[str, TaskSpec]:
    """The task as each of its environments sees it, by the component's name: empty where there is no mixture."""
    if not spec.mixture:
        return {"": spec}
    return {
        part.called: replace(spec, environment=part.environment, environment_config=part.config, mixture=())
        for part in spec.mixture
    }


def score_of(component: str) -> str:
    """The name under which an evaluation of a mixture keeps the score of a component among its metrics."""
    return f"{component}: held-out"


class Drawing:
    """Which component each group number belongs to.

    After n groups each component has had its share of n to within less than one group: Tijdeman, "The chairman
    assignment problem", Discrete Mathematics 32 (1980), section 2, keeps to within 1 − 1/(2k − 2) with k components.
    """

    def __init__(self, shares: Sequence[float]) -> None:
        """``shares``: positive; only their ratios count."""
        exact = [Fraction(str(share)) for share in shares]
        whole = math.lcm(*(share.denominator for share in exact))
        self._weights = [int(share * whole) for share in exact]
        self._counts = [0] * len(exact)
        self._drawn: list[tuple[int, int]] = []

    def of(self, number: int) -> tuple[int, int]:
        """The place of the component of group ``number``, and how many of the component's groups come before it."""
        while len(self._drawn) <= number:
            place = self._next()
            self._drawn.append((place, self._counts[place]))
            self._counts[place] += 1
        return self._drawn[number]

    def _next(self) -> int:
        """Of those that are due, the one that must be drawn first to stay within the bound."""
        total, number, slack = sum(self._weights), len(self._drawn) + 1, 2 * len(self._weights) - 2
        if slack == 0:
            return 0
        behind = [w * number - total * count for w, count in zip(self._weights, self._counts, strict=True)]
        due = [place for place, by in enumerate(behind) if slack * by >= total]
        return min(due, key=lambda place: Fraction((slack - 1) * total - slack * behind[place], self._weights[place]))
