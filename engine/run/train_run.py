"""A task while it runs: its policies are opened, play together, and are each trained until their last step.

It goes on from whatever the store says: a pause, a crash and a lost worker all end it, and the next run begins at the
last commits. How one policy learns is in ``policy_learner``, how groups are played in ``admission`` and ``producer``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from ..adapters import is_there
from ..fleet import Services
from ..racing import until_first
from ..spec import TaskSpec, agent_map_of, bounded, by_base, by_replies, spec_of, unmeasured
from ..store import Version
from .ablation import NOTHING, Without
from .admission import Admitting
from .background import Background
from .drawing import TaskPrompts
from .environment import Mixture
from .first_replies import first_replies, keep_numbers
from .groups.producer import Producer
from .groups.survivors import BiasWatch
from .policy_learner import PolicyLearner
from .preflight import check_room, check_servable, join_router
from .recovery import set_leftovers_aside
from .selfplay import FrozenPolicies, Participants
from .trained_policy import TrainedPolicy


class TrainRun:
    """Trains one task's policies with one incarnation of the workers."""

    def __init__(
        self,
        services: Services,
        task: int,
        spec: TaskSpec,
        started: Callable[[TrainRun], None],
        without: Without = NOTHING,
    ) -> None:
        self._services = services
        self._without = without
        self._started = started
        self._task = task
        self._submitted = spec
        self._follow(by_base(spec, services.traits))
        self._learners: tuple[PolicyLearner, ...] = ()
        """Of the policies, in their order, once all are open."""
        self.remark = ""
        """Why the training ended before its last step, if it did."""
        self.drained = False
        """Whether it ended between two steps because the engine drains; the next engine goes on."""

    def _follow(self, spec: TaskSpec) -> None:
        """Run the task as ``spec`` says it, and where its limits are not known yet, with the highest."""
        self._known = spec
        self._spec = spec = bounded(spec, self._services.traits)
        services, task = self._services, self._task
        self._agents = agent_map_of(spec)
        self._policies = tuple(
            TrainedPolicy.of(services, task, name, spec_of(spec, name)) for name in self._agents.trained
        )
        store, first = services.store, self._policies[0].number
        self._mixture = Mixture(services.environments, spec, store.experience, first, self._tell)
        self._frozen_policies = FrozenPolicies(services, task, spec, self._policies)

    @property
    def progress(self) -> int:
        """Optimizer steps of all of its policies together, which any commit moves."""
        return sum(learner.step for learner in self._learners)

    @property
    def waits_for(self) -> str:
        """What holds the task up though it runs, in words; empty where nothing does."""
        return self._mixture.waits_for

    async def run(self) -> None:
        """Train to the last step. Raises ``Blocked``, ``Paused``, ``ConfigError``, ``WorkerDied`` or ``StoreError``."""
        check_room(self._services.shortage)
        await self._mixture.check()
        check_servable(self._spec, self._services)
        await keep_numbers(self._services, self._task, self._submitted, self._known, "by its base")
        if unmeasured(self._known):
            if self._services.draining.is_set():
                self.drained = True
                return
            await self._measure_limits()
        async with self._opened() as (versions, participants):
            await self._play_and_train(versions, participants)

    async def _measure_limits(self) -> None:
        """Play first replies, and keep the limits that follow from them with the task."""
        services = self._services
        async with self._opened() as (_, participants):
            await services.store.patiently(lambda: self._started(self))
            first = await first_replies(services, self._spec, self._mixture, participants)
        known = by_replies(self._known, services.traits, first)
        lengths = f"; they have {min(first.replies)} to {max(first.replies)} tokens" if first.replies else ""
        why = f"by its first {len(first.replies)} replies{lengths}"
        await keep_numbers(services, self._task, self._known, known, why)
        self._follow(known)

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[tuple[Sequence[Version], Participants]]:
        """The task's policies with the versions at which they stand, served, and all who play with them."""
        try:
            await join_router(self._services, self._task, self._spec, [policy.number for policy in self._policies])
            versions = [await policy.open(self._services) for policy in self._policies]
            await set_leftovers_aside(self._services, self._task)
            if self._services.unadapted and not any(version.number for version in versions):
                self._services.store.telemetry.event("base", self._services.unadapted, self._task, "warning")
            async with AsyncExitStack() as stack:
                opponents = await self._frozen_policies.enter(stack)
                published = {policy.name: policy.published for policy in self._policies}
                yield versions, Participants(self._agents, published, opponents, self._kept)
        finally:
            self._services.router.leave(self._task)
            leaving = (policy.leave(self._services) for policy in self._policies)
            await asyncio.shield(asyncio.gather(*leaving, self._frozen_policies.leave()))

    async def _play_and_train(self, versions: Sequence[Version], participants: Participants) -> None:
        services, mixture, moved, without = self._services, self._mixture, asyncio.Event(), self._without
        prompts = TaskPrompts(services, self._task, self._policies[0], mixture)
        await prompts.look()
        self._learners = learners = tuple(
            PolicyLearner(
                services, policy, version, participants, mixture, prompts, moved, self._hopeless, without.pipeline
            )
            for policy, version in zip(self._policies, versions, strict=True)
        )
        admitting = Admitting(services.store.experience, learners, moved, services.draining, without.going_alone)
        bias = BiasWatch(services.store, self._task)
        producer = Producer(
            services, self._task, self._spec, mixture, participants, prompts, bias, not without.early_groups
        )
        await services.store.patiently(lambda: self._started(self))
        async with Background() as background:
            background.produce(admitting.run(producer, background))
            await self._until_trained([background.start(learner.train(background)) for learner in learners])
            if not all(learner.finished for learner in learners):
                # nothing that was begun is lost: groups of later steps are stored, and measurements made
                admitting.stop()
                self.drained = True
                for learner in learners:
                    await learner.settled()
                await background.finish_producing()
                await background.finish()
                return
            background.stop_producing()
            for learner in learners:
                await learner.conclude()
            await background.finish()
        said = [(f"{learner.name}: " if len(learners) > 1 else "", learner.remark) for learner in learners]
        self.remark = " ".join(f"{whose}{remark}" for whose, remark in said if remark)
        # nobody goes on with them, and versions that speak in them may go
        await services.store.patiently(lambda: services.store.open_plays.drop_all(self._task))
        for learner in learners:
            await learner.tidy()

    def _kept(self, policy: str) -> list[Version]:
        """The versions of a policy whose files are on the disk."""
        number = next(one.number for one in self._policies if one.name == policy)
        return [version for version in self._services.store.versions.candidates(number) if is_there(Path(version.path))]

    def _hopeless(self) -> bool:
        """Whether no policy has learned for as long as the task waits for that."""
        return all(learner.silent for learner in self._learners)

    async def _until_trained(self, loops: list[asyncio.Task[None]]) -> None:
        """Wait for the policies' loops.

        Where the engine drains, a single policy finishes its step. Of several, one may wait for groups that another no
        longer lets begin, so all are cancelled; the next engine goes on from what is stored.
        """
        if len(loops) > 1:
            await until_first(asyncio.wait(loops), self._services.draining.wait())
            if self._services.draining.is_set():
                for loop in loops:
                    loop.cancel()
        await asyncio.wait(loops)
        await asyncio.sleep(0)  # lets a failure cancel this body before it goes on

    def _tell(self, sentence: str) -> None:
        self._services.store.telemetry.event("environment", sentence, self._task, "warning")
