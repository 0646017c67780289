"""One policy's training loop: groups in, one optimizer step and its metrics out."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..clock import monotonic
from ..errors import Fruitless
from ..faults import Point, reach
from ..fleet import Services, Share
from ..store import Version, stale
from ..training import ClosedGroup, GroupStats, StepResult, TrainGroup, spread, teaches, train_group
from ..trajectories import Episode, Trajectory
from .admission import GroupPool, may_begin, step_groups
from .background import Background
from .drawing import TaskPrompts
from .environment import Mixture
from .evaluation.suites import deciding, measuring
from .groups.attempt import Attempt
from .groups.endings import all_equal, never_spoke
from .groups.survivors import the_only
from .preflight import check_room
from .recovery import new_version, version_path
from .selfplay import Participants
from .serving.canary import Asked, Canary
from .serving.published import ExposedTime
from .serving.retention import Retention
from .stage_settings import closing_rules
from .trained_policy import TrainedPolicy
from .watch.watch import Watch

# The metrics of one optimizer step, from its groups and what the trainer said of them. Pure arithmetic.


@dataclass
class StepTally:
    """Collects a step's groups in whatever order they were trained on."""

    version: int
    """Number of the version that the step updates."""
    kl: bool = False
    """Whether the loss has a KL term."""
    groups: list[ClosedGroup] = field(default_factory=list)
    stats: list[GroupStats] = field(default_factory=list)
    weights: dict[int, bytes] = field(default_factory=dict)
    """Importance weights of the groups that were trained on, by number, as the store keeps them."""

    def add(self, groups: Sequence[ClosedGroup], stats: GroupStats) -> None:
        """Count the groups of one call to the trainer."""
        self.groups.extend(groups)
        self.stats.append(stats)

    def keep_weights(self, groups: Sequence[ClosedGroup], trained: Sequence[TrainGroup], stats: GroupStats) -> None:
        """Keep the importance weights that the trainer found for ``trained``, its part of ``groups``."""
        for closed, own in zip(groups, trained, strict=True):
            if own.number in stats.weights:
                self.weights[own.number] = spread(closed.group, own, stats.weights[own.number]).tobytes()

    @property
    def numbers(self) -> list[int]:
        """Which groups were consumed."""
        return [closed.group.number for closed in self.groups]

    @property
    def signal(self) -> bool:
        """Whether any group had unequal rewards."""
        return any(not closed.rewards.constant for closed in self.groups)

    @property
    def spoke(self) -> bool:
        """Whether the policy said anything in any of the groups."""
        return any(closed.group.episodes for closed in self.groups)

    def metrics(self, result: StepResult, seconds: float) -> dict[str, float]:
        """Everything that is known when the step commits; ``seconds`` is the wall time since the last commit.

        What was not computed is left out, for 0 would be a measurement: ``entropy``, ``clipped``, ``kl``, ``drift_…``
        and ``weight_…`` where no group had a signal, so that no pass was made (``kl`` also where the loss has no KL
        term); ``surprisal``, ``same_reply``, ``length`` and ``cut`` where the policy said nothing.

        - ``reward_min``, ``reward_max``: the worst and the best of a group, each as the mean over the groups. Where
          rewards are 0 or 1, the second is the share of instances that were solved at least once.
        - ``drift_mean``, ``drift_max``: differences between the trainer's and the sampler's log-probability of a token,
          in nats. At staleness 0 the two disagree by rounding alone; stale tokens differ because the policy has moved.
        - ``weight_mean``, ``weight_ess``: the mean of the tokens' importance weights before any bound, and their
          effective sample size as a share of the tokens: (sum w)² / (n · sum w²), 1 where all are equal (Kong, 1992).
        - ``surprisal``: the mean of -log p of the sampled tokens, which estimates the policy's entropy in nats.
          It is of all groups, while ``entropy`` is of those that a pass was made for.
        - ``same_reply``: the share of the episodes with the commonest reply; ``first_prompts``: distinct first prompts.
        - ``length``, ``length_max``: tokens that the policy wrote in an episode; ``cut``: the share of episodes that
          the length limit ended.
        - ``errors``: members of the step's groups without a reward; ``lost``: members that failed each time that they
          were played, also in draws that were given up; ``replayed``: plays of members that had failed before;
          ``on_error``: episodes for whose exception the environment pays a reward.
        - ``dropped`` and what follows: see ``_dropped``; only where members are redundant.
        - ``staleness_0``, ``staleness_1``, …: groups by their age in versions.
        """
        spoken = [closed for closed in self.groups if closed.group.episodes] or self.groups
        ages = [self.version - closed.group.version for closed in self.groups]
        members = max(1, sum(closed.rewards.count for closed in self.groups))
        episodes = [episode for closed in self.groups for episode in closed.group.episodes]
        lengths = [_sampled(episode) for episode in episodes]
        replaced = sum(closed.group.replaced for closed in self.groups)
        return {
            "reward": math.fsum(c.rewards.mean * c.rewards.count for c in self.groups) / members,
            "reward_min": math.fsum(c.rewards.least for c in spoken) / len(spoken),
            "reward_max": math.fsum(c.rewards.most for c in spoken) / len(spoken),
            "reward_spread": math.fsum(c.rewards.spread for c in spoken) / len(spoken),
            "no_signal": sum(closed.rewards.constant for closed in self.groups) / len(self.groups),
            "replaced": float(replaced),
            "discarded": replaced / (replaced + len(self.groups)),
            "loss": math.fsum(stats.loss for stats in self.stats) / result.divisor,
            "grad_norm": result.grad_norm,
            "learning_rate": result.learning_rate,
            **_passed(self.stats, self.kl),
            "staleness": math.fsum(ages) / len(ages),
            "staleness_max": float(max(ages)),
            "tokens": float(sum(lengths)),
            "first_prompts": float(_first_prompts(episodes)),
            **(_said(episodes, lengths) if any(lengths) else {}),
            "errors": float(sum(episode.status != "ok" for episode in episodes)),
            "lost": float(sum(closed.group.lost for closed in self.groups)),
            "replayed": float(sum(closed.group.replayed for closed in self.groups)),
            "on_error": float(sum(episode.status == "ok" and episode.failure is not None for episode in episodes)),
            "update_seconds": result.seconds,
            "training_seconds": math.fsum(stats.seconds for stats in self.stats) + result.seconds,
            "trainer_calls": math.fsum(stats.calls for stats in self.stats),
            "seconds": seconds,
            **_dropped(self.groups, sum(lengths) / max(1, len(episodes))),
        } | {stale(age): float(groups) for age, groups in sorted(Counter(ages).items())}


def _dropped(groups: Sequence[ClosedGroup], length: float) -> dict[str, float]:
    """What is known of the members that the groups closed without; empty where no member is redundant.

    - ``dropped``: their share of the members that began.
    - ``dropped_time``: for how long they had been played by then, as a multiple of what the members took that count.
    - ``dropped_length``: tokens that the policy had written in them by then, less those in the members that count
      (``length``, their mean). Both are the least that they can be: most of them were cancelled.
    - ``dropped_reward``: their mean reward less that of the members of their group that count; of those alone that had
      ended all the same, and only where there are some.
    - ``slower_reward``: among the members that count, the mean reward of the slower half of a group less that of the
      faster half, as the mean over the groups. Where it is not 0, time goes with reward, and dropping what is slow
      changes what is learned.
    """
    known = [(closed, closed.group.dropped) for closed in groups if closed.group.dropped is not None]
    begun, members = sum(one.begun for _, one in known), sum(one.members for _, one in known)
    if not begun:
        return {}
    found = {"dropped": members / begun}
    closing = math.fsum(one.closing_seconds for _, one in known) / max(1, sum(len(c.group.episodes) for c, _ in known))
    if members and closing:
        found["dropped_time"] = math.fsum(one.seconds for _, one in known) / members / closing
        found["dropped_length"] = sum(one.tokens for _, one in known) / members - length
    late = [reward - closed.rewards.mean for closed, one in known for reward in one.rewards]
    slower = [one.slower for _, one in known if one.slower is not None]
    means = {"dropped_reward": late, "slower_reward": slower}
    return found | {name: math.fsum(values) / len(values) for name, values in means.items() if values}


def _passed(stats: Sequence[GroupStats], kl: bool) -> dict[str, float]:
    """What the passes over the groups measured, as means over their tokens; empty where no pass was made."""
    measured = sum(one.measured for one in stats)
    if not measured:
        return {}
    found = {
        "entropy": math.fsum(one.entropy for one in stats) / measured,
        "clipped": sum(one.clipped for one in stats) / measured,
        "drift_mean": math.fsum(one.gap_sum for one in stats) / measured,
        "drift_max": max(one.gap_max for one in stats),
    }
    if kl:
        found["kl"] = math.fsum(one.kl for one in stats) / measured
    logarithms = [moved.astype(np.float64) for one in stats for moved in one.weights.values() if len(moved)]
    if logarithms:
        weights = np.exp(np.concatenate(logarithms))
        found["weight_mean"] = float(weights.mean())
        found["weight_ess"] = float(weights.sum() ** 2 / (weights @ weights) / len(weights))
    return found


def _said(episodes: Sequence[Episode], lengths: Sequence[int]) -> dict[str, float]:
    """What is known of the replies; ``lengths``: tokens that the policy wrote in each episode, in one at least."""
    logprobs = (float(t.logprobs.sum(dtype=np.float64)) for one in episodes for t in one.trajectories)
    replies = Counter(b"|".join(t.tokens[t.mask != 0].tobytes() for t in spoken) for spoken in map(_spoken, episodes))
    del replies[b""]  # of episodes without a reply
    return {
        "surprisal": (0.0 - math.fsum(logprobs)) / sum(lengths),
        "same_reply": max(replies.values()) / replies.total(),
        "length": sum(lengths) / len(episodes),
        "length_max": float(max(lengths)),
        "cut": sum(any(t.cut for t in one.trajectories) for one in episodes) / len(episodes),
    }


def _first_prompts(episodes: Sequence[Episode]) -> int:
    """How many of the prompts differ that replies begin with."""
    first = (spoken[0] for spoken in map(_spoken, episodes) if spoken)
    return len({one.tokens[: int(np.argmax(one.mask))].tobytes() for one in first})


def _spoken(episode: Episode) -> list[Trajectory]:
    """The trajectories in which the policy wrote something: one that was stored may be empty."""
    return [one for one in episode.trajectories if one.sampled]


def _sampled(episode: Episode) -> int:
    """Tokens that the policy wrote."""
    return sum(trajectory.sampled for trajectory in episode.trajectories)


# One policy's training loop: groups in, one optimizer step per batch, one commit, one publish.
#
# Reads from top to bottom as the algorithm. It goes on from whatever the store says until the last step. While a
# version is being published and checked by the canary, the next step is made already; its commit waits for both.
# Knows nothing of the task's other policies: each steps when its own batch is there.


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
