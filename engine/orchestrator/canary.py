"""Published means served: after every publish, sampler and trainer must have moved alike on tokens of the policy's own.

Tokens of a batch flow in before its optimizer step; a report flows out once the sampler serves the new version. Two
questions are asked. Do both give the same log-probabilities, up to rounding? And did the sampler's change from version
to version as the trainer's did? The second finds an adapter handle that was mixed up: its checksum is right, and one
step at a small learning rate moves the policy by less than what rounding may explain.

The trainer is asked before the next step, because its weights are a version's only until then.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import AdapterError
from ..rollout.protocol import Sampler
from ..training.advantages import ClosedGroup
from ..training.protocol import PolicyTrainer
from ..types import Logprobs, Tokens, Trajectory
from .tolerance import Tolerance

RENEW = 8
"""Versions that are compared on the same tokens, which saves asking about the version before."""
SEVERAL = 4
"""Trajectories that are looked at where single tokens are rounded too much."""

Nats = NDArray[np.float64]
Scores = Callable[[str, Tokens, int, float], Awaitable[Logprobs]]
"""``Trainer.score`` or ``Sampler.score``."""


@dataclass(frozen=True)
class CanaryReport:
    """What one canary saw, in nats over the policy's own tokens."""

    gap: float
    """Largest difference between sampler and trainer under the new version."""
    mean_gap: float
    moved: float
    """Largest change from the version before, as the trainer computes it."""
    followed: float
    """Of the trainer's change, the share that the sampler made, too: 1 up to ``doubt``; 0 where it stands still."""
    doubt: float
    """How far rounding alone can push that share; infinite where nothing moved."""

    @property
    def resolved(self) -> bool:
        """Whether the step moved the policy far enough to tell the two versions apart."""
        return self.doubt < 0.5

    def metrics(self) -> dict[str, float]:
        """As they are recorded beside the step's own."""
        seen = {"gap_max": self.gap, "gap_mean": self.mean_gap, "gap_resolved": float(self.resolved)}
        return seen | ({"gap_followed": self.followed} if self.resolved else {})


@dataclass(frozen=True)
class _Probe:
    """Tokens of some trajectories, and what both sides said of them under the newest version that was compared."""

    chosen: tuple[Trajectory, ...]
    trained: Nats
    served: Nats
    age: int = 0
    """Versions compared on them."""


class Canary:
    """Compares one policy's versions, one after the other. ``policy`` is its name in the trainer."""

    def __init__(
        self, sampler: Sampler, trainer: PolicyTrainer, tolerance: Tolerance, policy: str, temperature: float
    ) -> None:
        self._sampler = sampler
        self._trainer = trainer
        self._tolerance = tolerance
        self._policy = policy
        self._temperature = temperature
        self._probe: _Probe | None = None
        self._rounding = tolerance.rounding
        """Largest difference between the two on any token so far, or what it may be where few have been seen."""

    async def before(self, version: str, groups: Sequence[ClosedGroup]) -> None:
        """Look at the version that is served and about to be stepped from, if new tokens are due.

        ``groups`` are those that the step consumes. Raises what the workers raise.
        """
        if self._probe is not None and self._probe.age < RENEW:
            return
        chosen = choose(groups, SEVERAL if math.isinf(self._tolerance.largest) else 1)
        self._probe = None
        if chosen:
            trained, served = await asyncio.gather(
                self._ask(self._trainer.score, self._policy, chosen), self._ask(self._sampler.score, version, chosen)
            )
            self._probe = self._kept(chosen, trained, served, 0)

    async def after(self, version: str, publish: Callable[[], Awaitable[None]]) -> CanaryReport:
        """Ask the trainer, ``publish`` the version that it has just made, ask the sampler, and compare.

        Raises ``AdapterError`` if the sampler does not serve that version, and what ``publish`` raises.
        """
        probe = self._probe
        if probe is None:
            await publish()
            return CanaryReport(0.0, 0.0, 0.0, 1.0, math.inf)
        asked = asyncio.ensure_future(self._ask(self._trainer.score, self._policy, probe.chosen))
        try:
            await publish()
            served = await self._ask(self._sampler.score, version, probe.chosen)
            trained = await asked
        finally:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        if not np.isfinite(trained).all():
            raise AdapterError(
                f"What the trainer says of {version} is not finite: the policy has blown up.",
                "A smaller learning rate usually helps, in a task of its own.",
            )
        report = compare(trained - probe.trained, served - probe.served, served - trained, self._rounding)
        self._judge(version, report)
        self._probe = self._kept(probe.chosen, trained, served, probe.age + 1) if report.resolved else None
        return report

    def _judge(self, version: str, report: CanaryReport) -> None:
        if not self._tolerance.holds(report.gap, report.mean_gap):
            raise AdapterError(
                f"The sampler serves {version} with log-probabilities {report.mean_gap:.3g} away from the trainer's on"
                f" average, {report.gap:.3g} at most.",
                "The adapter did not arrive as it was trained; the version is not used.",
            )
        if report.resolved and not abs(report.followed - 1.0) <= 0.5:
            raise AdapterError(
                f"The sampler says that it serves {version}, but of what the last step changed,"
                f" {report.followed:.0%} arrived: it serves another version.",
                "The version is not used; resume the task to publish it again.",
            )

    def _kept(self, chosen: tuple[Trajectory, ...], trained: Nats, served: Nats, age: int) -> _Probe:
        self._rounding = max(self._rounding, float(np.abs(served - trained).max()))
        return _Probe(chosen, trained, served, age)

    async def _ask(self, score: Scores, name: str, chosen: Sequence[Trajectory]) -> Nats:
        """What one side says of the policy's own tokens in all the trajectories, one after the other."""
        said = []
        for one in chosen:
            start = int(np.argmax(one.mask))
            logprobs = await score(name, one.tokens, start, self._temperature)
            said.append(logprobs[one.mask[start:].astype(bool)])  # what others wrote may be all noise
        return np.concatenate(said).astype(np.float64)


def choose(groups: Sequence[ClosedGroup], most: int) -> tuple[Trajectory, ...]:
    """Up to ``most`` trajectories with tokens of the policy's own: those that teach something, then the longest."""
    trajectories = [t for c in groups for e in c.group.episodes for t in e.trajectories if t.mask.any()]
    trajectories.sort(key=lambda t: (t.advantage != 0.0, np.count_nonzero(t.mask)), reverse=True)
    return tuple(trajectories[:most])


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
