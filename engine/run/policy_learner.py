"""One policy's training loop: groups in by number, one optimizer step per batch, one commit, one publish.

Reads from top to bottom as the algorithm. It goes on from whatever the store says until the last step. While a version
is being published and checked by the canary, the groups of the next step run already; its optimizer step waits for
both. Knows nothing of the task's other policies: each steps when its own batch is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Set
from time import monotonic

from ..errors import Blocked, Fruitless
from ..faults import Point, reach
from ..fleet import Services, Share
from ..spec import TaskSpec
from ..store import Version
from ..training import train_group
from .admission import may_begin, step_groups
from .background import Background
from .endings import never_spoke
from .environment import TaskEnvironment
from .evaluation.evaluator import Evaluator
from .evaluation.timing import Measuring
from .group_pool import GroupPool
from .recovery import key, new_version, open_policy, version_path
from .rules import closing_rules
from .selfplay.participants import Participants
from .serving.canary import Canary
from .serving.published import PublishedVersions
from .serving.retention import Retention
from .step_metrics import StepTally


class PolicyLearner:
    """Trains one policy of a task with one incarnation of the workers; ``spec`` is the task as this policy sees it."""

    def __init__(self, services: Services, task: int, name: str, spec: TaskSpec) -> None:
        self.name = name
        self.spec = spec
        self.policy = services.store.versions.policy(task, name, {})
        """Its number in the store."""
        self.published = PublishedVersions(services.endpoints)
        self.pool = GroupPool(spec.train.groups_per_step)
        self._services = services
        self._task = task
        self._key = key(task, name)
        self._rules = closing_rules(spec)
        self._canary = Canary(services.trainer, services.tolerances, self._key, spec.sampling.temperature)
        self._serving: asyncio.Task[None] | None = None
        self._silent = 0
        self._moved: Callable[[], None] = lambda: None
        self._hopeless: Callable[[], bool] = lambda: True
        self.remark = ""
        """Why the training ended before its last step, if it did."""
        self._agents: tuple[str, ...] = ()
        """Those that it speaks for."""
        self.finished = False
        """Whether it was trained to its end, and did not stop because the engine drains; it takes no more groups."""
        self.step = 0
        """Optimizer steps that are committed, as far as is known; still there when the run has ended."""

    def join(
        self,
        participants: Participants,
        environment: TaskEnvironment,
        played: Callable[[Sequence[int]], Set[int]],
        moved: Callable[[], None],
        hopeless: Callable[[], bool],
    ) -> None:
        """Take the place in its task.

        ``played`` says which of the versions that there are others play with; ``moved`` is called when another version
        is served; ``hopeless`` says whether a policy that learns nothing has no other to wait for.
        """
        services, spec = self._services, self.spec
        self._moved, self._hopeless = moved, hopeless
        self._agents = tuple(agent for agent, speaker in participants.cast.agents.items() if speaker == self.name)
        given = bool(spec.policy.start)
        self.retention = Retention(
            services.store, self._task, self.policy, spec.keep.every, services.token_steps, played, given
        )
        evaluator = Evaluator(services, spec, self.policy, self.name, environment, participants)
        self.measuring = Measuring(
            services, spec.eval, self.policy, environment, self.published, evaluator, self.retention
        )

    async def open(self) -> None:
        """Bring the policy to where it stands, and have that served. Raises as ``open_policy`` and ``publish`` do."""
        self._version = await open_policy(self._services, self._task, self.policy, self.name, self.spec)
        self.step = self._version.number
        self.first = self._version.number * self._batch
        """Number of the first group that it has not consumed."""
        self._silent = self._services.store.versions.silent_steps(self.policy)
        await self.published.publish(self._version, self._services.router.shares(self._task, self.name))

    @property
    def newest(self) -> Version:
        """Where it stands, once it is open."""
        return self._version

    @property
    def end(self) -> int:
        """Number of the group after its last."""
        return self.spec.steps * self._batch

    def needs(self, number: int) -> bool:
        """Whether it is to be trained on group ``number``."""
        return not self.finished and self.first <= number < self.end

    def may_begin(self, number: int, draining: bool) -> bool:
        """Whether its bound on staleness lets group ``number`` begin."""
        version = self.published.current.number if self.published.current else 0
        return may_begin(number, version, self._batch, 0 if draining else self.spec.train.max_staleness)

    async def train(self, background: Background) -> None:
        """Train to the last step, or to where the scores end it. Raises ``Blocked``, ``Paused``, ``StoreError``, …"""
        self.measuring.again(self._version, background)
        for step in range(self._version.number, self.spec.steps):
            if self._services.draining.is_set():
                await self._served()
                return
            self.check_room()
            await self._judged()
            if self.measuring.enough or self.remark:
                break
            self._version = await self._step(step, self._version, background)
            background.start(self.retention.tidy(self.measuring.pending))
        await self._served()
        self.finished = True
        self._moved()

    async def conclude(self) -> None:
        """Measure the last version, and say what there is to say of the scores."""
        await self.measuring.after(self._version)
        early = self._version.number < self.spec.steps
        self.remark = " ".join(filter(None, (self.remark, self.measuring.remark(early))))

    async def tidy(self) -> None:
        """Name the versions, and remove what nobody will go on from."""
        self.retention.label()
        await self.retention.retain(set())

    async def leave(self) -> None:
        """Free the trainer and the sampler; a worker that is gone has nothing to free."""
        await asyncio.gather(self._services.trainer.close(self._key), self.published.clear(), return_exceptions=True)

    def check_room(self) -> None:
        """Raise ``Blocked`` before the disk is full: the task goes on by itself once there is room."""
        if shortage := self._services.shortage():
            raise Blocked(shortage)

    @property
    def _batch(self) -> int:
        return self.spec.train.groups_per_step

    async def _step(self, step: int, before: Version, background: Background) -> Version:
        """One optimizer step: groups run forward and backward as they arrive, then one update, one commit.

        The new version is published and checked beside the next step.
        """
        services, started = self._services, monotonic()
        tally = StepTally(self._batch)
        wanted = set(step_groups(step, self._batch))
        while wanted:
            ready = await self.pool.take_ready(wanted, one_by_one=self.spec.train.deterministic)
            wanted.difference_update(closed.group.number for closed in ready)
            groups = tuple(train_group(closed.group, overlong=self._rules.overlong) for closed in ready)
            stats = await services.trainer.accumulate(self._key, groups)
            self._notice(stats.notice)
            tally.add(ready, stats)
            tally.keep_weights(ready, groups, stats)
        self.measuring.first(before, background)
        await self._judged()
        path = version_path(services, self._task, self.name, step + 1)
        await self._served()
        shares = services.router.shares(self._task, self.name)
        homes = [services.endpoints[share.sampler] for share in shares]
        await self.published.spread(before, shares)
        await self._canary.before(before.name, homes, tally.groups)
        result = await services.trainer.step(self._key, str(path))
        self._notice(result.notice)
        metrics = tally.metrics(result, monotonic() - started)
        made = (new_version(result), tally.numbers, metrics["seconds"], metrics, tally.weights)
        version = await services.store.patiently(lambda: services.store.versions.commit_step(self.policy, *made))
        self.step = version.number
        self._serving = background.start(self._serve(version, shares, background))
        await self._watch_signal(tally, metrics["reward"])
        return version

    def _notice(self, sentence: str) -> None:
        """Write down what the trainer had to do otherwise, if it says so."""
        if sentence:
            self._services.store.telemetry.event("trainer", sentence, self._task, "warning")

    async def _serve(self, version: Version, shares: Sequence[Share], background: Background) -> None:
        """Publish a committed version and let the canary compare it with the one before."""
        homes = [self._services.endpoints[share.sampler] for share in shares]

        async def publish() -> None:
            await self.published.publish(version, shares)
            self._moved()
            self.measuring.beside(version, background)

        report = await self._canary.after(version.name, homes, publish)
        reach(Point.CANARY_DONE)
        store = self._services.store
        await store.patiently(lambda: store.versions.add_metrics(self.policy, version.number, report.metrics()))

    async def _served(self) -> None:
        """Wait until the last version is published and checked: the next step would change the weights that are.

        Raises what went wrong there.
        """
        if self._serving is not None:
            await asyncio.wait((self._serving,))
            self._serving.result()

    async def _judged(self) -> None:
        """Where the run is to repeat itself, wait for the scores that may end it: else their timing would decide."""
        if self.spec.train.deterministic and self.measuring.decisive:
            await self._served()
            await self.measuring.settled()

    async def _watch_signal(self, tally: StepTally, reward: float) -> None:
        """A long silence ends a policy that has learned, and pauses a task of which none learns, or in which an agent
        is never asked."""
        self._silent, patience = 0 if tally.signal else self._silent + 1, self.spec.train.patience
        if self._silent < patience:
            return
        versions = self._services.store.versions
        if not tally.spoke and not versions.spoke(self.policy):
            await self._served()
            raise never_spoke(self._agents, self.name, f"{patience} steps")
        silence = f"All rewards within each group were equal for {patience} steps"
        if reward > versions.first_reward(self.policy):
            self.remark = f"{silence}: nothing was left to learn."
        elif self._hopeless():
            await self._served()
            raise Fruitless(f"{silence}: there is nothing to learn from.", "The task may be too hard for this base.")

    @property
    def silent(self) -> bool:
        """Whether it has not learned for as long as a task waits for."""
        return self.finished or self._silent >= self.spec.train.patience
