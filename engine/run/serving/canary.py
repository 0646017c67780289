"""The canary: after a publish, samplers and trainer must have moved alike on tokens that the policy wrote itself.

The tokens are those of a batch, with a little of what stands before them. Two questions are asked. Do both give the
same log-probabilities, up to rounding? And did the sampler's change from version to version as the trainer's did? The
second finds an adapter handle that was mixed up: its checksum is right, and one step at a small learning rate moves the
policy by less than what rounding may explain.

Every endpoint that is to serve the version is asked, each with the tolerance of its own arithmetic, while the trainer
trains. The trainer answers with the first groups of the next step, in the same pass: these are trained on with the very
weights of the version.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...errors import AdapterError
from ...fleet import Tolerance
from ...rollout import Sampler, SamplerEndpoint
from ...training import ClosedGroup, Probe
from ...trajectories import Logprobs, Tokens, Trajectory

RENEW = 8
"""Versions that are compared on the same tokens; samplers answer for the version before only with the first of them."""
SEVERAL = 4
"""Trajectories that are compared at most where a sampler's rounding of single tokens is large."""
ENOUGH = 32
"""Tokens of the policy's own that are compared, where one trajectory has as many: each costs time, and the mean over
these is told apart from rounding as well as that over a long reply."""
CONTEXT = 32
"""Tokens before them that both sides read. A step moves log-probabilities as far with 16 of them as with a whole
prompt (measured on the shipped base), and a prompt may have thousands."""
LONGEST = CONTEXT + 2 * ENOUGH
"""Tokens that both sides read at most: what others wrote between the policy's own tokens may be long."""

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
class Window:
    """Tokens of one trajectory that are compared."""

    tokens: Tokens
    """int32 (T,)"""
    own: NDArray[np.intp]
    """Where the policy's own tokens are; both sides score from the first of them on."""

    @property
    def start(self) -> int:
        """Where scoring begins."""
        return int(self.own[0])

    def among(self, said: Logprobs) -> Logprobs:
        """Of log-probabilities from ``start`` on, those of the policy's own tokens: others' may differ widely."""
        return said[self.own - self.start]


Windows = tuple[Window, ...]


@dataclass(frozen=True)
class Asked:
    """What is compared after one step."""

    chosen: Windows
    """Empty where the step's groups have no tokens of the policy's own."""
    before: Nats
    """The trainer's log-probabilities of them under the version before."""
    names: Set[str]
    """Of the endpoints that will serve what the step makes."""
    age: int
    """How many versions were compared on the same tokens before."""
    renewed: bool
    """Whether the tokens or endpoints are new, so that these are to be asked under the version before, too."""
    trained: asyncio.Future[Nats] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """The trainer's log-probabilities under the version, once it has passed groups with it."""


@dataclass(frozen=True)
class Served:
    """The endpoints' log-probabilities, by endpoint."""

    made: dict[str, Nats]
    """Under the version."""
    before: dict[str, Nats]
    """Under the one before, on the same tokens."""


class Canary:
    """Compares one policy's versions, one after the other."""

    def __init__(self, tolerances: Mapping[str, Tolerance], temperature: float) -> None:
        """``tolerances`` are by endpoint."""
        self._tolerances = tolerances
        self._temperature = temperature
        self._asked: Asked | None = None
        self._drawn: Windows = ()
        """Tokens that are compared from the next step on."""
        self._riding: tuple[Windows, Windows] = (), ()
        """What the trainer is asked at the moment: tokens of before, and new ones."""
        self._before: Nats = _join((), ())
        """The trainer's log-probabilities of the tokens that were drawn."""
        self._last: dict[str, Nats] = {}
        """By endpoint, its log-probabilities under the newest version that was compared."""
        self._told = True
        """Whether other tokens would say no more: they told versions apart, or a sampler rounds all tokens alike."""
        self._rounding = {name: tolerance.rounding for name, tolerance in tolerances.items()}
        """By endpoint, the largest difference from the trainer on any token so far; at first the tolerance's."""

    def probe(self, groups: Sequence[ClosedGroup]) -> Probe | None:
        """What the trainer is to be asked with its next groups, which are ``groups``; None where it is nothing.

        Give its answer to ``learn`` before the next call.
        """
        asked = self._asked
        current = asked.chosen if asked and not asked.trained.done() else ()
        self._riding = current, choose(groups, self._most) if self._due else ()
        wanted = [(window.tokens, window.start) for windows in self._riding for window in windows]
        return Probe(tuple(wanted)) if wanted else None

    def learn(self, scores: Sequence[Logprobs]) -> None:
        """The trainer's answer to ``probe``; nothing where that was nothing."""
        (current, drawn), self._riding = self._riding, ((), ())
        if current and self._asked:
            self._asked.trained.set_result(_join(scores[: len(current)], current))
        if drawn:
            self._drawn, self._before = drawn, _join(scores[len(current) :], drawn)

    def ask(self, names: Set[str]) -> Asked:
        """Before a step, after the trainer has answered, say what is to be compared after it.

        ``names`` are those of the endpoints that will serve what it makes: the step after it can count on them alone.
        """
        last, drawn, self._drawn = self._asked, self._drawn, ()
        if drawn or last is None or not last.chosen:
            asked = Asked(drawn, self._before, names, age=0, renewed=bool(drawn))
        else:
            asked = Asked(last.chosen, last.trained.result(), names, last.age + 1, renewed=not names <= last.names)
        if not asked.chosen:
            asked.trained.set_result(asked.before)
        self._asked = asked
        return asked

    async def ask_samplers(
        self, version: str, before: str, endpoints: Sequence[SamplerEndpoint], asked: Asked
    ) -> Served:
        """Ask the endpoints, which serve ``version`` by now; where the tokens or endpoints are new, also under
        ``before``, the version before it, which they have loaded. Raises what the workers raise."""
        names = (before, version) if asked.renewed else (version,)
        *old, made = await asyncio.gather(*(self._ask_all(endpoints, name, asked.chosen) for name in names))
        return Served(made, old[0] if asked.renewed else self._last)

    async def judge(self, version: str, asked: Asked, served: Served) -> CanaryReport:
        """Compare, once the trainer has answered. Raises ``AdapterError`` if an endpoint does not serve ``version``."""
        trained = await asked.trained
        if not asked.chosen:
            return CanaryReport(0.0, 0.0, 0.0, 1.0, math.inf)
        if not np.isfinite(trained).all():
            raise AdapterError(
                f"What the trainer says of {version} is not finite: the policy has blown up.",
                "A smaller learning rate usually helps, in a task of its own.",
            )
        self._round(served.before, asked.before)
        reports = []
        for name, said in served.made.items():
            moves = trained - asked.before, said - served.before[name]
            reports.append(compare(*moves, said - trained, self._rounding[name]))
            self._judge(name, version, reports[-1])
        report = worst(reports)
        self._round(served.made, trained)
        self._last = served.made
        self._told = report.resolved or self._rounded(asked.names)
        return report

    @property
    def _due(self) -> bool:
        """Whether new tokens are to be compared after the next step."""
        asked = self._asked
        tired = asked is None or not asked.chosen or not self._told or asked.age + 1 >= RENEW
        return tired and not self._drawn

    @property
    def _most(self) -> int:
        return SEVERAL if self._rounded(self._asked.names if self._asked else set(self._tolerances)) else 1

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

    async def _ask_all(self, endpoints: Sequence[SamplerEndpoint], version: str, chosen: Windows) -> dict[str, Nats]:
        said = await asyncio.gather(*(self._ask(endpoint.sampler, version, chosen) for endpoint in endpoints))
        return {endpoint.name: one for endpoint, one in zip(endpoints, said, strict=True)}

    async def _ask(self, sampler: Sampler, version: str, chosen: Windows) -> Nats:
        scores = (sampler.score(version, window.tokens, window.start, self._temperature) for window in chosen)
        return _join(await asyncio.gather(*scores), chosen)


def _join(said: Sequence[Logprobs], chosen: Windows) -> Nats:
    """The log-probabilities of the policy's own tokens in all windows, joined."""
    found = [window.among(logprobs) for logprobs, window in zip(said, chosen, strict=True)]
    return np.concatenate([np.empty(0, np.float64), *found])


def choose(groups: Sequence[ClosedGroup], most: int) -> Windows:
    """Windows of up to ``most`` trajectories with tokens of the policy's own, until these are ``ENOUGH``: trajectories
    with an advantage first, then the longest."""
    trajectories = [t for c in groups for e in c.group.episodes for t in e.trajectories if t.mask.any()]
    trajectories.sort(key=lambda t: (t.advantage != 0.0, np.count_nonzero(t.mask)), reverse=True)
    chosen: list[Window] = []
    while len(chosen) < min(most, len(trajectories)) and sum(len(window.own) for window in chosen) < ENOUGH:
        chosen.append(window_of(trajectories[len(chosen)]))
    return tuple(chosen)


def window_of(one: Trajectory) -> Window:
    """The policy's first own tokens, with what is right before them."""
    own = np.flatnonzero(one.mask)[:ENOUGH]
    begin = max(0, int(own[0]) - CONTEXT)
    own = own[own < begin + LONGEST]
    return Window(one.tokens[begin : own[-1] + 1], own - begin)


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
