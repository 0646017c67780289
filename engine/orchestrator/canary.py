"""Published means served: after every publish, sampler and trainer must agree on the tokens of the last batch.

A batch flows in when its step has committed; a report flows out once the sampler serves the version. The trainer speaks
first, because its weights are that version's only until the next step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np

from ..errors import AdapterError
from ..training.advantages import ClosedGroup
from ..types import Trajectory
from .services import Services


@dataclass(frozen=True)
class CanaryReport:
    """What one canary saw."""

    gap: float
    """Largest difference between sampler and trainer under the new version."""
    mean_gap: float
    distance: float
    """Largest difference between the new version and the one before, by the sampler."""

    @property
    def resolved(self) -> bool:
        """Whether the step moved the policy far enough to tell the two versions apart."""
        return self.distance > 2 * self.gap

    def metrics(self) -> dict[str, float]:
        """As they are recorded beside the step's own."""
        return {"gap_max": self.gap, "gap_mean": self.mean_gap, "gap_resolved": float(self.resolved)}


async def canary(
    services: Services,
    policy: str,
    new: str,
    old: str,
    groups: list[ClosedGroup],
    temperature: float,
    publish: Callable[[], Awaitable[None]],
) -> CanaryReport:
    """Score one trajectory of the last batch three times: by the trainer now, by the sampler after ``publish``.

    Raises ``AdapterError`` if the gap is beyond rounding, and what ``publish`` raises.
    """
    sampler, trainer = services.sampler, services.trainer
    chosen = _longest_reply(groups)
    if chosen is None:
        await publish()
        return CanaryReport(0.0, 0.0, 0.0)
    start = int(np.argmax(chosen.mask))
    own = chosen.mask[start:].astype(bool)  # what others wrote may be so unlikely that its log-probability is all noise
    scored = asyncio.ensure_future(trainer.score(policy, chosen.tokens, start, temperature))
    try:
        await publish()
        scores = (sampler.score(name, chosen.tokens, start, temperature) for name in (new, old))
        served, before = await asyncio.gather(*scores)
        trained = await scored
    finally:
        scored.cancel()
        await asyncio.gather(scored, return_exceptions=True)
    gaps = np.abs(trained - served)[own]
    moved = np.abs(served - before)[own]
    report = CanaryReport(float(gaps.max()), float(gaps.mean()), float(moved.max()))
    if not services.tolerance.holds(report.gap, report.mean_gap):
        raise AdapterError(
            f"The sampler serves {new} with log-probabilities {report.mean_gap:.3g} away from the trainer's on"
            f" average, {report.gap:.3g} at most.",
            "The adapter did not arrive as it was trained; the version is not used.",
        )
    return report


def _longest_reply(groups: list[ClosedGroup]) -> Trajectory | None:
    trajectories = [t for c in groups for e in c.group.episodes for t in e.trajectories]
    longest = max(trajectories, key=lambda t: np.count_nonzero(t.mask), default=None)
    return longest if longest is not None and longest.mask.any() else None
