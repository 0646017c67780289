"""When and on what a policy is measured: held-out prompts, components of a mixture, suites, the split test.

Training continues during measurements, except in a deterministic task; at most one waits, and the newest wins. Scores
compare only within a series. If training follows an edited environment, a new series begins with the untrained policy.

A suite is another environment, on which the policy acts as every agent. The task's prompts, or one suite, decide which
version is the best and if the scores end the task.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, cast

from ..adapters import is_there, write_blank
from ..environments import Lease
from ..errors import Replaced
from ..fleet import Services
from ..spec import ONLY, AgentMap, DataSpec, NamedPolicySpec, SuiteSpec, TaskSpec
from ..store import Evaluation, Version, best
from ..trajectories import Split
from .background import Background
from .drawing import TaskPrompts
from .environment import History, Mixture, TaskEnvironment
from .evaluation import Evaluator
from .held_out import HeldOutPrompts
from .opening import TrainedPolicy
from .publishing import Retention
from .scores import reached, remark, stalled
from .selfplay import Opponents, Participants

TOO_OFTEN = (
    "Evaluations take longer than the steps between them, so some are left out: raise 'eval.every', or lower"
    " 'eval.prompts' or 'eval.samples'."
)

AfterEvaluation = Callable[[], Awaitable[None]]
"""Called after an evaluation; what it raises ends the training."""


class Part(NamedTuple):
    """One measured environment."""

    name: str
    """Of the component of a mixture; empty if it is the only one."""
    share: float
    """Of the score; the shares of a mixture sum to 1."""
    environment: TaskEnvironment
    evaluator: Evaluator


class EvalSet:
    """Held-out prompts of one environment, or of all components of a mixture; the score is the mean by share."""

    def __init__(self, services: Services, policy: int, split: Split, parts: Sequence[Part], suite: str = "") -> None:
        self.suite = suite
        self.evaluations = services.store.evaluations.of(suite, split)
        self.tell = parts[0].evaluator.tell
        self._store = services.store
        self._policy = policy
        self._split = split
        self._parts = parts
        self._mixed = bool(parts[0].name)
        self._shares = {part.name: part.share for part in parts}

    @asynccontextmanager
    async def bound(self) -> AsyncIterator[Sequence[Lease]]:
        """Leases on the serving versions. Raises ``Blocked`` as ``TaskEnvironment.bound`` does."""
        async with AsyncExitStack() as stack:
            yield [await stack.enter_async_context(part.environment.bound()) for part in self._parts]

    def series(self, leases: Sequence[Lease]) -> str:
        return self._joined([part.evaluator.series(lease) for part, lease in zip(self._parts, leases, strict=True)])

    @property
    def current_series(self) -> str:
        keys = [part.environment.series for part in self._parts]
        return self._joined(keys) if all(keys) else ""

    def _joined(self, keys: Sequence[str]) -> str:
        if not self._mixed:
            return keys[0]
        content = json.dumps([[*self._shares.items()], [*keys]])
        return sha256(content.encode()).hexdigest()[:12]

    async def evaluate(self, version: Version, leases: Sequence[Lease]) -> None:
        """Measure a version on every part, and record the scores and their mean. Raises as ``Evaluator.evaluate``."""
        scores = [
            await part.evaluator.evaluate(version, lease) for part, lease in zip(self._parts, leases, strict=True)
        ]
        if self._mixed:
            mean = replace(
                mean_score(self._shares, scores),
                environment_version="+".join(lease.environment_version for lease in leases),
                series=self.series(leases),
                split=self._split,
            )
            await self._store.patiently(partial(self.evaluations.add, self._policy, version.id, mean))


def mean_score(shares: Mapping[str, float], parts: Sequence[Evaluation]) -> Evaluation:
    """The mean of the components' evaluations ``parts``, in the order of ``shares``, which sum to 1.

    Its standard error is the root of the sum of (share · standard error)², for independent parts. It has no score if a
    part has none.
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


class Measuring:
    """The evaluations of one policy on one set of prompts."""

    def __init__(
        self,
        services: Services,
        trained: TrainedPolicy,
        spec: TaskSpec,
        eval_set: EvalSet,
        retention: Retention,
        after_each: AfterEvaluation | None,
    ) -> None:
        self._versions = services.store.versions
        self._evaluations = eval_set.evaluations
        self._spec = spec.eval
        self._leaves_out = not spec.train.deterministic
        self._policy = trained.number
        self._published = trained.published
        self._eval_set = eval_set
        self._retention = retention
        self._after_each = after_each
        self._one_at_a_time = asyncio.Lock()
        self.pending: set[int] = set()
        """Numbers of the versions that are being measured."""
        self._running: dict[asyncio.Task[None], Version] = {}
        """Measurements while training continues, including waiting ones."""
        self._now: Version | None = None
        """The version that is being measured, not waiting."""

    @property
    def decisive(self) -> bool:
        return self._spec.target is not None or self._spec.patience > 0

    @property
    def enough(self) -> bool:
        if not self.decisive:
            return False
        scores = self._evaluations.scores(self._policy)
        return reached(scores, self._spec) or stalled(scores, self._spec)

    def remark(self, early: bool) -> str:
        return remark(self._evaluations.scores(self._policy), self._spec, early)

    async def settled(self, but: int) -> None:
        while len(self._running) > but:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # lets a failure cancel the training loop before it continues

    def begin(self, version: Version, background: Background) -> None:
        """Measure a version while training continues, unless that was done. It replaces a waiting version.

        The version is held before the next one can replace it.
        """
        self._leave_out()
        task = background.start(self._measure(version))
        self._running[task] = version
        task.add_done_callback(self._running.pop)

    def due(self, version: Version) -> bool:
        return bool(self._spec.every) and (version.number % self._spec.every == 0 or self._switched)

    async def last(self, version: Version) -> None:
        self._leave_out()
        await self._measure(version)

    def _leave_out(self) -> None:
        for task, version in self._running.items() if self._leaves_out else ():
            if version is not self._now:
                task.cancel()
                if version.number > 0:
                    self._eval_set.tell(TOO_OFTEN)

    @property
    def _switched(self) -> bool:
        """True if training uses an environment of another series than the newest.

        False during a measurement: many edits in a row cost one series.
        """
        newest = self._evaluations.series(self._policy)
        return not self._running and newest not in (None, self._eval_set.current_series)

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
        if self._after_each is not None:
            await self._after_each()

    async def _measured(self, version: Version) -> bool:
        """Put a version into the current series, after the untrained policy.

        False if the environment was replaced before the version had a score.
        """
        try:
            async with self._eval_set.bound() as leases:
                series = self._eval_set.series(leases)
                known = self._evaluations.measured(self._policy, series)
                if version.number > 0 and 0 not in known:
                    await self._measure_first(version, leases)
                if version.number not in known or series != self._evaluations.series(self._policy):
                    await self._eval_set.evaluate(version, leases)
        except Replaced:
            return False
        return True

    async def _measure_first(self, like: Version, leases: Sequence[Lease]) -> None:
        first = self._versions.first(self._policy)
        if self._retention.given:
            if is_there(Path(first.path)):
                async with self._published.lent(first):
                    await self._eval_set.evaluate(first, leases)
            return
        suite = self._eval_set.suite
        place = f"blank-{suite}-" if suite else "blank-"
        path = Path(like.path).with_name(f"{place}{Path(like.path).name}")
        try:
            checksum = await asyncio.to_thread(write_blank, Path(like.path), path)
            blank = replace(first, name=f"{first.name}-{place.rstrip('-')}", path=str(path), checksum=checksum)
            async with self._published.lent(blank):
                await self._eval_set.evaluate(blank, leases)
        finally:
            with suppress(OSError):  # the task's next start removes it
                path.unlink()


def deciding(spec: TaskSpec) -> str:
    """The name of the suite with the deciding score; empty if the task's environment decides."""
    return next((suite.name for suite in spec.eval.suite if suite.decides), "")


def on_suite(spec: TaskSpec, suite: SuiteSpec) -> TaskSpec:
    """The task as if it were measured on a suite only."""
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
    as_task = (
        spec.data if suite.environment == spec.environment else DataSpec()
    )  # other environments have their own rows
    data = suite.data if suite.data.path else as_task
    plain = replace(spec, environment=suite.environment, environment_config=suite.config, policies={}, agents={})
    return replace(plain, eval=measure, data=data)


class Evaluations:
    """All evaluations of one policy: on the task's prompts, on suites, and at the end on the split test."""

    def __init__(
        self,
        services: Services,
        trained: TrainedPolicy,
        mixture: Mixture,
        prompts: TaskPrompts,
        participants: Participants,
        retention: Retention,
        after_deciding: AfterEvaluation,
    ) -> None:
        """``after_deciding`` is called after each evaluation that decides."""
        spec, decides = trained.spec, deciding(trained.spec)
        self._services = services
        self._trained = trained

        def eval_set(measured: TaskSpec, split: Split) -> EvalSet:
            parts = [
                Part(
                    component.name,
                    component.share,
                    component.environment,
                    Evaluator(
                        services,
                        replace(component.spec, train=measured.train, policy=measured.policy, eval=measured.eval),
                        trained.number,
                        trained.name,
                        component.environment,
                        participants,
                        prompts.of(component, split),
                        component=component.name,
                    ),
                )
                for component in mixture.components
            ]
            return EvalSet(services, trained.number, split, parts)

        undecided = replace(spec, eval=replace(spec.eval, target=None, patience=0)) if decides else spec
        after = None if decides else after_deciding
        first = Measuring(services, trained, undecided, eval_set(spec, "eval"), retention, after)
        self._all = [first]
        self._decides = first
        for suite in spec.eval.suite:
            on, after = on_suite(spec, suite), after_deciding if suite.name == decides else None
            measuring = Measuring(services, trained, on, suite_set(services, trained, on, suite), retention, after)
            self._all.append(measuring)
            if suite.name == decides:
                self._decides = measuring
        tested = replace(spec, eval=replace(spec.eval, prompts=spec.eval.test_prompts, split="test"))
        self._test = eval_set(tested, "test") if spec.eval.test_prompts else None

    @property
    def pending(self) -> Set[int]:
        return frozenset().union(*(measuring.pending for measuring in self._all))

    @property
    def decisive(self) -> bool:
        return self._decides.decisive

    @property
    def enough(self) -> bool:
        return self._decides.enough

    def remark(self, early: bool) -> str:
        return self._decides.remark(early)

    async def settled(self, but: int = 0) -> None:
        for measuring in self._all:
            await measuring.settled(but)

    def first(self, version: Version, background: Background) -> None:
        """Measure the untrained policy, unless that was done. Call this when the first step has its groups."""
        for measuring in self._all if version.number == 0 else ():
            measuring.begin(version, background)

    def during(self, version: Version, background: Background) -> None:
        for measuring in self._all:
            if version.number > 0 and measuring.due(version):
                measuring.begin(version, background)

    async def last(self, version: Version) -> None:
        """Measure the last version, unless that was done; then the best and the last on the split test."""
        for measuring in self._all:
            await measuring.last(version)
        if self._test is not None:
            for chosen in self._tested(version):
                while not await self._measured(self._test, chosen):
                    pass

    def _tested(self, last: Version) -> list[Version]:
        versions, policy = self._services.store.versions, self._trained.number
        scores = self._services.store.evaluations.of(deciding(self._trained.spec)).scores(policy)
        there = {version.number: version for version in reversed(versions.candidates(policy)) if version.number > 0}
        known = {number: score for number, score in scores.items() if number in there}
        chosen = {last.number: last} | ({best(known): there[best(known)]} if known else {})
        return [chosen[number] for number in sorted(chosen)]

    async def _measured(self, test: EvalSet, version: Version) -> bool:
        try:
            async with test.bound() as leases, self._trained.published.lent(version):
                if version.number not in test.evaluations.measured(self._trained.number, test.series(leases)):
                    await test.evaluate(version, leases)
        except Replaced:
            return False
        return True


def suite_set(services: Services, trained: TrainedPolicy, spec: TaskSpec, suite: SuiteSpec) -> EvalSet:
    """The prompts of a suite; ``spec`` is from ``on_suite``."""
    experience, split = services.store.experience, cast(Split, suite.split)
    first = experience.first_environment(trained.number, suite.name)
    history = History(first, experience.last_environment(trained.number, suite.name))
    environment = TaskEnvironment(services.environments, spec, history)
    participants = Participants(AgentMap({ONLY: NamedPolicySpec()}, {}), {ONLY: trained.published}, Opponents())
    held_out = HeldOutPrompts(services, trained.task, suite.prompts, split)
    evaluator = Evaluator(services, spec, trained.number, ONLY, environment, participants, held_out, suite.name)
    return EvalSet(services, trained.number, split, [Part("", 1.0, environment, evaluator)], suite.name)
