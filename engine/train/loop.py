"""Groups begin as staleness allows; each policy steps on its batches.

A pause, a crash or a lost worker ends a run; the next continues from the last commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from ..clock import monotonic
from ..errors import Fruitless
from ..faults import Point, reach
from ..machine.routing.assignment import Share
from ..machine.services import Services
from ..models.weights import unadapted
from ..racing import until_first
from ..rollout.teacher_prompt import TeacherPrompt
from ..spec.automatic import bounded, by_base, by_replies, unmeasured
from ..spec.task import TaskSpec, agent_map_of, spec_of
from ..store.versions import Version
from ..trainer.advantages import ClosedGroup, train_group
from ..trainer.protocol import Probe, StepResult
from .admission import Admission, Background, PolicyGroups, step_groups
from .canary import Asked, Canary
from .drawing import TaskPrompts
from .environment import Mixture
from .evaluation import Evaluations, deciding
from .failures import BiasWatch, all_equal, never_spoke, the_only
from .groups import GroupRunner
from .metrics import StepTally
from .opening import (
    TrainedPolicy,
    check_room,
    check_servable,
    closing_rules,
    first_replies,
    join_router,
    keep_numbers,
    new_version,
    set_leftovers_aside,
    version_path,
)
from .publishing import Retention
from .selfplay import FrozenPolicies, Participant, Participants
from .watch import Watch


class TrainRun:
    """Trains one task's policies with one generation of the workers."""

    def __init__(
        self,
        services: Services,
        task: int,
        spec: TaskSpec,
        started: Callable[[TrainRun], None],
    ) -> None:
        self._services = services
        self._started = started
        self._task = task
        self._submitted = spec
        self._follow(by_base(spec, services.traits))
        self._learners: tuple[PolicyLearner, ...] = ()
        self.remark = ""
        """Why the training ended before its last step, if it did."""
        self.drained = False
        """True if the engine drains; the next engine continues."""

    def _follow(self, spec: TaskSpec) -> None:
        self._known = spec
        self._spec = spec = bounded(spec, self._services.traits)
        services, task = self._services, self._task
        self._agents = agent_map_of(spec)
        self._policies = tuple(
            TrainedPolicy.of(services, task, name, spec_of(spec, name)) for name in self._agents.trained
        )
        store, first = services.store, self._policies[0].number
        self._mixture = Mixture(services.environments, spec, store.experience, first, self._warn)
        self._frozen_policies = FrozenPolicies(services, task, spec, self._policies)

    @property
    def progress(self) -> int:
        return sum(learner.groups.committed for learner in self._learners)

    @property
    def waits_for(self) -> str:
        return self._mixture.waits_for

    async def run(self) -> None:
        """Raises ``Blocked``, ``Paused``, ``ConfigError``, ``WorkerDied`` or ``StoreError``."""
        services = self._services
        check_room(services.shortage)
        await self._mixture.check()
        check_servable(self._spec, services)
        await keep_numbers(services, self._task, self._submitted, self._known, "by its base")
        if unmeasured(self._known):
            if services.draining.is_set():
                self.drained = True
                return
            await self._measure_limits()
        async with self._opened() as (versions, participants):
            await self._train(versions, participants)

    async def _measure_limits(self) -> None:
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
        services = self._services
        try:
            await join_router(services, self._task, self._spec, [policy.number for policy in self._policies])
            versions = [await policy.open(services) for policy in self._policies]
            await set_leftovers_aside(services, self._task)
            limits = unadapted(services.base.config)
            if limits and not any(version.number for version in versions):
                services.store.telemetry.event("base", limits, self._task, "warning")
            async with AsyncExitStack() as stack:
                policies = await self._frozen_policies.enter(stack)
                for policy in self._policies:
                    policies[policy.name] = Participant(policy.published, kept=partial(policy.kept, services))
                yield versions, Participants(self._agents, policies)
        finally:
            services.router.leave(self._task)
            leaving = (policy.leave(services) for policy in self._policies)
            await asyncio.shield(asyncio.gather(*leaving, self._frozen_policies.leave()))

    async def _train(self, versions: Sequence[Version], participants: Participants) -> None:
        services, mixture, moved = self._services, self._mixture, asyncio.Event()
        prompts = TaskPrompts(services, self._task, self._policies[0], mixture)
        await prompts.look()
        self._learners = learners = tuple(
            PolicyLearner(self, services, policy, version, participants, mixture, prompts, moved)
            for policy, version in zip(self._policies, versions, strict=True)
        )
        groups = [learner.groups for learner in learners]
        admission = Admission(services.store.experience, groups, moved, services.draining)
        bias = BiasWatch(services.store, self._task)
        runner = GroupRunner(services, self._task, self._spec, mixture, participants, prompts, bias)
        await services.store.patiently(lambda: self._started(self))
        async with Background() as background:
            background.produce(admission.run(runner, background))
            await self._until_trained([background.start(learner.train(background)) for learner in learners])
            if not all(learner.groups.finished for learner in learners):
                # groups of later steps are stored, and measurements finish
                admission.stop()
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
        remarks = [(f"{learner.name}: " if len(learners) > 1 else "", learner.remark) for learner in learners]
        self.remark = " ".join(f"{name}{remark}" for name, remark in remarks if remark)
        # nobody continues them; their versions may be deleted
        await services.store.patiently(lambda: services.store.open_plays.drop_all(self._task))
        for learner in learners:
            await learner.tidy()

    async def _until_trained(self, loops: list[asyncio.Task[None]]) -> None:
        # A draining single policy finishes its step. One of several may wait for groups that another no longer lets
        # begin: all are cancelled.
        if len(loops) > 1:
            await until_first(asyncio.wait(loops), self._services.draining.wait())
            if self._services.draining.is_set():
                for loop in loops:
                    loop.cancel()
        await asyncio.wait(loops)
        await asyncio.sleep(0)  # lets a failure cancel this body before it continues

    @property
    def hopeless(self) -> bool:
        return all(learner.silent for learner in self._learners)

    def _warn(self, sentence: str) -> None:
        self._services.store.telemetry.event("environment", sentence, self._task, "warning")


class PolicyLearner:
    """Trains one policy on its own batches of groups."""

    def __init__(
        self,
        run: TrainRun,
        services: Services,
        trained: TrainedPolicy,
        version: Version,
        participants: Participants,
        mixture: Mixture,
        prompts: TaskPrompts,
        moved: asyncio.Event,
    ) -> None:
        """``version`` is served; ``moved`` as in ``PolicyGroups``."""
        self.name, self.spec, self.remark = trained.name, trained.spec, ""
        self.groups = PolicyGroups(trained.name, trained.number, trained.spec, version.number, moved)
        self._run = run
        self._services = services
        self._task, self._policy, self._key = trained.task, trained.number, trained.key
        self._version = version
        self._published = trained.published
        self._prompts = prompts
        self._overlong = closing_rules(trained.spec).overlong
        text, renderer = trained.spec.train.teacher_prompt, services.rollout.rendering.renderer
        self._teacher_prompt = TeacherPrompt.of(renderer, text, trained.spec.sampling.thinking) if text else None
        self._canary = Canary(services.tolerances, trained.spec.sampling.temperature)
        self._serving: asyncio.Task[None] | None = None
        self._silent = services.store.versions.silent_steps(trained.number)
        self._agents = participants.agents_of(trained.name)
        self._retention = Retention(
            services.store,
            trained.task,
            trained.number,
            trained.spec.keep.every,
            services.token_steps,
            partial(participants.in_pools, trained.name),
            trained.given,
            deciding(trained.spec),
            trained.published.holds,
        )
        self._watch = Watch(services, trained)
        self._evaluations = Evaluations(services, trained, mixture, prompts, participants, self._retention, self._look)

    async def train(self, background: Background) -> None:
        """Raises ``Blocked``, ``Paused``, ``StoreError``, …"""
        await self._look()
        self._evaluations.during(self._version, background)
        for step in range(self._version.number, self.spec.steps):
            if self._services.draining.is_set():
                await self.settled()
                return
            check_room(self._services.shortage)
            await self._await_scores()
            if self._evaluations.deciding.enough or self.remark:
                break
            self._version = await self._step(step, self._version, background)
            background.start(self._retention.tidy(self._evaluations.pending))
        await self.settled()
        self.groups.finish()

    async def _step(self, step: int, before: Version, background: Background) -> Version:
        services, groups, train, started = self._services, self.groups, self.spec.train, monotonic()
        store, one_by_one = services.store, train.deterministic
        tally = StepTally(step, kl=train.kl > 0.0)
        wanted = range(groups.end) if groups.arrival else step_groups(step, groups.batch)
        path, missing = str(version_path(services, self._task, self.name, step + 1)), groups.batch

        # Accumulate, at fixed weights.
        groups.give_up_stale()
        while True:
            ready = await groups.take_ready(wanted[-missing:] if one_by_one else wanted, missing, one_by_one)
            missing -= len(ready)
            if not missing:
                break
            await self._accumulate(tally, ready)

        # Make the step with the last groups, on a published and checked version.
        groups.taken = step + 1
        self._evaluations.first(before, background)
        await self._await_scores()
        if one_by_one:  # else timing would decide what is compared
            with groups.step_waits():
                await self.settled()
        shares = services.router.shares(self._task, self.name)
        asked = self._canary.ask([*tally.groups, *ready], {share.sampler for share in shares})
        result = await self._accumulate(tally, ready, asked.probe, path)
        assert result is not None, "a call with a path makes the step"
        self._canary.learn(asked, result.scores)
        self._log(result.notice)
        with groups.step_waits():
            await self.settled()

        # Commit step, version and consumed groups in one transaction.
        metrics = tally.metrics(result, monotonic() - started)
        metrics |= self._prompts.metrics((step + 1) * groups.batch) | groups.waited
        groups.waited = dict.fromkeys(groups.waited, 0.0)
        if groups.arrival:
            metrics["given_up"], groups.given_up = float(groups.given_up), 0
        made = (new_version(result), tally.numbers, metrics["seconds"], metrics, tally.weights)
        version = await store.patiently(lambda: store.versions.commit_step(self._policy, *made))
        groups.commit(version.number)

        self._serving = background.start(self._serve(version, before, shares, asked, background))
        await self._watch_signal(tally, metrics)
        self._watch.see(version.number, metrics)
        await self._look()
        return version

    async def _accumulate(
        self, tally: StepTally, groups: Sequence[ClosedGroup], probe: Probe | None = None, path: str = ""
    ) -> StepResult | None:
        batch = tuple(train_group(closed.group, overlong=self._overlong) for closed in groups)
        if self._teacher_prompt is not None:
            batch = tuple(map(self._teacher_prompt.shown, batch))
        stats = await self._services.trainer.accumulate(self._key, batch, probe, path)
        self._log(stats.notice)
        tally.add(groups, stats, batch)
        await self._watch.see_first(tally.groups)
        return stats.step

    async def _serve(
        self, version: Version, before: Version, shares: Sequence[Share], asked: Asked, background: Background
    ) -> None:
        endpoints = [self._services.endpoints[share.sampler] for share in shares]
        began = monotonic()
        with self._published.hold(before):
            await self._published.publish(version, shares)
            took = {"publish_seconds": monotonic() - began}
            self.groups.serve(version.number)
            self._evaluations.during(version, background)
            if asked.renewed:
                await self._published.spread(before, shares)
            served = await self._canary.ask_samplers(version.name, before.name, endpoints, asked)
        report = self._canary.judge(version.name, asked, served)
        reach(Point.CANARY_DONE)
        store = self._services.store
        await store.patiently(lambda: store.versions.add_metrics(self._policy, version.number, took | report.metrics()))
        self._watch.course.add(version.number, report.metrics())

    async def settled(self) -> None:
        """Wait until the last version is served and checked."""
        if self._serving is not None:
            await asyncio.wait((self._serving,))
            self._serving.result()

    async def _await_scores(self) -> None:
        """If deterministic, wait for the scores that may end the run: timing must not decide."""
        if self.spec.train.deterministic:
            decisive = self._evaluations.deciding.decisive or self._watch.decisive
            if decisive:
                await self.settled()
            await self._evaluations.settled(0 if decisive else 1)

    async def _look(self) -> None:
        await self._watch.look()
        ends = self.groups.finished or self.groups.committed >= self.spec.steps
        why = None if ends else self._watch.pausing()
        if why is not None:
            await self.settled()
            raise why

    async def _watch_signal(self, tally: StepTally, metrics: dict[str, float]) -> None:
        """After ``patience`` steps of equal rewards, end a policy that has learned, or pause the task."""
        versions, patience = self._services.store.versions, self.spec.train.patience
        taught = self.spec.train.kl_in == "reward"
        self._silent = 0 if tally.signal or taught else versions.silent_steps(self._policy)
        if self._silent < patience:
            return
        if not tally.spoke and not versions.spoke(self._policy):
            await self.settled()
            raise never_spoke(self._agents, self.name, f"{patience} steps")
        failure = the_only([episode.failure for closed in tally.groups for episode in closed.group.episodes])
        rewards, best = [closed.rewards for closed in tally.groups], versions.best_step(self._policy)
        what, remedy = all_equal(rewards, best, metrics.get("cut", 0.0), failure)
        silence = f"No group had two different rewards in {patience} steps"
        if metrics["reward"] > versions.first_reward(self._policy):
            self.remark = f"{what}. {silence}: nothing was left to learn."
        elif self._run.hopeless:
            await self.settled()
            raise Fruitless(f"{what}. {silence}, so nothing is learned.", remedy)

    @property
    def silent(self) -> bool:
        return self.groups.finished or self._silent >= self.spec.train.patience

    async def conclude(self) -> None:
        await self._evaluations.last(self._version)
        early = self._version.number < self.spec.steps
        self.remark = " ".join(filter(None, (self.remark, self._evaluations.deciding.remark(early))))

    async def tidy(self) -> None:
        self._retention.label()
        await self._retention.retain(set())

    def _log(self, notice: str) -> None:
        if notice:
            self._services.store.telemetry.event("trainer", notice, self._task, "warning")
