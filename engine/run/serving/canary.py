"""The canary: after a publish, samplers and trainer must have moved alike on tokens that the policy wrote itself.

The tokens are those of a batch before its optimizer step. Two questions are asked. Do both give the same
log-probabilities, up to rounding? And did the sampler's change from version to version as the trainer's did? The second
finds an adapter handle that was mixed up: its checksum is right, and one step at a small learning rate moves the policy
by less than what rounding may explain.

Every endpoint that is to serve the version is asked, each with the tolerance of its own arithmetic. The trainer is
asked before anything else of the next step, because until that one its weights are those of the version. Samplers
answer while the trainer trains.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import AdapterError
from ...fleet import Tolerance
from ...rollout import SamplerEndpoint
from ...training import ClosedGroup, PolicyTrainer
from ...trajectories import Logprobs, Tokens, Trajectory

RENEW = 8
"""Versions that are compared on the same tokens; then the version before need not be asked again."""
SEVERAL = 4
"""Trajectories that are compared at most where a sampler's rounding of single tokens is large."""
ENOUGH = 32
"""Tokens of the policy's own that are compared, where one trajectory has as many: each costs the trainer time, in which
a step waits; the mean over these is told apart from rounding as well as that over a long reply."""

T = TypeVar("T")
Nats = NDArray[np.float64]
Scores = Callable[[str, Tokens, int, float], Awaitable[Logprobs]]
"""``Trainer.score`` or ``Sampler.score``."""


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

    @property
    def resolved(self) -> bool:
        """Whether the step moved the policy far enough to tell the two versions apart."""
        return self.doubt < 0.5

    def metrics(self) -> dict[str, float]:
        """The figures that are recorded with the step's metrics, by name."""
        seen = {"gap_max": self.gap, "gap_mean": self.mean_gap, "gap_resolved": float(self.resolved)}
        return seen | ({"gap_followed": self.followed} if self.resolved else {})


@dataclass(frozen=True)
class _Probe:
    """Trajectories, and both sides' log-probabilities of them under the newest version that was compared."""

    chosen: tuple[Trajectory, ...]
    trained: Nats
    names: Set[str]
    """Of the endpoints that are asked under the newest version."""
    served: asyncio.Future[dict[str, Nats]]
    """By endpoint."""
    age: int = 0
    """How many versions were compared on them."""
    told: bool = True
    """Whether other tokens would say no more: versions could be told apart, or a sampler rounds all tokens alike."""
    rounded: bool = False
    """Whether a sampler's rounding of single tokens is large."""


class Canary:
    """Compares one policy's versions, one after the other. ``policy`` is its name in the trainer."""

    def __init__(
        self, trainer: PolicyTrainer, tolerances: Mapping[str, Tolerance], policy: str, temperature: float
    ) -> None:
        """``tolerances`` are by endpoint."""
        self._trainer = trainer
        self._tolerances = tolerances
        self._policy = policy
        self._temperature = temperature
        self._probe: _Probe | None = None
        self._asked: asyncio.Future[Nats] | None = None
        """What the trainer says of the probe under the version that it made last."""
        self._rounding = {name: tolerance.rounding for name, tolerance in tolerances.items()}
        """By endpoint, the largest difference from the trainer on any token so far; at first the tolerance's."""

    def due(self, names: Set[str]) -> bool:
        """Whether new tokens are to be compared after the next step, which endpoints of these names will serve."""
        probe = self._probe
        return probe is None or not probe.told or probe.age >= RENEW or not names <= probe.names

    async def before(self, version: str, endpoints: Sequence[SamplerEndpoint], groups: Sequence[ClosedGroup]) -> None:
        """Before a step, ask about new tokens under the present version.

        Returns once the trainer has answered. ``endpoints`` will serve the next version and have this one loaded;
        ``groups`` are those that the step consumes. Raises what the trainer raises.
        """
        names = frozenset(endpoint.name for endpoint in endpoints)
        rounded = any(math.isinf(self._tolerances[endpoint.name].largest) for endpoint in endpoints)
        chosen = choose(groups, SEVERAL if rounded else 1)
        self._probe = None
        if chosen:
            served = _heard(asyncio.ensure_future(self._ask_all(endpoints, version, chosen)))
            trained = await self._ask(self._trainer.score, self._policy, chosen)
            self._probe = _Probe(chosen, trained, names, served, rounded=rounded)

    def ask(self, names: Set[str]) -> None:
        """After a step, ask the trainer, which must not train before it has answered.

        ``names`` are those of the endpoints that will serve what it has made: the next step can count on them alone.
        """
        probe, self._asked = self._probe, None
        if probe is not None:
            self._probe = replace(probe, names=names)
            self._asked = _heard(asyncio.ensure_future(self._ask(self._trainer.score, self._policy, probe.chosen)))

    async def asked(self) -> None:
        """Wait until the trainer has answered, or has failed."""
        if self._asked is not None:
            await asyncio.wait((self._asked,))

    async def after(
        self, version: str, endpoints: Sequence[SamplerEndpoint], publish: Callable[[], Awaitable[None]]
    ) -> CanaryReport:
        """After ``ask``, ``publish`` the version, ask the endpoints that serve it, and compare.

        Raises ``AdapterError`` if one of them does not serve that version, what ``publish`` raises, and what the
        workers raised since ``before``.
        """
        probe, asked = self._probe, self._asked
        if probe is None or asked is None:
            await publish()
            return CanaryReport(0.0, 0.0, 0.0, 1.0, math.inf)
        try:
            before = await probe.served  # of a version that may be retired once this one is published
            await publish()
            served = await self._ask_all(endpoints, version, probe.chosen)
            trained = await asked
        finally:
            asked.cancel()
            probe.served.cancel()
            await asyncio.gather(asked, probe.served, return_exceptions=True)
        if not np.isfinite(trained).all():
            raise AdapterError(
                f"What the trainer says of {version} is not finite: the policy has blown up.",
                "A smaller learning rate usually helps, in a task of its own.",
            )
        self._round(before, probe.trained)
        reports = []
        for name, said in served.items():
            moves = trained - probe.trained, said - before[name]
            reports.append(compare(*moves, said - trained, self._rounding[name]))
            self._judge(name, version, reports[-1])
        report = worst(reports)
        self._round(served, trained)
        answer: asyncio.Future[dict[str, Nats]] = asyncio.get_running_loop().create_future()
        answer.set_result(served)
        told = report.resolved or probe.rounded
        self._probe = replace(probe, trained=trained, served=answer, age=probe.age + 1, told=told)
        return report

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
        said = await asyncio.gather(*(self._ask(endpoint.sampler.score, version, chosen) for endpoint in endpoints))
        return {endpoint.name: one for endpoint, one in zip(endpoints, said, strict=True)}

    async def _ask(self, score: Scores, name: str, chosen: Sequence[Trajectory]) -> Nats:
        """One side's log-probabilities of the policy's first own tokens in all trajectories, joined."""
        said = []
        for one in chosen:
            own = np.flatnonzero(one.mask)[:ENOUGH]  # tokens that others wrote may differ widely
            logprobs = await score(name, one.tokens[: own[-1] + 1], int(own[0]), self._temperature)
            said.append(logprobs[own - own[0]])
        return np.concatenate(said).astype(np.float64)


def _heard(asked: asyncio.Future[T]) -> asyncio.Future[T]:
    """The same; where nobody waits for it any more, its failure is no news: whoever ends the run has heard of it."""
    asked.add_done_callback(lambda done: done.cancelled() or done.exception())
    return asked


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
    sizes = np.abs(gaps)
    return CanaryReport(float(sizes.max()), float(sizes.mean()), float(np.abs(moved).max()), share, doubt)


def worst(reports: Sequence[CanaryReport]) -> CanaryReport:
    """Of one or several samplers' reports on the same tokens, the worst of each figure."""
    return CanaryReport(
        max(report.gap for report in reports),
        max(report.mean_gap for report in reports),
        max(report.moved for report in reports),
        max((report.followed for report in reports), key=lambda followed: abs(followed - 1.0)),
        max(report.doubt for report in reports),
    )
