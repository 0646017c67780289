"""Attempts at a group: concurrent samples of one instance.

A failed sample runs again with the same instance, versions and noise: else easy replies would be selected. An attempt
with too few rewards or a held-out prompt repeats with another instance; with dynamic sampling also one with equal
rewards. Redundant samples: RollArt, arXiv 2512.22560.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from ..environments.protocol import FAILED, EpisodeOutcome, EpisodeSpec, FinishedEpisode
from ..environments.served_version import Lease
from ..environments.service import ranked
from ..errors import Fruitless, StoreError, WorkerDied
from ..faults import Point, reach
from ..machine.services import Services
from ..racing import until_first
from ..rollout.episodes import EpisodeListener, FinishedAgent, HeldOutPrompt, PromptHash
from ..rollout.slots import Replicas
from ..samplers.seeds import noise_seed
from ..spec.task import TaskSpec
from ..store.experience import Beside, Draw, OpenPlay, PolicyGroup
from ..store.rows import SIDE_CALL
from ..trainer.advantages import ClosedGroup, ClosingRules, TooFewRewards, close_group, demonstrates
from ..trajectories import Dropped, Episode, Group, Transcripts
from .drawing import TaskPrompts
from .environment import Component, Mixture
from .failures import BiasWatch, DrawHistory, all_lost, never_asks, too_few
from .opening import closing_rules, replacements
from .selfplay import Match, Participants

if TYPE_CHECKING:
    from .admission import GroupRun, PolicyGroups

RUNS = 3
DEATHS = 2
"""Runs ended by the process's death. A version that dies three times within a minute is suspended."""
OVERLOADED = 8
"""Runs ended by an overloaded machine: no failures."""
MAX_SHORT = 20
"""If one reply in five fails, half of the attempts of eight lose two or more: twenty in a row happen once in a million.
"""
MAX_ATTEMPTS = 100
KEEP_AFTER = 1.0
"""Seconds: storing a sample costs as much as its part of a group."""


def runs_again(outcomes: Sequence[EpisodeOutcome], most_overloaded: int = OVERLOADED) -> bool:
    """True if a sample with these runs (at least one) runs again."""
    if outcomes[-1].status not in FAILED:
        return False
    overloaded = sum(outcome.overloaded for outcome in outcomes)
    died = sum(outcome.died and not outcome.overloaded for outcome in outcomes)
    return overloaded < most_overloaded and died < DEATHS and len(outcomes) - overloaded < RUNS


class Sample(EpisodeListener):
    """One episode of an attempt, until it ends well or fails too often."""

    keeps_final_rewards = True

    def __init__(self, runner: GroupRunner, attempt: Attempt, number: int) -> None:
        self.number = number
        self._runner = runner
        self._attempt = attempt
        self._earlier: tuple[EpisodeOutcome, ...] = ()
        self._cancelled: FinishedEpisode | None = None

    async def run(self) -> FinishedEpisode:
        """If cancelled because its group closes, returns its progress."""
        attempt, lease = self._attempt, self._attempt.lease
        try:
            while True:
                episode = replace(await self._run_once(), earlier=self._earlier)
                if not runs_again(episode.outcomes) or lease.cut or lease.rest is not None:
                    break
                self._earlier = episode.outcomes
            episode = with_final(episode, attempt.final.get(self.number, {}))
            attempt.ended[self.number] = episode
            self._runner.keep(attempt, episode)
            self._runner.close_early(attempt)
            return episode
        except asyncio.CancelledError:
            if self._cancelled is None:
                raise
            return replace(self._cancelled, earlier=self._earlier, dropped=True)
        finally:
            self.on_last_turn()

    async def _run_once(self) -> FinishedEpisode:
        attempt, spec, record = self._attempt, self._runner.spec, self._attempt.record
        seed, again = spec.train.seed, f".{len(self._earlier)}" if self._earlier else ""
        noise = noise_seed(seed, "train", record.number, record.attempt, self.number)
        return await self._runner.services.rollout.run_episode(
            attempt.component.environment.player(attempt.lease),
            EpisodeSpec("train", record.index, seed, self.number, attempt.lease.config),
            attempt.match.roles(attempt.replicas, spec.sampling, spec.sampling.temperature, noise),
            f"{attempt.name}.{self.number}{again}",
            self,
        )

    def refuses(self, prompt: PromptHash) -> bool:
        return prompt in self._attempt.held_out

    def on_agent_done(self, agent: FinishedAgent) -> None:
        """A repeated sample keeps each agent's first final reward."""
        self._attempt.final.setdefault(self.number, {}).setdefault(agent.agent, agent)
        self._runner.close_early(self._attempt)

    def on_last_turn(self) -> None:
        self._attempt.stop_asking(self.number)

    def on_cancelled(self, episode: FinishedEpisode) -> None:
        self._cancelled = episode


async def run_samples(
    samples: Sequence[Sample], enough: int, finished: Iterable[FinishedEpisode] = ()
) -> list[FinishedEpisode]:
    """Run until ``enough`` samples have a reward, those of ``finished`` among them, or all have ended.

    Returns begun samples by end, cancelled ones last. Raises a sample's error.
    """
    running = [asyncio.ensure_future(sample.run()) for sample in samples]
    ended, pending = [*finished], set(running)
    rewarded = sum(episode.rewarded for episode in ended)
    try:
        while pending and rewarded < enough:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            new = [task.result() for task in running if task in done]
            rewarded += sum(episode.rewarded for episode in new)
            ended += new
    finally:
        for task in pending:
            task.cancel()
        results = await asyncio.gather(*running, return_exceptions=True)
    late = [r for task, r in zip(running, results, strict=True) if task in pending and isinstance(r, FinishedEpisode)]
    return ended + sorted(late, key=lambda episode: (episode.dropped, episode.episode.member))


@dataclass(eq=False)
class Attempt:
    """One draw of a group: an instance, and the samples that are run on it."""

    group: GroupRun
    record: OpenPlay
    """Counts are of earlier attempts."""
    component: Component
    match: Match
    policies: Sequence[PolicyGroups]
    lease: Lease
    held_out: Set[PromptHash]
    replicas: Mapping[str, Replicas]
    name: str
    stored: bool
    asking: set[int]
    final: dict[int, dict[str, FinishedAgent]] = field(default_factory=dict)
    ended: dict[int, FinishedEpisode] = field(default_factory=dict)
    unsaved: list[FinishedEpisode] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None
    play: int | None = None
    unneeded: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once all groups are closed or too old."""
    samples: list[FinishedEpisode] = field(default_factory=list)
    others: list[FinishedEpisode] = field(default_factory=list)

    @property
    def stale(self) -> bool:
        waiting = self.group.waiting.values()
        return any(self.match.versions[policy.name].number < policy.oldest for policy in waiting)

    def stop_asking(self, sample: int) -> None:
        if sample in self.asking:
            self.asking.remove(sample)
            self.group.count(-1)

    def losses(self, samples: Iterable[FinishedEpisode]) -> dict[str, int]:
        """Lost and repeated samples, those of earlier attempts among them."""
        samples = list(samples)
        lost, replayed = sum(sample.lost for sample in samples), sum(len(sample.earlier) for sample in samples)
        return {"lost": self.record.lost + lost, "replayed": self.record.replayed + replayed}

    def group_of(self, policy: str, episodes: Sequence[Episode], samples: Iterable[FinishedEpisode]) -> Group:
        record, agents, losses = self.record, self.match.agents_of(policy), self.losses(samples)
        return Group(
            number=record.number,
            index=record.index,
            version=self.match.versions[policy].number,
            environment_version=record.environment_version,
            episodes=tuple(episode_of(episode, agents) for episode in episodes),
            component=record.component,
            replaced=record.replaced,
            lost=losses["lost"],
            replayed=losses["replayed"],
        )

    def done(self, policy: str, size: int) -> list[FinishedEpisode] | None:
        """None if an agent is not done."""
        agents = self.match.agents_of(policy)
        if agents is None or len(self.ended) == size:
            return None
        if any(agents - self.final.get(number, {}).keys() for number in range(size) if number not in self.ended):
            return None
        return [self.ended.get(number) or _unfinished(number, self.final.get(number, {})) for number in range(size)]


def with_final(episode: FinishedEpisode, final: Mapping[str, FinishedAgent]) -> FinishedEpisode:
    """An episode with final rewards and their text."""
    if not final:
        return episode
    trajectories = [t for t in episode.episode.trajectories if agent_of(t.agent) not in final]
    paid = [payment for payment in episode.episode.paid if payment.agent not in final]
    texts = {key: text for key, text in episode.transcripts.items() if agent_of(key[1]) not in final}
    for agent in final.values():
        trajectories += agent.trajectories
        paid += agent.paid
        texts |= agent.transcripts
    trajectories.sort(key=lambda trajectory: trajectory.agent)  # the order of ``Rollout``
    changed = replace(episode.episode, trajectories=tuple(trajectories), paid=tuple(paid))
    return replace(episode, episode=changed, transcripts=texts)


def _unfinished(number: int, final: Mapping[str, FinishedAgent]) -> FinishedEpisode:
    return with_final(FinishedEpisode(Episode(number, "ok", ()), {}, None, EpisodeOutcome("ok")), final)


def agent_of(name: str) -> str:
    """The agent that made a side call; else the name."""
    return name.partition(SIDE_CALL)[0]


def episode_of(episode: Episode, agents: Set[str] | None) -> Episode:
    """An episode of these agents; None: all."""
    if agents is None:
        return episode
    trajectories = tuple(trajectory for trajectory in episode.trajectories if agent_of(trajectory.agent) in agents)
    paid = tuple(payment for payment in episode.paid if payment.agent in agents)
    if episode.status != "ok" and trajectories and all(trajectory.reward is not None for trajectory in trajectories):
        # done before the failure: their rewards are final
        return replace(episode, status="ok", trajectories=trajectories, paid=paid, failure=None)
    return replace(episode, trajectories=trajectories, paid=paid)


def texts_of(transcripts: Transcripts, agents: Set[str] | None) -> Transcripts:
    """Texts received and written by the agents."""
    return {key: text for key, text in transcripts.items() if agents is None or agent_of(key[1]) in agents}


def untrained(
    episodes: Sequence[Episode], transcripts: Transcripts, match: Match, trained: Set[str]
) -> tuple[Beside, ...]:
    """Untrained policies' text."""
    rows = []
    for policy in dict.fromkeys(policy for policy in match.agents.values() if policy not in trained):
        agents = match.agents_of(policy)
        parts = tuple(episode_of(episode, agents) for episode in episodes)
        if any(episode.trajectories for episode in parts):
            rows.append(Beside(policy, parts, texts_of(transcripts, agents)))
    return tuple(rows)


def close_groups(
    episodes: Sequence[Episode], groups: Sequence[Group], rules: Sequence[ClosingRules]
) -> list[ClosedGroup] | TooFewRewards:
    """Close the policies' groups once all samples have ended.

    ``TooFewRewards`` if fewer samples have a reward than any rule requires, or all groups are empty. One group with too
    few rewards counts as empty.
    """
    rewarded = sum(
        episode.status == "ok" and any(t.reward is not None for t in episode.trajectories) for episode in episodes
    )
    if rewarded < max(rule.min_members for rule in rules) and not demonstrates(episodes):
        return TooFewRewards(rewarded)
    closed = [close_group(group, rule) for group, rule in zip(groups, rules, strict=True)]
    if all(isinstance(group, TooFewRewards) for group in closed):
        return TooFewRewards(rewarded)
    closed = [
        close_group(replace(group, episodes=())) if isinstance(result, TooFewRewards) else result
        for group, result in zip(groups, closed, strict=True)
    ]
    return [group for group in closed if isinstance(group, ClosedGroup)]


def closing(ended: Sequence[FinishedEpisode], size: int) -> tuple[list[FinishedEpisode], list[FinishedEpisode]]:
    """The samples that close a group, by number, and all others.

    First those with a reward, then other finished ones, by end.
    """
    ranks = sorted(ended, key=lambda sample: (sample.dropped, not sample.rewarded))
    first = [sample for sample in ranks[:size] if not sample.dropped]
    return sorted(first, key=lambda sample: sample.episode.member), ranks[len(first) :]


def dropped(closed: Sequence[FinishedEpisode], others: Sequence[FinishedEpisode], agents: Set[str] | None) -> Dropped:
    """Statistics of the ``others``; ``agents``: None: all.

    Samples that failed in every run count only as begun.
    """
    begun, others = len(closed) + len(others), [sample for sample in others if not sample.lost]
    rewards = (reward_of(sample.episode, agents) for sample in others if sample.rewarded)
    return Dropped(
        begun=begun,
        members=len(others),
        seconds=math.fsum(sample.seconds for sample in others),
        tokens=sum(
            t.sampled for sample in others for t in sample.episode.trajectories if agents is None or t.agent in agents
        ),
        closing_seconds=math.fsum(sample.seconds for sample in closed),
        rewards=tuple(reward for reward in rewards if reward is not None),
        slower=_slower(closed, agents),
    )


def reward_of(episode: Episode, agents: Set[str] | None) -> float | None:
    """Mean reward of these agents' trajectories."""
    return _mean(
        t.reward for t in episode.trajectories if t.reward is not None and (agents is None or t.agent in agents)
    )


def _slower(closed: Sequence[FinishedEpisode], agents: Set[str] | None) -> float | None:
    timed = [(sample.seconds, reward_of(sample.episode, agents)) for sample in closed if sample.rewarded]
    rewards = [reward for _, reward in sorted(timed, key=lambda pair: pair[0]) if reward is not None]
    half = len(rewards) // 2
    slow, fast = _mean(rewards[len(rewards) - half :]), _mean(rewards[:half])
    return None if slow is None or fast is None else slow - fast


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return math.fsum(listed) / len(listed) if listed else None


class GroupRunner:
    """Fills one task's training groups."""

    def __init__(
        self,
        services: Services,
        task: int,
        spec: TaskSpec,
        mixture: Mixture,
        participants: Participants,
        prompts: TaskPrompts,
        bias: BiasWatch,
    ) -> None:
        self.services = services
        self.spec = spec
        self._size = spec.train.begun_members
        self._task = task
        self._mixture = mixture
        self._participants = participants
        self._prompts = prompts
        self._bias = bias
        # If the engine died after an early close, the rest would run with other versions. Redundant samples count only
        # at the end.
        self._early = not spec.train.deterministic and not spec.train.redundant
        self._replacements = replacements(spec)
        self._draws: defaultdict[tuple[str, str], DrawHistory] = defaultdict(DrawHistory)
        """By component and version of its environment."""
        self._leading = next(iter(participants.agent_map.trained))

    async def room(self, number: int, policies: Iterable[str]) -> None:
        await self._mixture.of(number)[0].environment.room()
        # ``fill`` reports a policy without a worker.
        with suppress(WorkerDied):
            for policy in policies:
                await self.services.rollout.room(self._participants.endpoints(policy), self._size)

    def begin(self) -> None:
        self.services.rollout.begin(self._size)

    async def fill(self, group: GroupRun) -> None:
        """Close a group for its policies; those for which it is too old keep waiting.

        Raises ``Paused`` if the environment keeps failing, ``Blocked`` if no version serves, ``WorkerDied``.
        """
        component, place = self._mixture.of(group.number)
        drawing, resumed = self._prompts.drawing(component), self._resumed(group)
        counts, first, lost_in_a_row = {"replaced": 0, "lost": 0, "replayed": 0}, 0, 0
        if resumed is not None:
            record, first = resumed[0], resumed[0].attempt
            counts = {"replaced": record.replaced, "lost": record.lost, "replayed": record.replayed}
        for number in range(first, MAX_ATTEMPTS):
            if number > first:
                group.count(self._size)
            attempt = await self._attempt(group, number, counts, resumed)
            resumed, version = None, attempt.record.environment_version
            history = self._draws[component.name, version]
            if history.never_asked(attempt.samples):
                rejected = next((sample.rejected for sample in attempt.samples if sample.rejected), "")
                raise never_asks(component.spec.environment, f"{history.silent} episodes", rejected)
            if not group.waiting:
                history.survived(lost_in_a_row)
                begun = [attempt.ended.get(n) or _unfinished(n, {}) for n in range(self._size)]
                self._bias.see(version, begun, component.name)
                return
            if attempt.stale:
                return self._give_up(attempt)
            if not attempt.samples or (
                attempt.lease.cut and any(one.episode.status == "cancelled" for one in attempt.samples)
            ):
                self._give_up(attempt)
                continue
            begun = [*attempt.samples, *attempt.others]
            self._bias.see(version, [sample for sample in begun if sample.outcomes], component.name)
            counts |= attempt.losses(begun)
            if self.spec.train.redundant:
                dropped_outcomes = [sample.outcome for sample in attempt.others if sample.dropped]
                component.environment.left(dropped_outcomes, attempt.lease)
            closed = self._close(attempt)
            if isinstance(closed, TooFewRewards):
                lost_in_a_row = await self._count_lost(attempt, history, lost_in_a_row)
                self._give_up(attempt)
                continue
            history.survived(lost_in_a_row)
            lost_in_a_row, draws = 0, drawing.tried(place)
            if self._leading in closed:
                draws = drawing.drawn(place, number, attempt.record.index, closed[self._leading].rewards)
            replaces = counts["replaced"] < self._replacements and len(closed) == len(group.policies)
            if replaces and all(one.rewards.constant for one in closed.values()):
                drawing.keep(place, draws)
                counts["replaced"] += 1
                self._give_up(attempt)
                continue
            await self._store(attempt, closed, draws)
            drawing.learn(place, draws)
            for name, one in closed.items():
                group.close(name, one)
            return
        raise Fruitless(
            f"No usable training prompt was found in {MAX_ATTEMPTS} draws.",
            "The environment's space of prompts may be too small for the held-out set.",
        )

    async def _attempt(
        self, group: GroupRun, number: int, counts: Mapping[str, int], resumed: tuple[OpenPlay, Match] | None
    ) -> Attempt:
        component, place = self._mixture.of(group.number)
        match, policies = resumed[1] if resumed else self._participants.match(group.number, number), group.waiting
        async with self._participants.playing(match), component.environment.bound() as lease:
            if resumed and resumed[0].environment_version != lease.environment_version:
                self.services.store.open_plays.drop(resumed[0])
                resumed = None
            # also if resumed, so that a curriculum counts it
            index = await self._prompts.drawing(component).instance(lease, place, number)
            record = OpenPlay(
                self._task,
                group.number,
                resumed[0].policies if resumed else tuple(policies),
                number,
                resumed[0].index if resumed else index,
                component.name,
                lease.environment_version,
                {name: (version.number, version.checksum) for name, version in match.versions.items()},
                **counts,
            )
            some = "" if len(policies) == len(self._participants.agent_map.trained) else f"-{'+'.join(policies)}"
            attempt = Attempt(
                group,
                record,
                component,
                match,
                tuple(policies.values()),
                lease,
                held_out=await self._prompts.kept_out(component, lease),
                replicas=self._participants.replicas(match),
                name=f"{next(iter(match.versions.values())).name}/g{group.number}{some}.{number}",
                stored=resumed is not None,
                asking=set(range(self._size)),
            )
            ended = await self._run(attempt, self.services.store.open_plays.members(record) if resumed else [])
            attempt.samples, attempt.others = closing(ended, self.spec.train.group_size)
            if lease.declared.ranked:
                outcomes = [sample.outcome for sample in attempt.samples]
                verdicts = await ranked(self.services.environments, lease, outcomes, counts=True)
                attempt.samples = [s.judged(verdict) for s, verdict in zip(attempt.samples, verdicts, strict=True)]
            return attempt

    async def _run(self, attempt: Attempt, finished: Sequence[FinishedEpisode]) -> list[FinishedEpisode]:
        """By end; empty if the prompt is held out, or all groups closed early."""
        if any(episode.prompt in attempt.held_out for episode in finished):
            return []
        attempt.ended = {episode.episode.member: episode for episode in finished}
        for number in attempt.ended:
            attempt.stop_asking(number)
        self.close_early(attempt)
        samples = [Sample(self, attempt, n) for n in range(self._size) if n not in attempt.ended]
        ended: list[FinishedEpisode] = []

        async def run_all() -> None:
            with suppress(HeldOutPrompt):
                ended.extend(await run_samples(samples, self.spec.train.group_size, finished))

        for policy in attempt.policies:
            policy.running.add(attempt)
        try:
            await until_first(run_all(), attempt.unneeded.wait())
        except BaseException:
            self._save(attempt)
            raise
        finally:
            if attempt.timer is not None:
                attempt.timer.cancel()
            for policy in attempt.policies:
                policy.running.remove(attempt)
        return ended

    def keep(self, attempt: Attempt, sample: FinishedEpisode) -> None:
        if sample.rewarded and attempt.group.waiting:
            attempt.unsaved.append(sample)
            if attempt.timer is None:
                attempt.timer = asyncio.get_running_loop().call_later(KEEP_AFTER, self._save, attempt)

    def _save(self, attempt: Attempt) -> None:
        attempt.timer = None
        samples, attempt.unsaved = attempt.unsaved, []
        try:
            if samples:
                paid = [replace(s, outcome=replace(s.outcome, paid=s.episode.paid)) for s in samples]
                self.services.store.open_plays.keep(attempt.record, paid)
                attempt.stored = True
        except StoreError:
            attempt.unsaved = samples

    def _give_up(self, attempt: Attempt) -> None:
        if attempt.stored:
            attempt.stored = False
            self.services.store.open_plays.drop(attempt.record)

    def _resumed(self, group: GroupRun) -> tuple[OpenPlay, Match] | None:
        """The attempt that an earlier engine began; removes those that cannot continue."""
        store, names = self.services.store.open_plays, tuple(group.waiting)
        record = store.find(self._task, group.number, names)
        store.drop_others(self._task, group.number, names, record)
        if record is None:
            return None
        match = self._participants.again(record.speaking)
        # a curriculum has lost the earlier attempts' draws
        unknown = record.attempt and self.spec.train.sampling == "difficulty"
        policies = group.waiting.values()
        if match is None or unknown or any(match.versions[p.name].number < p.oldest for p in policies):
            store.drop(record)
            return None
        return record, match

    async def _count_lost(self, attempt: Attempt, history: DrawHistory, lost_in_a_row: int) -> int:
        component, samples = attempt.component, attempt.samples
        if all(sample.lost for sample in samples):
            lost_in_a_row += 1
        elif any(sample.lost for sample in samples):
            history.survived(lost_in_a_row, short=True)
            lost_in_a_row = 0
        hopeless = history.beyond_chance(lost_in_a_row)
        if hopeless or history.short >= MAX_SHORT:
            await component.environment.check()  # a suspended environment makes the task wait instead of pause
            if hopeless:
                raise all_lost(lost_in_a_row, samples, attempt.lease.environment, attempt.record.index, component.name)
            fewest = max(closing_rules(policy.spec).min_members for policy in attempt.group.waiting.values())
            raise too_few(history.short, fewest, samples, component.name)
        return lost_in_a_row

    def _close(self, attempt: Attempt) -> dict[str, ClosedGroup] | TooFewRewards:
        waiting, episodes = attempt.group.waiting, [sample.episode for sample in attempt.samples]
        begun = [*attempt.samples, *attempt.others]
        groups = [attempt.group_of(name, episodes, begun) for name in waiting]
        if self.spec.train.redundant:  # redundant samples need a single trained policy
            agents = attempt.match.agents_of(*waiting)
            groups = [replace(groups[0], dropped=dropped(attempt.samples, attempt.others, agents))]
        closed = close_groups(episodes, groups, [closing_rules(policy.spec) for policy in waiting.values()])
        if isinstance(closed, TooFewRewards):
            return closed
        return dict(zip(waiting, closed, strict=True))

    def close_early(self, attempt: Attempt) -> None:
        """Close the groups of policies whose agents are done in all samples."""
        for policy in [*attempt.group.waiting.values()] if self._early else ():
            samples = attempt.done(policy.name, self._size)
            if samples is None:
                continue
            group = attempt.group_of(policy.name, [sample.episode for sample in samples], attempt.ended.values())
            closed = close_group(group, closing_rules(policy.spec))
            if isinstance(closed, TooFewRewards) or not closed.rewards.count:
                continue
            if closed.rewards.constant and attempt.record.replaced < self._replacements:
                continue  # the whole group may be replaced
            if not self._store_early(attempt, policy.name, closed, samples):
                return
            reach(Point.GROUP_STORED)
            attempt.group.close(policy.name, closed)
        if not attempt.group.waiting:
            attempt.unneeded.set()

    def _store_early(
        self, attempt: Attempt, policy: str, closed: ClosedGroup, samples: Sequence[FinishedEpisode]
    ) -> bool:
        record, draws = attempt.record, tuple[Draw, ...]()
        drawing, place = self._prompts.drawing(attempt.component), self._mixture.of(record.number)[1]
        leads, last = policy == self._leading, len(attempt.group.waiting) == 1
        if leads:
            draws = drawing.drawn(place, record.attempt, record.index, closed.rewards)
        add = self._adding(attempt, {policy: closed}, samples, draws)
        try:
            attempt.play = add(opens=None if last else record, closes=record if last else None)
        except StoreError:
            return False
        if leads or last:
            drawing.learn(place, draws)
        attempt.stored = not last
        if last:
            attempt.unsaved.clear()
        return True

    async def _store(self, attempt: Attempt, closed: Mapping[str, ClosedGroup], draws: Sequence[Draw]) -> None:
        trained = {policy.name for policy in attempt.policies}
        episodes = [sample.episode for sample in attempt.samples]
        others = untrained(episodes, texts(attempt.samples), attempt.match, trained)
        add = self._adding(attempt, closed, attempt.samples, draws)
        await self.services.store.patiently(partial(add, others, closes=attempt.record if attempt.stored else None))
        reach(Point.GROUP_STORED)

    def _adding(
        self,
        attempt: Attempt,
        closed: Mapping[str, ClosedGroup],
        samples: Sequence[FinishedEpisode],
        draws: Sequence[Draw],
    ) -> Callable[..., int]:
        whole = texts(samples)
        parts = [
            PolicyGroup(policy.policy, closed[policy.name].group, texts_of(whole, attempt.match.agents_of(policy.name)))
            for policy in attempt.policies
            if policy.name in closed
        ]
        reach(Point.GROUP_CLOSED)
        return partial(self.services.store.experience.add_play, "train", parts, draws=draws, play=attempt.play)


def texts(samples: Sequence[FinishedEpisode]) -> Transcripts:
    """The texts of all samples."""
    return {key: text for sample in samples for key, text in sample.transcripts.items()}
