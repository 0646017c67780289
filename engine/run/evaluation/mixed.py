"""Evaluation of a mixture: each component on prompts of its own; the mean of their scores by share is the task's score.

The scores of the components are stored as those of suites are, under their names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from ...environments import Lease
from ...fleet import Services
from ...spec import TaskSpec
from ...store import Evaluation, Version
from ...trajectories import Split
from ..mixture import Component, Leases, Mixture, Together, mixed_series
from ..prompts import TaskPrompts
from ..selfplay.participants import Participants
from ..serving.retention import Retention
from ..trained_policy import TrainedPolicy
from .evaluator import Evaluator
from .suites import AllMeasuring, tested
from .timing import Measured, Measurer, nothing


class MixedEvaluator:
    """Measures the versions of one policy on all components of a mixture."""

    def __init__(
        self, services: Services, policy: int, split: Split, components: Sequence[Component], each: Sequence[Evaluator]
    ) -> None:
        """``each``: the evaluator of each component, in their order."""
        self._store = services.store
        self._evaluations = services.store.evaluations.of("", split)
        self._policy = policy
        self._split = split
        self._shares = {component.name: component.share for component in components}
        self._each = each
        self.tell = each[0].tell
        """Writes a warning into the task's log, once."""

    def series(self, leases: Leases) -> str:
        """The key of scores that are measured on these leases."""
        keys = [one.series(lease) for one, lease in zip(self._each, leases.each, strict=True)]
        return mixed_series(self._shares, keys)

    async def evaluate(self, version: Version, leases: Leases) -> Evaluation:
        """Measure on every component, record the scores and their mean, and return that. Raises as ``Evaluator``."""
        parts = [await one.evaluate(version, lease) for one, lease in zip(self._each, leases.each, strict=True)]
        mean = replace(
            mixed(self._shares, parts),
            environment_version=leases.environment_version,
            series=self.series(leases),
            split=self._split,
        )
        await self._store.patiently(partial(self._evaluations.add, self._policy, version.id, mean))
        return mean


def measuring(
    services: Services,
    trained: TrainedPolicy,
    mixture: Mixture,
    prompts: TaskPrompts,
    participants: Participants,
    retention: Retention,
    measured: Measured = nothing,
) -> AllMeasuring[Lease] | AllMeasuring[Leases]:
    """The evaluations of a policy: on the task's environment, or on all components of its mixture, and on suites.

    ``measured`` is called after each of those that decide.
    """
    spec = trained.spec

    def evaluators(how: TaskSpec, split: Split) -> list[Evaluator]:
        return [
            Evaluator(
                services,
                replace(one.spec, train=how.train, policy=how.policy, eval=how.eval),
                trained.number,
                trained.name,
                one.environment,
                participants,
                prompts.of(one, split),
                component=one.name,
            )
            for one in mixture.components
        ]

    own = evaluators(spec, "eval")
    test = evaluators(tested(spec), "test") if spec.eval.test_prompts else None
    if not spec.mixture:
        alone = mixture.components[0].environment
        return AllMeasuring(services, trained, own[0], test[0] if test else None, alone, retention, measured)

    def together(each: Sequence[Evaluator], split: Split) -> Measurer[Leases]:
        return MixedEvaluator(services, trained.number, split, mixture.components, each)

    last = together(test, "test") if test else None
    both = Together(mixture.components)
    return AllMeasuring(services, trained, together(own, "eval"), last, both, retention, measured)


def mixed(shares: Mapping[str, float], parts: Sequence[Evaluation]) -> Evaluation:
    """One evaluation from those of the components, ``parts``, which are in the order of ``shares``; these sum to 1.

    The score is the mean by share. Its standard error is that of independent parts, the root of the sum of
    (share · standard error)². Where one of the parts is no score, neither is the mean.
    """
    first, weights = parts[0], list(shares.values())

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        return math.fsum(weight * value for weight, value in zip(weights, known, strict=True))

    metrics: dict[str, float] = {}
    for name, part in zip(shares, parts, strict=True):
        metrics |= {f"{name}: {key}": value for key, value in part.metrics.items()}
    score = mean([part.score for part in parts])
    error = math.sqrt(math.fsum((w * part.stderr) ** 2 for w, part in zip(weights, parts, strict=True)))
    return Evaluation(
        first.step,
        first.environment_version,
        score,
        error if score is not None else 0.0,
        sum(part.n for part in parts),
        mean([part.floor for part in parts]),
        metrics,
        failures=sum(part.failures for part in parts),
        prompts=sum(part.prompts for part in parts),
        samples=first.samples,
        best_of=mean([part.best_of for part in parts]) if score is not None else None,
        pass_at=mean([part.pass_at for part in parts]) if score is not None else None,
    )
