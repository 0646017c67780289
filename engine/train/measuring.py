"""When and on what a policy is measured: held-out prompts, components of a mixture, suites, the split test."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar, cast

from ..adapters import is_there, write_blank
from ..environments import Lease
from ..errors import Replaced
from ..fleet import Services
from ..spec import ONLY, AgentMap, DataSpec, NamedPolicySpec, SuiteSpec, TaskSpec
from ..store import Evaluation, Version, best
from ..trajectories import Split
from .background import Background
from .drawing import TaskPrompts
from .environment import Component, History, Leases, Mixture, TaskEnvironment, Together, mixed_series
from .evaluation import Evaluator
from .held_out import HeldOutPrompts
from .opening import TrainedPolicy
from .publishing import PublishedVersions, Retention
from .scores import reached, remark, stalled
from .selfplay import Opponents, Participants

# When a policy is measured: untrained and every so many steps, both beside training, and at its end.
#
# Also says when the scores end the task. Scores compare only within a series: where training has gone over to other
# code, a new one begins with the untrained policy and the version that training has come to.
#
# Where evaluations take longer than the steps between them, at most one waits for the one that runs, and the newest
# wins. A deterministic task leaves none out: its training waits.

TOO_OFTEN = (
    "Evaluations take longer than the steps between them, so some are left out: raise 'eval.every', or lower"
    " 'eval.prompts' or 'eval.samples'."
)


Leased = TypeVar("Leased")
"""A lease, or those of all components of a mixture."""
Measured = Callable[[], Awaitable[None]]
"""What is called after an evaluation."""
Given = TypeVar("Given", covariant=True)
Taken = TypeVar("Taken", contravariant=True)


async def nothing() -> None:
    """What is called where nobody wants to know."""


class Bound(Protocol[Given]):
    """What is measured on: an environment, or all of a mixture."""

    @property
    def series(self) -> str:
        """The key of scores on what training plays on."""

    def bound(self) -> AbstractAsyncContextManager[Given]:
        """See ``TaskEnvironment.bound``."""


class Measurer(Protocol[Taken]):
    """``Evaluator``, or ``MixedEvaluator``."""

    @property
    def tell(self) -> Callable[[str], None]:
        """Writes a warning into the task's log, once."""

    def series(self, lease: Taken) -> str:
        """See ``Evaluator.series``."""

    async def evaluate(self, version: Version, lease: Taken) -> Evaluation:
        """See ``Evaluator.evaluate``."""


class Measuring(Generic[Leased]):
    """The evaluations of one policy."""

    def __init__(
        self,
        services: Services,
        spec: TaskSpec,
        policy: int,
        environment: Bound[Leased],
        published: PublishedVersions,
        evaluator: Measurer[Leased],
        retention: Retention,
        suite: str = "",
        measured: Measured = nothing,
    ) -> None:
        """``suite``: the name of the suite that is measured; empty for the task's own environment.

        ``measured`` is called after each evaluation; what it raises ends the training.
        """
        self._tell_measured = measured
        self._suite = suite
        self._versions = services.store.versions
        self._evaluations = services.store.evaluations.of(suite, cast(Split, spec.eval.split))
        self._spec = spec.eval
        self._leaves_out = not spec.train.deterministic
        self._policy = policy
        self._environment = environment
        self._published = published
        self._evaluator = evaluator
        self._retention = retention
        self._one_at_a_time = asyncio.Lock()
        self.pending: set[int] = set()
        """Numbers of the versions that are being measured."""
        self._running: dict[asyncio.Task[None], Version] = {}
        """Measurements beside training, those that wait included."""
        self._now: Version | None = None
        """The one that is being measured, not waiting."""

    @property
    def decisive(self) -> bool:
        """Whether a score may end the task."""
        return self._spec.target is not None or self._spec.patience > 0

    @property
    def enough(self) -> bool:
        """Whether the scores are a reason to end the task."""
        if not self.decisive:
            return False
        scores = self._evaluations.scores(self._policy)
        return reached(scores, self._spec) or stalled(scores, self._spec)

    def remark(self, early: bool) -> str:
        """What there is to say of the scores when the task has ended, before its last step or after it."""
        return remark(self._evaluations.scores(self._policy), self._spec, early)

    async def settled(self, but: int = 0) -> None:
        """Wait until at most ``but`` of the measurements that have begun are left."""
        while len(self._running) > but:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # lets a failure cancel the training loop before it goes on

    def first(self, version: Version, background: Background) -> None:
        """Measure the untrained policy, unless that was done. Called when the first step has its groups, so that it
        waits for no measurement."""
        if version.number == 0:
            self._start(version, background)

    def again(self, version: Version, background: Background) -> None:
        """Measure the version that a run goes on from, if it is time and the run before did not finish that."""
        if version.number > 0:
            self.beside(version, background)

    def beside(self, version: Version, background: Background) -> None:
        """Measure a version that is being served while training goes on, if it is time or a series has to begin.

        It holds the version from its first turn of the event loop on, long before the next one can replace it.
        """
        if self._spec.every and (version.number % self._spec.every == 0 or self._switched):
            self._start(version, background)

    async def after(self, version: Version) -> None:
        """Measure the last version, unless that was done."""
        self._leave_out()
        await self._measure(version)

    def _start(self, version: Version, background: Background) -> None:
        self._leave_out()
        task = background.start(self._measure(version))
        self._running[task] = version
        task.add_done_callback(self._running.pop)

    def _leave_out(self) -> None:
        """A newer version is to be measured: what still waits for its turn is left out. The untrained one is measured
        with the next that is."""
        for task, version in self._running.items() if self._leaves_out else ():
            if version is not self._now:
                task.cancel()
                if version.number > 0:
                    self._evaluator.tell(TOO_OFTEN)

    @property
    def _switched(self) -> bool:
        """Whether training plays on an environment of another series than the newest.

        False while something is being measured: many edits in a row cost one series, on the last of them.
        """
        return not self._running and self._evaluations.series(self._policy) not in (None, self._environment.series)

    async def _measure(self, version: Version) -> None:
        self.pending.add(version.number)
        try:
            with self._published.hold(version):
                async with self._one_at_a_time:
                    self._now = version
                    while not await self._measured(version):
                        pass
        finally:
            if self._now is version:
                self._now = None
            self.pending.discard(version.number)
        self._retention.label()
        await self._tell_measured()

    async def _measured(self, version: Version) -> bool:
        """Put a version into the series of the environment that serves now, after the untrained policy.

        False where that environment was replaced meanwhile, before the version had a score.
        """
        try:
            async with self._environment.bound() as lease:
                series = self._evaluator.series(lease)
                known = self._evaluations.measured(self._policy, series)
                if version.number > 0 and 0 not in known:
                    await self._measure_first(version, lease)
                if version.number not in known or series != self._evaluations.series(self._policy):
                    await self._evaluator.evaluate(version, lease)
        except Replaced:
            return False
        return True

    async def _measure_first(self, like: Version, lease: Leased) -> None:
        """Measure version 0.

        Where its weights were given, its file is kept unless a person deleted it. Else the file is gone by then, and an
        adapter of zeros stands in, which adds nothing to the base either.
        """
        first = self._versions.first(self._policy)
        if self._retention.given:
            if is_there(Path(first.path)):
                async with self._published.lent(first):
                    await self._evaluator.evaluate(first, lease)
            return
        place = f"blank-{self._suite}-" if self._suite else "blank-"
        path = Path(like.path).with_name(f"{place}{Path(like.path).name}")
        try:
            checksum = await asyncio.to_thread(write_blank, Path(like.path), path)
            blank = replace(first, name=f"{first.name}-{place.rstrip('-')}", path=str(path), checksum=checksum)
            async with self._published.lent(blank):
                await self._evaluator.evaluate(blank, lease)
        finally:
            with suppress(OSError):  # then the task's next start removes it
                path.unlink()


# What one policy is measured on: its own held-out prompts, components of a mixture, suites.

# Evaluation of a mixture: each component on prompts of its own; the mean of their scores by share is the task's
# score.
#
# The scores of the components are stored as those of suites are, under their names.


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


# Everything that one policy is measured on: the task's own held-out prompts, suites, and at the end the split test.
#
# A suite is another environment, on which the policy acts as every agent. Its scores are a series of their own. One
# of all these decides: which version is the best, and whether the scores end the task. By default it is the task's
# own.


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
