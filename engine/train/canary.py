"""After a publish, samplers and trainer must agree, and have changed alike, on the policy's tokens.

The second test finds a wrong version, since one step moves less than rounding. Changes add up from the last
distinguishable version.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import AdapterError
from ..machine.routing.router import Tolerance
from ..rollout.slots import SamplerEndpoint
from ..samplers.protocol import Sampler
from ..trainer.advantages import ClosedGroup
from ..trainer.protocol import Probe
from ..trajectories import Logprobs, Tokens, Trajectory

RENEW = 8
PATIENT = 64
"""Versions compared on the same tokens while rounding hides changes; else ``RENEW``."""
STANDARD_ERRORS = 5.0
"""From 0 or 1 to their middle, before a version is judged: one judgement in 3 million is wrong with normal rounding."""
SEVERAL = 8
"""Trajectories if single tokens' rounding is large; else one."""
ENOUGH = 32
"""Own tokens per trajectory."""
MANY = 128
"""At 135 million parameters and learning rate 2e-4 these distinguish versions after one or two steps in bfloat16, two
to four in ``q8_0``."""
CONTEXT = 32
"""16 show a step's change as well as a whole prompt (shipped base)."""
LONGEST = CONTEXT + 2 * ENOUGH

Nats = NDArray[np.float64]
_NOTHING: Nats = np.empty(0, np.float64)


@dataclass(frozen=True)
class CanaryReport:
    """One canary's result, in nats per own token; of several samplers, the worst figures."""

    gap: float
    """Largest difference of sampler and trainer."""
    mean_gap: float
    moved: float
    """Mean change in the trainer."""
    followed: float
    """The sampler's share of the trainer's change since the reference version: 1 up to ``doubt``; 0: no change."""
    doubt: float
    """Share that rounding can explain; infinite if nothing moved."""

    @property
    def resolved(self) -> bool:
        return self.doubt < 0.5

    def metrics(self) -> dict[str, float]:
        seen = {"gap_max": self.gap, "gap_mean": self.mean_gap, "gap_resolved": float(self.resolved)}
        return seen | {"moved": self.moved} | ({"gap_followed": self.followed} if self.resolved else {})


@dataclass(frozen=True)
class Window:
    """Compared tokens of one trajectory."""

    tokens: Tokens
    """int32 (T,)"""
    own: NDArray[np.intp]
    """Of own tokens; both sides score from the first on."""

    @property
    def start(self) -> int:
        return int(self.own[0])

    def among(self, said: Logprobs) -> Logprobs:
        return said[self.own - self.start]


Windows = tuple[Window, ...]


@dataclass
class Asked:
    """What is compared after one step."""

    chosen: Windows
    names: Set[str]
    """The new version's endpoints."""
    age: int
    """Versions compared on these tokens before."""
    renewed: bool
    """Also asked under the version before."""
    before: Nats
    """By the trainer, under the version before and the new one."""
    trained: Nats

    @property
    def probe(self) -> Probe | None:
        """What the trainer scores with the step."""
        sequences = tuple((window.tokens, window.start) for window in self.chosen)
        return Probe(sequences, self.renewed) if sequences else None


Served = tuple[dict[str, Nats], dict[str, Nats]]
"""By endpoint: under the version, and the one before if renewed."""


class Canary:
    """Compares one policy's versions."""

    def __init__(self, tolerances: Mapping[str, Tolerance], temperature: float) -> None:
        self._tolerances = tolerances
        self._temperature = temperature
        self._asked: Asked | None = None
        self._reference: tuple[Nats, Mapping[str, Nats]] = _NOTHING, {}
        """The trainer's log-probabilities, and each endpoint's, under the reference version."""
        self._resolved = True

    def ask(self, groups: Sequence[ClosedGroup], names: Set[str]) -> Asked:
        """Before a step on ``groups``: its ``probe`` goes to the trainer, and the answer to ``learn``."""
        last, most = self._asked, RENEW if self._resolved else PATIENT
        if last is None or not last.chosen or last.age + 1 >= most:
            several = any(math.isinf(self._tolerances[name].largest) for name in names)
            if chosen := choose(groups, several):
                return Asked(chosen, names, 0, True, _NOTHING, _NOTHING)
        if last is None:
            return Asked((), names, 0, False, _NOTHING, _NOTHING)
        return Asked(last.chosen, names, last.age + 1, not names <= last.names, last.trained, _NOTHING)

    def learn(self, asked: Asked, scores: Sequence[Logprobs]) -> None:
        """``scores``: of the step's result."""
        if asked.renewed:
            asked.before = _join(scores[: len(asked.chosen)], asked.chosen)
        asked.trained = _join(scores[-len(asked.chosen) :], asked.chosen)
        self._asked = asked

    async def ask_samplers(
        self, version: str, before: str, endpoints: Sequence[SamplerEndpoint], asked: Asked
    ) -> Served:
        """Raises what the workers raise."""
        names = (before, version) if asked.renewed else (version,)
        *old, made = await asyncio.gather(*(self._ask_all(endpoints, name, asked.chosen) for name in names))
        return made, old[0] if asked.renewed else {}

    def judge(self, version: str, asked: Asked, served: Served) -> CanaryReport:
        """Raises ``AdapterError`` if an endpoint does not serve ``version``."""
        trained, (made, made_before) = asked.trained, served
        if not asked.chosen:
            return CanaryReport(0.0, 0.0, 0.0, 1.0, math.inf)
        if not np.isfinite(trained).all():
            raise AdapterError(
                f"What the trainer says of {version} is not finite: the policy has blown up.",
                "A smaller learning rate usually helps, in a task of its own.",
            )
        if asked.renewed:
            self._reference = asked.before, made_before
        before, served_before = self._reference
        moved, reports = float(np.abs(trained - asked.before).mean()), []
        for name, said in made.items():
            gaps, old_gaps = np.abs(said - trained), served_before[name] - before
            share, doubt = compare(trained - before, said - served_before[name], old_gaps, self._tolerances[name])
            reports.append(CanaryReport(float(gaps.max()), float(gaps.mean()), moved, share, doubt))
            self._judge(name, version, reports[-1])
        report = worst(reports)
        self._resolved = report.resolved
        if report.resolved:
            self._reference = trained, made
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
                f"The sampler {name} says that it serves {version}, but of what training changed,"
                f" {report.followed:.0%} arrived: it serves another version.",
                "The version is not used; resume the task to publish it again.",
            )

    async def _ask_all(self, endpoints: Sequence[SamplerEndpoint], version: str, chosen: Windows) -> dict[str, Nats]:
        said = await asyncio.gather(*(self._ask(endpoint.sampler, version, chosen) for endpoint in endpoints))
        return {endpoint.name: one for endpoint, one in zip(endpoints, said, strict=True)}

    async def _ask(self, sampler: Sampler, version: str, chosen: Windows) -> Nats:
        scores = (sampler.score(version, window.tokens, window.start, self._temperature) for window in chosen)
        return _join(await asyncio.gather(*scores), chosen)


def _join(said: Sequence[Logprobs], chosen: Windows) -> Nats:
    found = [window.among(logprobs) for logprobs, window in zip(said, chosen, strict=True)]
    return np.concatenate([_NOTHING, *found])


def choose(groups: Sequence[ClosedGroup], several: bool) -> Windows:
    """Windows of one trajectory, or of ``several`` until ``MANY`` own tokens.

    Trajectories with an advantage first, then the longest.
    """
    trajectories = [t for c in groups for e in c.group.episodes for t in e.trajectories if t.mask.any()]
    trajectories.sort(key=lambda t: (t.advantage != 0.0, np.count_nonzero(t.mask)), reverse=True)
    chosen: list[Window] = []
    for trajectory in trajectories[: SEVERAL if several else 1]:
        if sum(len(window.own) for window in chosen) < MANY:
            chosen.append(window_of(trajectory))
    return tuple(chosen)


def window_of(one: Trajectory) -> Window:
    """The policy's first own tokens, with context."""
    own = np.flatnonzero(one.mask)[:ENOUGH]
    begin = max(0, int(own[0]) - CONTEXT)
    own = own[own < begin + LONGEST]
    return Window(one.tokens[begin : own[-1] + 1], own - begin)


def compare(moved: Nats, followed: Nats, gaps: Nats, tolerance: Tolerance) -> tuple[float, float]:
    """The sampler's share of a change, and its error from rounding.

    float64 (n,) each: the trainer's change m, the sampler's, sampler minus trainer before both. The share is the
    least-squares factor. A residual is the difference of two rounding errors: its variance is at most v = 2·(mean gap²
    + rounding²) if these do not oppose each other. The share's variance is v ÷ Σ m². At 135 million parameters it was
    0.4 to 0.8 of the bound in ``q8_0``, bfloat16 and float16.

    A trainer that rounds adds to m an error of its own, of variance between 0 and v, here v/2 ± v/2: so the squares of
    the true change are D = Σ m² − n·v/2, and the share's variance is (v·D + n·v²) ÷ D² (errors in variables; Fuller,
    Measurement Error Models, 1987). Errors of one reply's tokens depend on each other: 1.0 to 1.6 times that was
    measured, twice is assumed.
    """
    squares, count = float(moved @ moved), len(moved)
    variance = 2.0 * (float((gaps**2).mean()) + tolerance.rounding**2) if count else 0.0
    unknown, noise = 0.0, variance * squares
    if tolerance.trainer_rounds:
        unknown = count * variance / 2.0
        squares -= unknown
        noise = 2.0 * (variance * squares + count * variance**2)
    if not squares > 0.0:
        return 1.0, math.inf
    return float(followed @ moved) / squares, (STANDARD_ERRORS * math.sqrt(noise) + unknown) / squares


def worst(reports: Sequence[CanaryReport]) -> CanaryReport:
    """The worst figures on the same tokens."""
    return CanaryReport(
        max(report.gap for report in reports),
        max(report.mean_gap for report in reports),
        max(report.moved for report in reports),
        max((report.followed for report in reports), key=lambda followed: abs(followed - 1.0)),
        max(report.doubt for report in reports),
    )
