"""The canary: after a publish, samplers and trainer must have changed alike on tokens of the policy.

There are two tests. Are the log-probabilities of both equal, up to rounding? And did the sampler's change as the
trainer's did? The second test finds a wrong version under the right name: its checksum is right, and one step moves
the policy by less than rounding. Changes are counted from the last version that could be distinguished from its
predecessor, so small steps add up.

Every endpoint is asked, with the tolerance of its own arithmetic. The trainer scores the tokens in the call of
the next step's first groups, with the weights of the version.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

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
"""Versions that are compared on the same tokens."""
PATIENT = 64
"""The same while the policy has not moved far enough to distinguish versions."""
STANDARD_ERRORS = 5.0
"""Standard errors between each answer, 0 and 1, and their middle, before a version is judged: with normal rounding
one judgement in 3 million is wrong."""
SEVERAL = 8
"""Most trajectories to compare if a sampler's rounding of single tokens is large; else one."""
ENOUGH = 32
"""The policy's own tokens that are compared of one trajectory."""
MANY = 128
"""Enough tokens of several trajectories. On a base of 135 million parameters, at a learning rate of 2e-4, they
distinguish versions after one or two steps in bfloat16, and after two to four in ``q8_0``."""
CONTEXT = 32
"""Context tokens. A step moves log-probabilities as far with 16 of them as with a whole prompt (measured on the
shipped base), and a prompt may have thousands."""
LONGEST = CONTEXT + 2 * ENOUGH
"""Most tokens that both sides read: other agents' text between the policy's own tokens may be long."""

Nats = NDArray[np.float64]


@dataclass(frozen=True)
class CanaryReport:
    """The result of one canary, in nats over the policy's own tokens; for several samplers, the worst of each."""

    gap: float
    """Largest difference between sampler and trainer under the new version."""
    mean_gap: float
    moved: float
    """Mean change by the last step, as the trainer computes it."""
    followed: float
    """Share of the trainer's change since the reference version that the sampler made, too: 1 up to ``doubt``; 0
    for no change."""
    doubt: float
    """How far rounding alone can push that share; infinite if nothing moved."""

    @property
    def resolved(self) -> bool:
        return self.doubt < 0.5

    def metrics(self) -> dict[str, float]:
        seen = {"gap_max": self.gap, "gap_mean": self.mean_gap, "gap_resolved": float(self.resolved)}
        seen |= {"moved": self.moved}
        return seen | ({"gap_followed": self.followed} if self.resolved else {})


@dataclass(frozen=True)
class Window:
    """Tokens of one trajectory that are compared."""

    tokens: Tokens
    """int32 (T,)"""
    own: NDArray[np.intp]
    """Indices of the policy's own tokens; both sides score from the first of them on."""

    @property
    def start(self) -> int:
        return int(self.own[0])

    def among(self, said: Logprobs) -> Logprobs:
        return said[self.own - self.start]


Windows = tuple[Window, ...]


@dataclass(frozen=True)
class Asked:
    """What is compared after one step."""

    chosen: Windows
    """Empty if the step's groups have no tokens of the policy."""
    before: Nats
    """The trainer's log-probabilities of them under the version before."""
    names: Set[str]
    """The endpoints that will serve the new version."""
    age: int
    """Number of versions compared on the same tokens before."""
    renewed: bool
    """True if the tokens or endpoints are new; these are then also asked under the version before."""
    trained: asyncio.Future[Nats] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """The trainer's log-probabilities under the version, after its next pass."""


Served = tuple[dict[str, Nats], dict[str, Nats]]
"""The endpoints' log-probabilities, by endpoint, and those under the version before; the latter are empty unless the
tokens or the endpoints are new."""


class Canary:
    """Compares one policy's versions, one after the other."""

    def __init__(self, tolerances: Mapping[str, Tolerance], temperature: float) -> None:
        self._tolerances = tolerances
        self._temperature = temperature
        self._asked: Asked | None = None
        self._drawn: Windows = ()
        self._riding: tuple[Windows, Windows] = (), ()
        self._before: Nats = _join((), ())
        self._reference: tuple[Nats, Mapping[str, Nats]] = self._before, {}
        """The trainer's log-probabilities, and each endpoint's, under the reference version."""
        self._resolved = True

    def probe(self, groups: Sequence[ClosedGroup]) -> Probe | None:
        """The tokens for the trainer to score with its next ``groups``, or None.

        Give its answer to ``learn`` before the next call.
        """
        asked = self._asked
        current = asked.chosen if asked and not asked.trained.done() else ()
        names = asked.names if asked else self._tolerances.keys()
        several = any(math.isinf(self._tolerances[name].largest) for name in names)
        self._riding = current, choose(groups, several) if self._due else ()
        wanted = [(window.tokens, window.start) for windows in self._riding for window in windows]
        return Probe(tuple(wanted)) if wanted else None

    def learn(self, scores: Sequence[Logprobs]) -> None:
        (current, drawn), self._riding = self._riding, ((), ())
        if current and self._asked:
            self._asked.trained.set_result(_join(scores[: len(current)], current))
        if drawn:
            self._drawn, self._before = drawn, _join(scores[len(current) :], drawn)

    def ask(self, names: Set[str]) -> Asked:
        """Before a step, after the trainer has answered, return what to compare after it.

        ``names``: the endpoints that will serve the new version.
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
        """Ask the endpoints under ``version``; if the tokens or endpoints are new, also under ``before``, the
        loaded version before it. Raises what the workers raise.
        """
        names = (before, version) if asked.renewed else (version,)
        *old, made = await asyncio.gather(*(self._ask_all(endpoints, name, asked.chosen) for name in names))
        return made, old[0] if asked.renewed else {}

    async def judge(self, version: str, asked: Asked, served: Served) -> CanaryReport:
        """Compare, once the trainer has answered. Raises ``AdapterError`` if an endpoint does not serve ``version``."""
        trained, (made, made_before) = await asked.trained, served
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
            share, doubt = compare(
                trained - before, said - served_before[name], old_gaps, self._tolerances[name].rounding
            )
            reports.append(CanaryReport(float(gaps.max()), float(gaps.mean()), moved, share, doubt))
            self._judge(name, version, reports[-1])
        report = worst(reports)
        self._resolved = report.resolved
        if report.resolved:
            self._reference = trained, made
        return report

    @property
    def _due(self) -> bool:
        asked, most = self._asked, RENEW if self._resolved else PATIENT
        return not self._drawn and (asked is None or not asked.chosen or asked.age + 1 >= most)

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
    return np.concatenate([np.empty(0, np.float64), *found])


def choose(groups: Sequence[ClosedGroup], several: bool) -> Windows:
    """A window of one trajectory with the policy's tokens, or of ``several``, until these are ``MANY``.

    Trajectories with an advantage come first, then the longest.
    """
    trajectories = [t for c in groups for e in c.group.episodes for t in e.trajectories if t.mask.any()]
    trajectories.sort(key=lambda t: (t.advantage != 0.0, np.count_nonzero(t.mask)), reverse=True)
    chosen: list[Window] = []
    for trajectory in trajectories[: SEVERAL if several else 1]:
        if sum(len(window.own) for window in chosen) < MANY:
            chosen.append(window_of(trajectory))
    return tuple(chosen)


def window_of(one: Trajectory) -> Window:
    """The policy's first own tokens, with their context."""
    own = np.flatnonzero(one.mask)[:ENOUGH]
    begin = max(0, int(own[0]) - CONTEXT)
    own = own[own < begin + LONGEST]
    return Window(one.tokens[begin : own[-1] + 1], own - begin)


def compare(moved: Nats, followed: Nats, gaps: Nats, rounding: float) -> tuple[float, float]:
    """The share of a change that the sampler made, and how far rounding can push that share.

    All arrays are float64 (n,): the trainer's change m, the sampler's change, and sampler minus trainer before both.
    The share is the least-squares factor between the changes. A residual is the difference of two rounding errors, so
    its variance is at most 2·(mean gap² + rounding²) if these do not oppose each other. The variance of the share is
    this ÷ Σ m². On a base of 135 million parameters the measured variance was 0.4 to 0.8 of the bound in ``q8_0``,
    bfloat16 and float16.
    """
    squares = float(moved @ moved)
    if not squares > 0.0:
        return 1.0, math.inf
    variance = 2.0 * (float((gaps**2).mean()) + rounding**2) / squares
    return float(followed @ moved) / squares, STANDARD_ERRORS * math.sqrt(variance)


def worst(reports: Sequence[CanaryReport]) -> CanaryReport:
    """The worst of each figure in one or several samplers' reports on the same tokens."""
    return CanaryReport(
        max(report.gap for report in reports),
        max(report.mean_gap for report in reports),
        max(report.moved for report in reports),
        max((report.followed for report in reports), key=lambda followed: abs(followed - 1.0)),
        max(report.doubt for report in reports),
    )
