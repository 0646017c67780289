"""One policy's training loop: groups in by number, one optimizer step per batch, one commit, one publish.

Reads from top to bottom as the algorithm. It runs from whatever the store says until the last step; a pause, a crash
and a lost worker all end it, and the next run begins at the last commit. While a version is being published and checked
by the canary, the groups of the next step run already; its optimizer step waits for both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic

from ..devices.routing import Share
from ..faults import Point, reach
from ..spec import TaskSpec
from ..store.versions import Version
from ..training.intake import train_group
from .admission import step_groups
from .admitting import Admitting
from .background import Background
from .canary import Canary
from .endings import Blocked, Fruitless
from .environment import History, TaskEnvironment
from .evaluation import Evaluator
from .held_out import HeldOutPrompts
from .keeper import Keeper
from .measuring import Measuring
from .pool import GroupPool
from .producer import Producer
from .recovery import POLICY, key, new_version, open_policy, version_path
from .rules import closing_rules
from .servable import check_servable
from .services import Services
from .shelf import Shelf
from .step_metrics import StepTally


class Learner:
    """Trains one task's policy with one incarnation of the workers."""

    def __init__(self, services: Services, task: int, spec: TaskSpec, started: Callable[[Learner], None]) -> None:
        self._services = services
        self._started = started
        self._task = task
        self._spec = spec
        self._batch = spec.train.groups_per_step
        self._policy = services.store.versions.policy(task, POLICY, {})
        self._environment = TaskEnvironment(services.environments, spec, self._history(), self._tell)
        self._shelf = Shelf(services.stations)
        self._pool = GroupPool(self._batch)
        self._rules = closing_rules(spec)
        self._admitting = Admitting(
            services.store.experience, self._policy, spec, self._rules, self._shelf, self._pool, services.draining
        )
        self._keeper = Keeper(services.store, task, self._policy, spec.keep.every, services.token_steps)
        self._held_out = HeldOutPrompts(services, task, spec.eval.prompts)
        self._evaluator = Evaluator(services, spec, self._policy, self._environment, self._shelf)
        self._measuring = Measuring(
            services, spec.eval, self._policy, self._environment, self._shelf, self._evaluator, self._keeper
        )
        self._canary = Canary(services.trainer, services.tolerances, key(task), spec.sampling.temperature)
        self._serving: asyncio.Task[None] | None = None
        self._silent = 0
        self.remark = ""
        """Why the training ended before its last step, if it did."""
        self.drained = False
        """Whether it ended between two steps because the engine drains; the next engine goes on."""
        self.step = 0
        """Optimizer steps that are committed, as far as is known; still there when the run has ended."""

    @property
    def waits_for(self) -> str:
        """What holds the task up though it runs, in words; empty where nothing does."""
        return self._environment.waits_for

    async def run(self) -> None:
        """Train to the last step. Raises ``Blocked``, ``Paused``, ``ConfigError``, ``WorkerDied`` or ``StoreError``."""
        self._check_room()
        await self._environment.check()
        check_servable(self._spec, self._services)
        version = await open_policy(self._services, self._task, self._policy, self._spec)
        self.step = version.number
        self._silent = self._services.store.versions.silent_steps(self._policy)
        self._keeper.sweep(version_path(self._services, self._task, 0).parent)
        try:
            self._join()
            await self._shelf.publish(version, self._services.router.shares(self._task))
            async with self._environment.bound() as lease:
                await self._held_out.of(lease)
            producer = Producer(
                self._services, self._spec, self._policy, self._environment, self._shelf, self._held_out
            )
            self._started(self)
            async with Background() as background:
                background.produce(self._admitting.run(producer, version.number, background))
                self._measuring.again(version, background)
                for step in range(version.number, self._spec.steps):
                    if self._services.draining.is_set():
                        await self._drain(background)
                        return
                    self._check_room()
                    await self._judged()
                    if self._measuring.enough or self.remark:
                        break
                    version = await self._step(step, version, background)
                    background.start(self._keeper.tidy(self._measuring.pending))
                await self._served()
                background.stop_producing()
                await self._measuring.after(version)
                await background.finish()
            self.remark = " ".join(
                filter(None, (self.remark, self._measuring.remark(version.number < self._spec.steps)))
            )
            self._keeper.label()
            await self._keeper.retain(set())
        finally:
            await asyncio.shield(self._leave())

    def _join(self) -> None:
        """Be routed to samplers; what must repeat itself stays at one of the kind that it began with."""
        versions = self._services.store.versions
        kind = self._services.router.join(self._task, self._spec, versions.sampler(self._policy))
        versions.keep_sampler(self._policy, kind)

    def _history(self) -> History:
        experience = self._services.store.experience
        return History(experience.first_environment(self._policy), experience.last_environment(self._policy))

    def _tell(self, sentence: str) -> None:
        self._services.store.telemetry.event("environment", sentence, self._task, "warning")

    def _notice(self, sentence: str) -> None:
        """Write down what the trainer had to do otherwise, if it says so."""
        if sentence:
            self._services.store.telemetry.event("trainer", sentence, self._task, "warning")

    def _check_room(self) -> None:
        """Raise ``Blocked`` before the disk is full: the task goes on by itself once there is room."""
        if shortage := self._services.shortage():
            raise Blocked(shortage)

    async def _step(self, step: int, before: Version, background: Background) -> Version:
        """One optimizer step: groups run forward and backward as they arrive, then one update, one commit.

        The new version is published and checked beside the next step.
        """
        services, started = self._services, monotonic()
        tally = StepTally(self._batch)
        wanted = set(step_groups(step, self._batch))
        while wanted:
            ready = await self._pool.take_ready(wanted, one_by_one=self._spec.train.deterministic)
            wanted.difference_update(closed.group.number for closed in ready)
            groups = tuple(train_group(closed.group, overlong=self._rules.overlong) for closed in ready)
            stats = await services.trainer.accumulate(key(self._task), groups)
            self._notice(stats.notice)
            tally.add(ready, stats)
            tally.keep_weights(ready, groups, stats)
        self._measuring.first(before, background)
        await self._judged()
        path = version_path(services, self._task, step + 1)
        await self._served()
        shares = services.router.shares(self._task)
        homes = [services.stations[share.sampler] for share in shares]
        await self._shelf.spread(before, shares)
        await self._canary.before(before.name, homes, tally.groups)
        result = await services.trainer.step(key(self._task), str(path))
        self._notice(result.notice)
        metrics = tally.metrics(result, monotonic() - started)
        version = services.store.versions.commit_step(
            self._policy, new_version(result), tally.numbers, metrics["seconds"], metrics, tally.weights
        )
        self.step = version.number
        self._serving = background.start(self._serve(version, shares, background))
        await self._watch_signal(tally, metrics["reward"])
        return version

    async def _serve(self, version: Version, shares: Sequence[Share], background: Background) -> None:
        """Publish a committed version and let the canary compare it with the one before."""
        homes = [self._services.stations[share.sampler] for share in shares]

        async def publish() -> None:
            await self._shelf.publish(version, shares)
            self._admitting.moved()
            self._measuring.beside(version, background)

        report = await self._canary.after(version.name, homes, publish)
        reach(Point.CANARY_DONE)
        self._services.store.versions.add_metrics(self._policy, version.number, report.metrics())

    async def _served(self) -> None:
        """Wait until the last version is published and checked: the next step would change the weights that are."""
        if self._serving is not None:
            await asyncio.wait((self._serving,))
            await asyncio.sleep(0)  # lets a failure cancel this loop before it goes on

    async def _judged(self) -> None:
        """Where the run is to repeat itself, wait for the scores that may end it: else their timing would decide."""
        if self._spec.train.deterministic and self._measuring.decisive:
            await self._served()
            await self._measuring.settled()

    async def _watch_signal(self, tally: StepTally, reward: float) -> None:
        """A long silence ends a task that has learned, and pauses one that has not."""
        self._silent, patience = 0 if tally.signal else self._silent + 1, self._spec.train.patience
        if self._silent < patience:
            return
        store, silence = self._services.store, f"All rewards within each group were equal for {patience} steps"
        if reward <= store.versions.first_reward(self._policy):
            await self._served()
            raise Fruitless(f"{silence}: there is nothing to learn from.", "The task may be too hard for this base.")
        self.remark = f"{silence}: nothing was left to learn."

    async def _drain(self, background: Background) -> None:
        """Nothing that was begun is lost: groups of later steps are stored, and measurements made."""
        self._admitting.stop()
        self.drained = True
        await self._served()
        await background.finish_producing()
        await background.finish()

    async def _leave(self) -> None:
        """Free the trainer and the samplers; a worker that is gone has nothing to free."""
        self._services.router.leave(self._task)
        await asyncio.gather(self._services.trainer.close(key(self._task)), self._shelf.clear(), return_exceptions=True)
