"""Held-out evaluation of a mixture: each component on prompts of its own; their mean by share is the task's score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...environments import Lease
from ...fleet import Services
from ...spec import score_of
from ...store import Evaluation, Version
from ..mixture import Leases, Mixture, Together
from ..selfplay.participants import Participants
from ..serving.retention import Retention
from ..trained_policy import TrainedPolicy
from .evaluator import Evaluator
from .timing import Measuring

AnyMeasuring = Measuring[Lease] | Measuring[Leases]


@dataclass(frozen=True)
class Part:
    """How one component is measured."""

    name: str
    share: float
    evaluator: Evaluator


class MixedEvaluator:
    """Measures the versions of one policy on all components of a mixture."""

    def __init__(self, services: Services, policy: int, parts: Sequence[Part]) -> None:
        self._store = services.store
        self._policy = policy
        self._parts = parts

    async def evaluate(self, version: Version, lease: Leases) -> Evaluation:
        """Play every held-out prompt of every component, record the score and return it. Raises as ``Evaluator``."""
        found = [await part.evaluator.measure(version, own) for part, own in zip(self._parts, lease.each, strict=True)]
        shares = {part.name: part.share for part in self._parts}
        evaluation = mixed(version.number, lease.environment_version, shares, found)
        await self._store.patiently(lambda: self._store.versions.add_evaluation(self._policy, version.id, evaluation))
        return evaluation


def measuring(
    services: Services, trained: TrainedPolicy, mixture: Mixture, participants: Participants, retention: Retention
) -> AnyMeasuring:
    """The evaluations of a policy: on the task's environment, or on all components of its mixture together."""
    spec, policy, name = trained.spec, trained.number, trained.name
    own = [
        Evaluator(
            services,
            replace(part.spec, train=spec.train),
            policy,
            name,
            part.environment,
            participants,
            part.name,
            place * spec.eval.prompts,
        )
        for place, part in enumerate(mixture.components)
    ]
    if not spec.mixture:
        alone = mixture.components[0].environment
        return Measuring(services, spec.eval, policy, alone, trained.published, own[0], retention)
    parts = [Part(part.called, part.share, one) for part, one in zip(spec.mixture, own, strict=True)]
    together, evaluator = Together(mixture.components), MixedEvaluator(services, policy, parts)
    return Measuring(services, spec.eval, policy, together, trained.published, evaluator, retention)


def mixed(step: int, series: str, shares: dict[str, float], parts: Sequence[Evaluation]) -> Evaluation:
    """One evaluation from those of the components: the mean by share, with the standard error of independent parts.

    ``parts`` are in the order of ``shares``. A component without any reward counts as nothing is known of the whole:
    ``Evaluator`` refuses it before. Scores of components, and what they logged, are kept by their names.
    """
    whole = math.fsum(shares.values())
    weights = [share / whole for share in shares.values()]
    floors = [part.floor for part in parts]
    metrics = {score_of(name): part.score for name, part in zip(shares, parts, strict=True)}
    for name, part in zip(shares, parts, strict=True):
        metrics |= {f"{name}: {key}": value for key, value in part.metrics.items()}
    return Evaluation(
        step,
        series,
        math.fsum(w * part.score for w, part in zip(weights, parts, strict=True)),
        math.sqrt(math.fsum((w * part.stderr) ** 2 for w, part in zip(weights, parts, strict=True))),
        sum(part.n for part in parts),
        None if None in floors else math.fsum(w * (f or 0.0) for w, f in zip(weights, floors, strict=True)),
        metrics,
    )
