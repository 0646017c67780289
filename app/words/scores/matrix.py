"""Win-rates between versions as tables: rows are versions of one policy, columns those of an opponent. Pure.

Where winning pays 1 and losing 0, a mean reward is the share of games that were won.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from marlaas.engine.store import Matchup, PolicyRow

from ..format import line, score
from ..policies import LONGEST

CELL = 17
"""Cells of a column, with the space before it."""


@dataclass(frozen=True)
class Meeting:
    """A cell: what a version was paid against another one."""

    games: int
    mean: float
    stderr: float
    """Standard error of the mean; 0 for a single game, where it is not known."""


@dataclass(frozen=True)
class Matrix:
    """What a policy's versions were paid against one other."""

    policy: str
    against: str
    """Another policy, the same one, or a version in words."""
    rows: tuple[int, ...] = ()
    """Versions, newest first."""
    columns: tuple[int, ...] = ()
    """Oldest first."""
    cells: Mapping[tuple[int, int], Meeting] = field(default_factory=dict)
    """By row and column; not every pair has met."""

    def columns_for(self, room: int) -> tuple[int, ...]:
        """The columns that fit, oldest first: those that most rows have met, else spread over all."""
        met = Counter(column for _, column in self.cells)
        spread = shown(self.columns, room)
        chosen = sorted(self.columns, key=lambda column: (-met[column], column not in spread))
        return tuple(sorted(chosen[: max(1, room)]))

    @property
    def title(self) -> str:
        """Who was paid, and against whom."""
        return f"{line(self.policy, LONGEST)} against {line(self.against, LONGEST)}"


@dataclass
class _Sums:
    games: int = 0
    total: float = 0.0
    squares: float = 0.0

    def meeting(self) -> Meeting:
        mean = self.total / self.games
        variance = max(0.0, self.squares / self.games - mean * mean)
        return Meeting(self.games, mean, math.sqrt(variance / (self.games - 1)) if self.games > 1 else 0.0)


def matrices(pairs: Iterable[Matchup], policies: Sequence[PolicyRow], policy: str) -> list[Matrix]:
    """A table for each opponent of ``policy``, the policy itself first; empty if it met none.

    A version from a pool, or one that ``NAME@0`` means, counts as what it is: an earlier version of a policy.
    """
    sums: dict[str, dict[tuple[int, int], _Sums]] = {}
    for pair in pairs:
        who, version = _who(pair.who, pair.version, policies)
        against, column = _who(pair.against, pair.against_version, policies)
        if who != policy or (who, version) == (against, column):
            continue
        cell = sums.setdefault(against, {}).setdefault((version, column), _Sums())
        cell.games += pair.games
        cell.total += pair.total
        cell.squares += pair.squares
    others = sorted(sums, key=lambda against: (against != policy, against))
    return [_matrix(policy, against, sums[against]) for against in others]


def _matrix(policy: str, against: str, sums: Mapping[tuple[int, int], _Sums]) -> Matrix:
    rows = tuple(sorted({row for row, _ in sums}, reverse=True))
    columns = tuple(sorted({column for _, column in sums}))
    return Matrix(policy, against, rows, columns, {place: cell.meeting() for place, cell in sums.items()})


def _who(said: str, version: int, policies: Sequence[PolicyRow]) -> tuple[str, int]:
    """The policy of a version that spoke under a name, whether that name is a pool's or a frozen version's."""
    names = {policy.name for policy in policies}
    for policy in policies:
        if policy.name == said and policy.pool:
            return policy.pool, version
        if policy.name == said and policy.frozen:
            said = policy.frozen
            break
    own, at, number = said.partition("@")
    return (own, 0) if at and number == "0" and own in names else (said, version)


def shown(versions: Sequence[int], room: int) -> tuple[int, ...]:
    """The versions that fit, spread evenly, with the first and the last."""
    if len(versions) <= max(1, room):
        return tuple(versions)
    if room < 2:
        return (versions[-1],)
    last = len(versions) - 1
    return tuple(versions[round(place * last / (room - 1))] for place in range(room))


def cell_text(meeting: Meeting | None) -> str:
    """A mean with its standard error and the number of games; a point where the two have not met."""
    if meeting is None:
        return "·"
    games = str(meeting.games) if meeting.games < 10_000 else f"{meeting.games // 1000}k"
    return f"{score(meeting.mean)}±{score(meeting.stderr)} n{games}"
