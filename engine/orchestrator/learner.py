"""One policy's training loop: groups in by number, one optimizer step per batch, one commit, one publish.

Reads from top to bottom as the algorithm. It runs from whatever the store says until the last step; a pause, a crash
and a lost worker all end it, and the next run begins at the last commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from ..adapters.retention import RetentionVersion, keep
from ..spec import TaskSpec
from ..store.versions import Version
from ..training.advantages import ClosedGroup, close_group
from ..training.intake import train_group
from .admission import may_begin, step_groups
from .background import Background
from .canary import canary
from .endings import Paused
from .environment import TaskEnvironment
from .evaluation import Evaluator
from .pool import GroupPool
from .producer import Producer
from .recovery import POLICY, key, new_version, open_policy, version_path
from .services import Services
from .shelf import Shelf
from .step_metrics import StepTally

PATIENCE = 20
"""Steps without any unequal rewards before the task pauses itself."""


class Learner:
    """Trains one task's policy with one incarnation of the workers."""

    def __init__(self, services: Services, task: int, spec: TaskSpec, started: Callable[[], None]) -> None:
        self._services = services
        self._started = started
        self._task = task
        self._spec = spec
        self._batch = spec.train.groups_per_step
        self._policy = services.store.versions.policy(task, POLICY, {})
        pinned = services.store.experience.first_environment(self._policy)
        self._environment = TaskEnvironment(services.environments, spec, pinned)
        self._shelf = Shelf(services.sampler)
        self._pool = GroupPool()
        self._moved = asyncio.Event()
        self._evaluator = Evaluator(services, task, spec, self._policy, self._environment, self._shelf)
        self._measuring: set[int] = set()
        """Versions whose score is not known yet; their files stay, for one may turn out to be the best."""
        self._reached = False
        self._silent = 0

    @property
    def step(self) -> int:
        """Optimizer steps made so far."""
        return self._version()

    async def run(self) -> None:
        """Train to the last step. Raises ``Blocked``, ``Paused``, ``Failed``, ``WorkerDied`` or ``StoreError``."""
        version = await open_policy(self._services, self._task, self._policy, self._spec)
        try:
            await self._shelf.publish(version)
            held_out = await self._evaluator.held_out()
            producer = Producer(self._services, self._spec, self._policy, self._environment, self._shelf, held_out)
            self._started()
            async with Background() as background:
                await self._measure(version, background)
                background.start(self._admit(producer, version.number, background))
                for step in range(version.number, self._spec.steps):
                    version = await self._step(step, version)
                    await self._measure(version, background)
                    self._retain()
                    if self._reached:
                        break
                background.stop_producing()
                await background.finish()
            self._label()
            self._retain()
        finally:
            await asyncio.shield(self._leave())

    async def _admit(self, producer: Producer, version: int, background: Background) -> None:
        """Begin every group as soon as the staleness bound allows it; stored groups need no second run."""
        first = version * self._batch
        for group in self._services.store.experience.waiting(self._policy):
            closed = close_group(group)
            if isinstance(closed, ClosedGroup) and group.number >= first:
                self._pool.put(closed)
        for number in range(first, self._spec.steps * self._batch):
            if number in self._pool:
                continue
            while not may_begin(number, self._version(), self._batch, self._spec.train.max_staleness):
                self._moved.clear()
                await self._moved.wait()
            background.produce(self._fill(producer, number))

    async def _fill(self, producer: Producer, number: int) -> None:
        try:
            self._pool.put(await producer.fill(number))
        except Exception as error:
            self._pool.fail(error)

    async def _step(self, step: int, before: Version) -> Version:
        """One optimizer step: groups run forward and backward as they arrive, then one update, one commit."""
        services, started = self._services, monotonic()
        tally = StepTally(self._batch)
        wanted = set(step_groups(step, self._batch))
        while wanted:
            closed = await self._pool.take(wanted, in_order=self._spec.train.deterministic)
            wanted.discard(closed.group.number)
            stats = await services.trainer.accumulate(key(self._task), train_group(closed.group))
            services.busy("training", stats.seconds)
            tally.add(closed, stats)
        path = version_path(services, self._task, step + 1)
        result = await services.trainer.step(key(self._task), str(path))
        services.busy("training", result.seconds)
        metrics = tally.metrics(result, monotonic() - started)
        row = new_version(services, self._task, result)
        version = services.store.versions.commit_step(self._policy, row, tally.numbers, metrics["seconds"], metrics)
        async with self._shelf.hold(before):  # the canary compares with the version before
            await self._shelf.publish(version)
            self._moved.set()
            await self._check(before, version, tally)
        self._watch_signal(tally)
        return version

    async def _check(self, before: Version, version: Version, tally: StepTally) -> None:
        services = self._services
        report = await canary(
            services,
            key(self._task),
            version.name,
            before.name,
            tally.groups,
            self._spec.sampling.temperature,
        )
        metrics = {"canary_gap": report.gap, "canary_resolved": float(report.resolved)}
        services.store.versions.add_metrics(self._policy, version.number, metrics)

    def _watch_signal(self, tally: StepTally) -> None:
        self._silent = 0 if tally.signal else self._silent + 1
        if self._silent >= PATIENCE:
            raise Paused(
                f"All rewards within each group were equal for {PATIENCE} steps: there is nothing to learn from.",
                "The task may be solved, or too hard for this base.",
            )

    async def _measure(self, version: Version, background: Background) -> None:
        """Evaluate where it is due. The first measurement comes before training; later ones run beside it."""
        every, steps = self._spec.eval.every, self._spec.steps
        due = version.number in (0, steps) or (every and version.number % every == 0)
        async with self._environment.bound() as lease:
            done = self._services.store.versions.evaluated(self._policy, lease.environment_version)
        if not due or version.number in done:
            return
        if version.number == 0:
            await self._evaluate(version)
        else:
            background.start(self._evaluate(version))
            await asyncio.sleep(0)  # so that it holds its version before the next one supersedes it

    async def _evaluate(self, version: Version) -> None:
        self._measuring.add(version.number)
        try:
            evaluation = await self._evaluator.evaluate(version)
        finally:
            self._measuring.discard(version.number)
        self._label()
        target = self._spec.eval.target
        if target is not None and evaluation.n and evaluation.score >= target:
            self._reached = True

    def _label(self) -> None:
        """Name the last version, and the best trained one by held-out score (the newest among equals)."""
        versions = self._services.store.versions
        numbers = [version.number for version in versions.candidates(self._policy)]
        scores = versions.scores(self._policy)
        last = numbers[0]
        best = max((n for n in numbers if n > 0 and n in scores), key=lambda n: (scores[n], n), default=None)
        labels = {last: "last"}
        if best is not None:
            labels[best] = "best, last" if best == last else "best"
        versions.label(self._policy, labels)

    def _retain(self) -> None:
        """Remove state files that nobody will go on from or take away."""
        versions = self._services.store.versions
        candidates, scores = versions.candidates(self._policy), versions.scores(self._policy)
        last = candidates[0]
        kept = keep(RetentionVersion(v.number, True, scores.get(v.number), v is last) for v in candidates)
        for version in candidates:
            if version.number not in kept | self._measuring:
                versions.prune(version.id)
                Path(version.path).unlink(missing_ok=True)

    def _version(self) -> int:
        return self._shelf.current.number if self._shelf.current else 0

    async def _leave(self) -> None:
        """Free the trainer and the sampler; a worker that is gone has nothing to free."""
        await asyncio.gather(self._services.trainer.close(key(self._task)), self._shelf.clear(), return_exceptions=True)
