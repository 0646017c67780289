"""Survivors' bias: does an environment fail because of what was said? Then rewards are means over what it survived.

Within a group all members play the same instance, and a member that failed is played again with the same noise. Two
explanations of a failure at one line of the environment's code are weighed against each other:

- *Chance, or the instance*: each play of the group fails there with the same probability, whatever was said. That
  probability may be another one in each group, and is taken to be the one that explains the group best.
- *The reply*: each member either fails there or does not, and one that did does so again (in ``REPEATS`` of all plays:
  not every sampler repeats a reply to the last token).

The weight is the product, over all groups, of how much better the second explains a group than the first. The
explanation by the reply is fixed before each group is seen, from the groups before it, and that by chance is the best
that there is afterwards. So under chance the expected factor of a group is at most 1 (the running likelihood ratio of
Wasserman, Ramdas and Balakrishnan, "Universal inference", 2020, arXiv 1912.11436), and by Ville's inequality the weight
of a line *ever* reaches ``ENOUGH`` with a probability of at most 1 / ``ENOUGH``, however long a task runs. That holds
for failures that are independent from play to play of a group; an outage that outlasts all plays of a member looks the
same as a reply.
``MOST`` bounds what one group can say, so at least three groups have to agree. Of a failure that one reply in five
causes this takes some five groups of eight, of one in fifty some ninety; one that is much rarer biases little, and is
not found.

Pure. Deaths of the process and overload are not failures at a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, lgamma, log

from ...environments import EpisodeOutcome
from ...trajectories import Failure
from .members import Member

ENOUGH = 1000.0
"""The weight from which the reply is to blame: a false alarm for a line has a probability of at most 1 in 1,000."""
MOST = 20.0
"""The largest factor of one group."""
REPEATS = 0.9
"""How often a play that failed because of its reply fails again, as the explanation by the reply has it."""

MOST_LINES = 64
"""Lines that are weighed, the first at which anything failed: where a plugin says that it failed is its own word."""

Place = tuple[str, int]
"""A file of the plugin, and a line."""


@dataclass(frozen=True)
class Plays:
    """The plays of a group as one line of the environment's code sees them."""

    failed: int
    """Plays that failed at the line, of all whose member had not failed there just before."""
    passed: int
    """The others of those."""
    again: int
    """Plays that failed there, of all whose member had failed there just before."""
    recovered: int
    """The others of those."""

    @classmethod
    def of(cls, members: Sequence[Sequence[EpisodeOutcome]], place: Place) -> Plays:
        """Count the plays of each member, in order."""
        counts = {(failed, before): 0 for failed in (True, False) for before in (True, False)}
        for ends in members:
            before = False
            for end in ends:
                failed = place_of(end) == place
                counts[failed, before] += 1
                before = failed
        return cls(counts[True, False], counts[False, False], counts[True, True], counts[False, True])


@dataclass(frozen=True)
class Line:
    """What the groups so far say about one line of the environment's code."""

    failure: Failure
    """The newest one there."""
    weight: float
    """Natural logarithm of the product of the groups' factors."""
    failed: int = 0
    """Sum of ``Plays.failed``: members that failed there, each once unless it failed elsewhere in between."""
    passed: int = 0
    """Sum of ``Plays.passed``."""
    told: bool = False
    """Whether the weight has reached ``ENOUGH``."""


def factor(group: Plays, failed: int, passed: int) -> float:
    """How much better the reply explains a group than chance does.

    ``failed`` and ``passed`` are the sums of the earlier groups' counts of these names. They say what share of members
    to expect to fail: the explanation by the reply has it from a uniform prior and these.
    """
    reply = _beta(failed + group.failed + 1, passed + group.passed + 1) - _beta(failed + 1, passed + 1)
    reply += group.again * log(REPEATS) + group.recovered * log(1 - REPEATS)
    fails, passes = group.failed + group.again, group.passed + group.recovered
    chance = sum(count * log(count / (fails + passes)) for count in (fails, passes) if count)
    return min(MOST, exp(reply - chance))


class Survivors:
    """Weighs the groups of one environment version, one after the other."""

    def __init__(self) -> None:
        self.members = 0
        """Of all groups."""
        self._plays = 0
        self._lines: dict[Place, Line] = {}

    def see(self, members: Sequence[Member]) -> tuple[Line, ...]:
        """Weigh a further group; returns the lines of which it is known from now on that the reply decides."""
        ends = [member.plays for member in members]
        failures = {place: end.failure for plays in ends for end in plays if (place := place_of(end)) and end.failure}
        found = []
        new = [place for place in failures if place not in self._lines][: MOST_LINES - len(self._lines)]
        for place in (*self._lines, *new):
            now = self._weighed(place, Plays.of(ends, place), failures.get(place))
            if now.weight >= log(ENOUGH) and not now.told:
                now = replace(now, told=True)
                found.append(now)
            self._lines[place] = now
        self.members += len(ends)
        self._plays += sum(map(len, ends))
        return tuple(found)

    def _weighed(self, place: Place, group: Plays, failure: Failure | None) -> Line:
        before = self._lines.get(place)
        if before is None:  # in all plays until now none failed there: the factors of those groups were 1 / (plays + 1)
            before = Line(failure or Failure(""), -log(self._plays + 1), passed=self._plays)
        weight = before.weight + log(factor(group, before.failed, before.passed))
        failed, passed = before.failed + group.failed, before.passed + group.passed
        return Line(failure or before.failure, weight, failed, passed, before.told)


def place_of(end: EpisodeOutcome) -> Place | None:
    """The line at which a play failed; None where it ended well, or where no line is to blame."""
    failure = end.failure
    if failure is None or not failure.file or end.status not in ("error", "timeout") or end.overloaded or end.died:
        return None
    return failure.file, failure.line


def _beta(a: float, b: float) -> float:
    """Natural logarithm of the beta function."""
    return lgamma(a) + lgamma(b) - lgamma(a + b)
