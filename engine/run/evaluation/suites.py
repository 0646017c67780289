"""Everything that one policy is measured on: the task's own held-out prompts, suites, and at the end the split test.

A suite is another environment, on which the policy acts as every agent. Its scores are a series of their own. One of
all these decides: which version is the best, and whether the scores end the task. By default it is the task's own.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Generic, cast

from ...environments import Lease
from ...errors import Replaced
from ...fleet import Services
from ...spec import ONLY, AgentMap, DataSpec, NamedPolicySpec, SuiteSpec, TaskSpec
from ...store import Version, best
from ...trajectories import Split
from ..background import Background
from ..environment import History, TaskEnvironment
from ..selfplay.participants import Opponents, Participants
from ..serving.retention import Retention
from ..trained_policy import TrainedPolicy
from .evaluator import Evaluator
from .held_out import HeldOutPrompts
from .timing import Bound, Leased, Measured, Measurer, Measuring, nothing


def deciding(spec: TaskSpec) -> str:
    """The name of the suite whose score decides; empty where that on the task's own environment does."""
    return next((suite.name for suite in spec.eval.suite if suite.decides), "")


def on_suite(spec: TaskSpec, suite: SuiteSpec) -> TaskSpec:
    """The task as it would be if it were measured on a suite, and only there."""
    measure = replace(
        spec.eval,
        every=suite.every,
        prompts=suite.prompts,
        samples=suite.samples,
        temperature=suite.temperature,
        split=suite.split,
        agents={},
        rotate=False,
        target=spec.eval.target if suite.decides else None,
        patience=spec.eval.patience if suite.decides else 0,
    )
    as_task = spec.data if suite.environment == spec.environment else DataSpec()  # others have rows of their own
    data = suite.data if suite.data.path else as_task
    alone = replace(spec, environment=suite.environment, environment_config=suite.config, policies={}, agents={})
    return replace(alone, eval=measure, data=data)


class AllMeasuring(Generic[Leased]):
    """All evaluations of one policy, as ``Measuring`` is for those on one environment."""

    def __init__(
        self,
        services: Services,
        trained: TrainedPolicy,
        own: Measurer[Leased],
        test: Measurer[Leased] | None,
        environment: Bound[Leased],
        retention: Retention,
        measured: Measured = nothing,
    ) -> None:
        """``own`` and ``test`` measure on ``environment``, the task's own or its mixture; without ``test`` nothing is
        tested. ``measured`` is called after each evaluation that decides."""
        spec, published = trained.spec, trained.published
        decides = deciding(spec)
        undecided = replace(spec, eval=replace(spec.eval, target=None, patience=0)) if decides else spec
        told = nothing if decides else measured
        first = Measuring(services, undecided, trained.number, environment, published, own, retention, measured=told)
        suites = {
            suite.name: _suite(services, trained, suite, retention, measured if suite.name == decides else nothing)
            for suite in spec.eval.suite
        }
        self._all: Sequence[Measuring[Leased] | Measuring[Lease]] = (first, *suites.values())
        self._decides = suites.get(decides, first)
        self._services = services
        self._trained = trained
        self._environment = environment
        self._test = test

    @property
    def pending(self) -> Set[int]:
        """Numbers of the versions that are being measured."""
        return frozenset().union(*(one.pending for one in self._all))

    @property
    def decisive(self) -> bool:
        """Whether a score may end the task."""
        return self._decides.decisive

    @property
    def enough(self) -> bool:
        """Whether the scores are a reason to end the task."""
        return self._decides.enough

    def remark(self, early: bool) -> str:
        """What there is to say of the scores when the task has ended, before its last step or after it."""
        return self._decides.remark(early)

    async def settled(self, but: int = 0) -> None:
        """Wait until at most ``but`` of the measurements that have begun are left on each environment."""
        for one in self._all:
            await one.settled(but)

    def first(self, version: Version, background: Background) -> None:
        """Measure the untrained policy, unless that was done; see ``Measuring``."""
        for one in self._all:
            one.first(version, background)

    def again(self, version: Version, background: Background) -> None:
        """Measure the version that a run goes on from, where it is time and the run before did not finish that."""
        for one in self._all:
            one.again(version, background)

    def beside(self, version: Version, background: Background) -> None:
        """Measure a version that is being served while training goes on, where it is time."""
        for one in self._all:
            one.beside(version, background)

    async def after(self, version: Version) -> None:
        """Measure the last version, unless that was done; then the best and the last on the split test."""
        for one in self._all:
            await one.after(version)
        if self._test is not None:
            for chosen in self._tested(version):
                while not await self._measured(self._test, chosen):
                    pass

    def _tested(self, last: Version) -> list[Version]:
        """The best trained version, by what decides, and the last."""
        versions, policy = self._services.store.versions, self._trained.number
        scores = self._services.store.evaluations.of(deciding(self._trained.spec)).scores(policy)
        there = {version.number: version for version in reversed(versions.candidates(policy)) if version.number > 0}
        known = {number: score for number, score in scores.items() if number in there}
        chosen = {last.number: last} | ({best(known): there[best(known)]} if known else {})
        return [chosen[number] for number in sorted(chosen)]

    async def _measured(self, test: Measurer[Leased], version: Version) -> bool:
        """False where the environment was replaced meanwhile, before the version had a score."""
        evaluations = self._services.store.evaluations.of("", "test")
        try:
            async with self._environment.bound() as lease, self._trained.published.lent(version):
                if version.number not in evaluations.measured(self._trained.number, test.series(lease)):
                    await test.evaluate(version, lease)
        except Replaced:
            return False
        return True


def tested(spec: TaskSpec) -> TaskSpec:
    """The task as it is measured on the split test."""
    return replace(spec, eval=replace(spec.eval, prompts=spec.eval.test_prompts, split="test"))


def _suite(
    services: Services, trained: TrainedPolicy, suite: SuiteSpec, retention: Retention, measured: Measured
) -> Measuring[Lease]:
    spec, experience = on_suite(trained.spec, suite), services.store.experience
    first = experience.first_environment(trained.number, suite.name)
    last = experience.last_environment(trained.number, suite.name)
    environment = TaskEnvironment(services.environments, spec, History(first, last))
    participants = Participants(AgentMap({ONLY: NamedPolicySpec()}, {}), {ONLY: trained.published}, Opponents())
    held_out = HeldOutPrompts(services, trained.task, suite.prompts, cast(Split, suite.split))
    evaluator = Evaluator(services, spec, trained.number, ONLY, environment, participants, held_out, suite.name)
    host, policy = trained.published, trained.number
    return Measuring(services, spec, policy, environment, host, evaluator, retention, suite.name, measured)
