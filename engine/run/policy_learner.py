"""One policy's training loop: groups in, one optimizer step per batch, one commit, one publish.

Reads from top to bottom as the algorithm. It goes on from whatever the store says until the last step. While a version
is being published and checked by the canary, the next step is made already; its commit waits for both. Knows nothing of
the task's other policies: each steps when its own batch is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ..clock import monotonic
from ..errors import Fruitless
from ..faults import Point, reach
from ..fleet import Services, Share
from ..store import Version
from ..training import ClosedGroup, teaches, train_group
from .admission import may_begin, step_groups
from .background import Background
from .evaluation.mixed import measuring
from .evaluation.suites import deciding
from .group_pool import GroupPool
from .groups.attempt import Attempt
from .groups.bias_watch import the_only
from .groups.endings import all_equal, never_spoke
from .mixture import Mixture
from .preflight import check_room
from .prompts import TaskPrompts
from .recovery import new_version, version_path
from .selfplay.participants import Participants
from .serving.canary import Asked, Canary
from .serving.exposed import ExposedTime
from .serving.retention import Retention
from .stage_settings import closing_rules
from .step_metrics import StepTally
from .trained_policy import TrainedPolicy
from .watch.watch import Watch


class PolicyLearner:
    """Trains one policy of a task, from the version at which it stands to its last."""

    def __init__(
        self,
        services: Services,
        trained: TrainedPolicy,
        version: Version,
        participants: Participants,
        mixture: Mixture,
        prompts: TaskPrompts,
        moved: asyncio.Event,
        hopeless: Callable[[], bool],
        whole: bool = False,
    ) -> None:
        """``version`` is where the policy stands, and is being served.

        ``moved`` is set when another version is served, or none will be; ``hopeless`` says whether a policy that learns
        nothing has no other to wait for; ``prompts`` knows of the rows that its groups drew; ``whole`` as in
        ``GroupPool``.
        """
        self.name, self.policy, self.spec = trained.name, trained.number, trained.spec
        spec = self.spec
        self.pool = GroupPool(spec.train.groups_per_step, whole)
        self._arrival = spec.train.order == "arrival"
        self.first = 0 if self._arrival else version.number * self._batch
        """Number of the first group that it may not have consumed."""
        self.attempts: set[Attempt] = set()
        """Those that are being played for it."""
        self.again: set[int] = set()
        """Numbers of groups that were given up since admission looked, as they had grown too old."""
        self._given_up = 0
        """Groups that were given up since the last step."""
        self._next = version.number
        """Number of the first version whose step has not taken all of its groups."""
        self.step = version.number
        """Optimizer steps that are committed, as far as is known; still there when the run has ended."""
        self.finished = False
        """Whether it was trained to its end, and did not stop because the engine drains; it takes no more groups."""
        self.remark = ""
        """Why the training ended before its last step, if it did."""
        self._services = services
        self._task = trained.task
        self._key = trained.key
        self._version = version
        self._published = trained.published
        self._moved = moved
        self._hopeless = hopeless
        self._prompts = prompts
        self._rules = closing_rules(spec)
        self._canary = Canary(services.tolerances, spec.sampling.temperature)
        self._serving: asyncio.Task[None] | None = None
        self._exposed = ExposedTime()
        self._silent = services.store.versions.silent_steps(self.policy)
        self._agents = participants.agents_of(self.name)
        played, every = participants.opponents.versions_of(self.name), spec.keep.every
        self._retention = Retention(
            services.store,
            self._task,
            self.policy,
            every,
            services.token_steps,
            played,
            trained.given,
            deciding(spec),
            self._published.holds,
        )
        self._watch = Watch(services, trained)
        self._measuring = measuring(services, trained, mixture, prompts, participants, self._retention, self._looked)

    @property
    def end(self) -> int:
        """Number of the group after its last."""
        return self.spec.steps * self._batch

    @property
    def oldest(self) -> int:
        """Number of the oldest version whose groups its next step may consume."""
        return self._next - self.spec.train.max_staleness

    def give_up(self, number: int) -> None:
        """Have group ``number``, which has grown too old, begin again."""
        self.again.add(number)
        self._given_up += 1
        self._moved.set()

    def needs(self, number: int) -> bool:
        """Whether it is to be trained on group ``number``."""
        return not self.finished and self.first <= number < self.end

    def may_begin(self, number: int, draining: bool) -> bool:
        """Whether its bound on staleness lets group ``number`` begin."""
        version = self._published.current.number if self._published.current else 0
        bound = 0 if draining else self.spec.train.max_staleness
        return version >= self.oldest and may_begin(number, version, self._batch, bound)

    def held_up(self, number: int, began: float) -> None:
        """Group ``number`` has waited since ``began`` for a later version: count the time since its commit."""
        if may_begin(number, self.step, self._batch, self.spec.train.max_staleness):
            self._exposed.held_up(began)

    async def train(self, background: Background) -> None:
        """Train to the last step, or to where the scores end it. Raises ``Blocked``, ``Paused``, ``StoreError``, …"""
        await self._looked()
        self._measuring.again(self._version, background)
        for step in range(self._version.number, self.spec.steps):
            if self._services.draining.is_set():
                await self.settled()
                return
            check_room(self._services.shortage)
            await self._judged()
            if self._measuring.enough or self.remark:
                break
            self._version = await self._step(step, self._version, background)
            background.start(self._retention.tidy(self._measuring.pending))
        await self.settled()
        self.finished = True
        self._moved.set()

    async def conclude(self) -> None:
        """Measure the last version, and say what there is to say of the scores."""
        await self._measuring.after(self._version)
        early = self._version.number < self.spec.steps
        self.remark = " ".join(filter(None, (self.remark, self._measuring.remark(early))))

    async def tidy(self) -> None:
        """Name the versions, and remove what nobody will go on from."""
        self._retention.label()
        await self._retention.retain(set())

    @property
    def _batch(self) -> int:
        return self.spec.train.groups_per_step

    async def _step(self, step: int, before: Version, background: Background) -> Version:
        """One optimizer step: groups run forward and backward as they arrive, then one update, one commit.

        The new version is published and checked beside the next step.
        """
        services, started, apart = self._services, monotonic(), self.spec.train.deterministic
        tally = StepTally(step, kl=self.spec.train.kl > 0.0)
        wanted = range(self.end) if self._arrival else step_groups(step, self._batch)
        path, result, missing = str(version_path(services, self._task, self.name, step + 1)), None, self._batch
        for number in self.pool.drop(self.oldest):
            self.give_up(number)
        while missing:
            ready = await self.pool.take_ready(wanted[-missing:] if apart else wanted, missing, one_by_one=apart)
            missing -= len(ready)
            self._next = step if missing else step + 1
            groups = tuple(train_group(closed.group, overlong=self._rules.overlong) for closed in ready)
            # the canary's tokens go with a pass that is made anyway: groups of equal rewards have none. In a
            # deterministic run they are in no pass with groups: a restart would choose others
            passes = not missing or any(map(teaches, groups))
            probe = self._canary.probe(ready) if passes and not apart else None
            # the last groups and the step are one call; in a deterministic run the canary speaks between them
            last = path if not (missing or apart) else ""
            stats = await services.trainer.accumulate(self._key, groups, probe, last)
            result = stats.step
            self._canary.learn(stats.scores)
            self._notice(stats.notice)
            tally.add(ready, stats)
            tally.keep_weights(ready, groups, stats)
            await self._watch.see_first(tally.groups)
        self._measuring.first(before, background)
        await self._judged()
        shares = services.router.shares(self._task, self.name)
        if apart:  # else how soon it was served would decide what is compared next
            with self._exposed.step():
                await self.settled()
            await self._probe(tally.groups)
        asked = self._canary.ask({share.sampler for share in shares})
        if result is None:
            result = await services.trainer.step(self._key, path)
        self._notice(result.notice)
        with self._exposed.step():
            await self._served()
        metrics = tally.metrics(result, monotonic() - started)
        metrics |= self._prompts.metrics((step + 1) * self._batch) | self._exposed.take()
        if self._arrival:
            metrics["given_up"], self._given_up = float(self._given_up), 0
        made = (new_version(result), tally.numbers, metrics["seconds"], metrics, tally.weights)
        version = await services.store.patiently(lambda: services.store.versions.commit_step(self.policy, *made))
        self.step = version.number
        self._exposed.committed()
        self._serving = background.start(self._serve(version, before, shares, asked, background))
        await self._watch_signal(tally, metrics["reward"], metrics.get("cut", 0.0))
        self._watch.see(version.number, metrics)
        await self._looked()
        return version

    def _notice(self, sentence: str) -> None:
        """Log what the trainer reports, such as smaller passes for want of memory."""
        if sentence:
            self._services.store.telemetry.event("trainer", sentence, self._task, "warning")

    async def _serve(
        self,
        version: Version,
        before: Version,
        shares: Sequence[Share],
        asked: Asked,
        background: Background,
    ) -> None:
        """Publish a committed version and let the canary compare it with the one ``before``."""
        endpoints = [self._services.endpoints[share.sampler] for share in shares]
        began = monotonic()
        with self._published.hold(before):
            await self._published.publish(version, shares)
            took = {"publish_seconds": monotonic() - began}
            self._exposed.served()
            self._moved.set()
            for attempt in self.attempts:
                if attempt.stale:
                    attempt.over.set()
            self._measuring.beside(version, background)
            if asked.renewed:
                await self._published.spread(before, shares)
            served = await self._canary.ask_samplers(version.name, before.name, endpoints, asked)
        report = await self._canary.judge(version.name, asked, served)
        reach(Point.CANARY_DONE)
        store = self._services.store
        await store.patiently(lambda: store.versions.add_metrics(self.policy, version.number, took | report.metrics()))
        self._watch.add(version.number, report.metrics())

    async def _probe(self, groups: Sequence[ClosedGroup]) -> None:
        """Have the trainer answer the canary in a call of its own, where it has to; new tokens are from ``groups``."""
        probe = self._canary.probe(groups)
        if probe is not None:
            self._canary.learn((await self._services.trainer.accumulate(self._key, (), probe)).scores)

    async def settled(self) -> None:
        """As ``_served``, where no groups follow with which the trainer would answer the canary."""
        await self._probe(())
        await self._served()

    async def _served(self) -> None:
        """Wait until the last version is published and checked: no step is committed on top of one that is not.

        Raises what went wrong there.
        """
        if self._serving is not None:
            await asyncio.wait((self._serving,))
            self._serving.result()

    async def _judged(self) -> None:
        """In a deterministic run, wait for the scores that may end it, or for all but the newest: else their timing
        would decide when it ends, and what is measured."""
        if self.spec.train.deterministic:
            decisive = self._measuring.decisive or self._watch.decisive
            if decisive:
                await self.settled()
            await self._measuring.settled(0 if decisive else 1)

    async def _looked(self) -> None:
        """Look whether learning goes wrong, after a step or an evaluation; pause where the task asks for that."""
        await self._watch.look()
        why = None if self.finished or self.step >= self.spec.steps else self._watch.pausing()
        if why is not None:
            await self.settled()
            raise why

    async def _watch_signal(self, tally: StepTally, reward: float, cut: float) -> None:
        """After ``patience`` steps of equal rewards, end a policy that has learned, or pause a task where none learns
        or an agent is never asked."""
        versions, patience = self._services.store.versions, self.spec.train.patience
        self._silent = 0 if tally.signal else versions.silent_steps(self.policy)
        if self._silent < patience:
            return
        if not tally.spoke and not versions.spoke(self.policy):
            await self.settled()
            raise never_spoke(self._agents, self.name, f"{patience} steps")
        failures = [one.failure for closed in tally.groups for one in closed.group.episodes]
        best, failure = versions.best_step(self.policy), the_only(failures)
        what, remedy = all_equal([closed.rewards for closed in tally.groups], best, cut, failure)
        silence = f"No group had two different rewards in {patience} steps"
        if reward > versions.first_reward(self.policy):
            self.remark = f"{what}. {silence}: nothing was left to learn."
        elif self._hopeless():
            await self.settled()
            raise Fruitless(f"{what}. {silence}, so nothing is learned.", remedy)

    @property
    def silent(self) -> bool:
        """Whether it has finished, or has not learned for ``patience`` steps."""
        return self.finished or self._silent >= self.spec.train.patience
