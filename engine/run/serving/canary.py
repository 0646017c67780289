"""The canary: after a publish, samplers and trainer must have moved alike on tokens that the policy wrote itself.

The tokens are those of a batch before its optimizer step. Two questions are asked. Do both give the same
log-probabilities, up to rounding? And did the sampler's change from version to version as the trainer's did? The second
finds an adapter handle that was mixed up: its checksum is right, and one step at a small learning rate moves the policy
by less than what rounding may explain.

Every endpoint that is to serve the version is asked, each with the tolerance of its own arithmetic, while the trainer
trains. The trainer answers within the step itself, while it writes the state file: nothing waits for its answer.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import AdapterError
from ...fleet import Tolerance
from ...rollout import Sampler, SamplerEndpoint
from ...training import ClosedGroup, Probe, ProbeScores
from ...trajectories import Logprobs, Tokens, Trajectory

RENEW = 8
"""Versions that are compared on the same tokens; only for the first of them is the version before asked, too."""
SEVERAL = 4
"""Trajectories that are compared at most where a sampler's rounding of single tokens is large."""
ENOUGH = 32
"""Tokens of the policy's own that are compared, where one trajectory has as many: each costs time, and the mean over
these is told apart from rounding as well as that over a long reply."""

Nats = NDArray[np.float64]


@dataclass(frozen=True)
class CanaryReport:
    """What one canary found, in nats over the policy's own tokens; of several samplers, the worst of each."""

    gap: float
    """Largest difference between sampler and trainer under the new version."""
    mean_gap: float
    moved: float
    """Largest change from the version before, as the trainer computes it."""
    followed: float
    """Share of the trainer's change that the sampler made, too: 1 up to ``doubt``; 0 where it did not change."""
    doubt: float
    """How far rounding alone can push that share; infinite where nothing moved."""
    mean_moved: float = 0.0
    """Mean change from the version before, as the trainer computes it."""

    @property
    def resolved(self) -> bool:
        """Whether the step moved the policy far enough to tell the two versions apart."""
        return self.doubt < 0.5

    def metrics(self) -> dict[str, float]:
        """The figures that are recorded with the step's metrics, by name."""
        seen = {"gap_max": self.gap, "gap_mean": self.mean_gap, "gap_resolved": float(self.resolved)}
        seen |= {"moved": self.mean_moved}
        return seen | ({"gap_followed": self.followed} if self.resolved else {})


@dataclass(frozen=True)
class Asked:
    """What is compared after one step."""

    chosen: tuple[Trajectory, ...]
    """Empty where the step's groups have no tokens of the policy's own."""
    probe: Probe | None
    """For the trainer's step."""
    names: Set[str]
    """Of the endpoints that will serve what the step makes."""
    age: int
    """How many versions were compared on the same tokens before."""

    @property
    def renewed(self) -> bool:
        """Whether the tokens are new, and endpoints are to be asked under the version before, too."""
        return self.age == 0


@dataclass(frozen=True)
class _Answered:
    """Both sides' log-probabilities under the newest version that was compared."""

    trained: Nats
    served: dict[str, Nats]
    """By endpoint."""


class Canary:
    """Compares one policy's versions, one after the other."""

    def __init__(self, tolerances: Mapping[str, Tolerance], temperature: float) -> None:
        """``tolerances`` are by endpoint."""
        self._tolerances = tolerances
        self._temperature = temperature
        self._asked: Asked | None = None
        self._answered: _Answered | None = None
        self._told = True
        """Whether other tokens would say no more: they told versions apart, or a sampler rounds all tokens alike."""
        self._rounding = {name: tolerance.rounding for name, tolerance in tolerances.items()}
        """By endpoint, the largest difference from the trainer on any token so far; at first the tolerance's."""

    def due(self, names: Set[str]) -> bool:
        """Whether new tokens are to be compared after the next step, which endpoints of these names will serve."""
        asked = self._asked
        return asked is None or not asked.chosen or not self._told or asked.age + 1 >= RENEW or not names <= asked.names

    def ask(self, names: Set[str], groups: Sequence[ClosedGroup]) -> Asked:
        """Before a step, say what is to be compared after it.

        ``names`` are those of the endpoints that will serve what it makes: the step after it can count on them alone.
        ``groups`` are those that the step consumes.
        """
        if self.due(names):
            chosen, age = choose(groups, SEVERAL if self._rounded(names) else 1), 0
        else:
            assert self._asked is not None, "else it would be due"
            chosen, age = self._asked.chosen, self._asked.age + 1
        probe = Probe(tuple(map(_wanted, chosen)), self._temperature, before=not age) if chosen else None
        self._asked = Asked(chosen, probe, names, age)
        return self._asked

    async def compare(
        self, version: str, before: str, endpoints: Sequence[SamplerEndpoint], asked: Asked, scores: ProbeScores
    ) -> CanaryReport:
        """Ask the endpoints, which serve ``version`` by now, and compare; where the tokens are new, also under
        ``before``, the version before it, which they have loaded.

        ``scores`` are the trainer's, of the step that made the version. Raises ``AdapterError`` if an endpoint does not
        serve that version, and what the workers raise.
        """
        if not asked.chosen:
            return CanaryReport(0.0, 0.0, 0.0, 1.0, math.inf)
        trained = _own(scores.made, asked.chosen)
        if asked.renewed:
            self._answered = _Answered(
                _own(scores.before, asked.chosen), await self._ask_all(endpoints, before, asked.chosen)
            )
        served = await self._ask_all(endpoints, version, asked.chosen)
        last = self._answered
        assert last is not None, "tokens that are not new have been compared before"
        if not np.isfinite(trained).all():
            raise AdapterError(
                f"What the trainer says of {version} is not finite: the policy has blown up.",
                "A smaller learning rate usually helps, in a task of its own.",
            )
        self._round(last.served, last.trained)
        reports = []
        for name, said in served.items():
            moves = trained - last.trained, said - last.served[name]
            reports.append(compare(*moves, said - trained, self._rounding[name]))
            self._judge(name, version, reports[-1])
        report = worst(reports)
        self._round(served, trained)
        self._answered = _Answered(trained, served)
        self._told = report.resolved or self._rounded(asked.names)
        return report

    def _rounded(self, names: Set[str]) -> bool:
        """Whether the rounding of single tokens is large at one of these endpoints."""
        return any(math.isinf(self._tolerances[name].largest) for name in names)

    def _judge(self, name: str, version: str, report: CanaryReport) -> None:
        if not self._tolerances[name].holds(report.gap, report.mean_gap):
            raise AdapterError(
                f"The sampler {name} serves {version} with log-probabilities {report.mean_gap:.3g} away from the"
                f" trainer's on average, {report.gap:.3g} at most.",
                "The adapter did not arrive as it was trained; the version is not used.",
            )
        if report.resolved and not abs(report.followed - 1.0) <= 0.5:
            raise AdapterError(
                f"The sampler {name} says that it serves {version}, but of what the last step changed,"
                f" {report.followed:.0%} arrived: it serves another version.",
                "The version is not used; resume the task to publish it again.",
            )

    def _round(self, served: Mapping[str, Nats], trained: Nats) -> None:
        for name, said in served.items():
            self._rounding[name] = max(self._rounding[name], float(np.abs(said - trained).max()))

    async def _ask_all(
        self, endpoints: Sequence[SamplerEndpoint], version: str, chosen: Sequence[Trajectory]
    ) -> dict[str, Nats]:
        said = await asyncio.gather(*(self._ask(endpoint.sampler, version, chosen) for endpoint in endpoints))
        return {endpoint.name: one for endpoint, one in zip(endpoints, said, strict=True)}

    async def _ask(self, sampler: Sampler, version: str, chosen: Sequence[Trajectory]) -> Nats:
        wanted = map(_wanted, chosen)
        said = [await sampler.score(version, tokens, start, self._temperature) for tokens, start in wanted]
        return _own(said, chosen)


def _wanted(one: Trajectory) -> tuple[Tokens, int]:
    """The policy's first own tokens with what is before them, and where they begin."""
    own = _first(one)
    return one.tokens[: own[-1] + 1], int(own[0])


def _own(said: Sequence[Logprobs], chosen: Sequence[Trajectory]) -> Nats:
    """The log-probabilities of the policy's first own tokens in all trajectories, joined."""
    found = [logprobs[_first(one) - _first(one)[0]] for logprobs, one in zip(said, chosen, strict=True)]
    return np.concatenate(found).astype(np.float64)


def _first(one: Trajectory) -> NDArray[np.intp]:
    """Where the policy's first own tokens are: tokens that others wrote may differ widely."""
    return np.flatnonzero(one.mask)[:ENOUGH]


def choose(groups: Sequence[ClosedGroup], most: int) -> tuple[Trajectory, ...]:
    """Up to ``most`` trajectories with tokens of the policy's own, until they are ``ENOUGH``: those with an advantage
    first, then the longest."""
    trajectories = [t for c in groups for e in c.group.episodes for t in e.trajectories if t.mask.any()]
    trajectories.sort(key=lambda t: (t.advantage != 0.0, np.count_nonzero(t.mask)), reverse=True)
    chosen: list[Trajectory] = []
    while len(chosen) < min(most, len(trajectories)) and sum(int(t.mask.sum()) for t in chosen) < ENOUGH:
        chosen.append(trajectories[len(chosen)])
    return tuple(chosen)


def compare(moved: Nats, followed: Nats, gaps: Nats, rounding: float) -> CanaryReport:
    """The report on n tokens, all float64 (n,): the trainer's change, the sampler's, and sampler minus trainer.

    The share is the least-squares factor between the two changes. Where no honest log-probability is further than
    ``rounding`` from the trainer's, each change is off by twice that at most, and so the share by 2·rounding·Σ|m|/Σm².
    """
    squares = float(moved @ moved)
    doubt = 2.0 * rounding * float(np.abs(moved).sum()) / squares if squares > 0.0 else math.inf
    share = float(followed @ moved) / squares if squares > 0.0 else 1.0
    sizes, changes = np.abs(gaps), np.abs(moved)
    far = float(changes.max()), share, doubt, float(changes.mean())
    return CanaryReport(float(sizes.max()), float(sizes.mean()), *far)


def worst(reports: Sequence[CanaryReport]) -> CanaryReport:
    """Of one or several samplers' reports on the same tokens, the worst of each figure."""
    return CanaryReport(
        max(report.gap for report in reports),
        max(report.mean_gap for report in reports),
        max(report.moved for report in reports),
        max((report.followed for report in reports), key=lambda followed: abs(followed - 1.0)),
        max(report.doubt for report in reports),
        max(report.mean_moved for report in reports),
    )
