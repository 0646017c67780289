"""A group in progress: concurrent samples of one instance.

A failed sample runs again with the same instance, versions and noise: else easy replies would be selected. An attempt
with too few rewards or a held-out prompt repeats with another instance; with dynamic sampling also one with equal
rewards. Redundant samples: RollArt, arXiv 2512.22560.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

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
from ..trainer.advantages import ClosedGroup, ClosingRules, TooFewRewards, close_group
from ..trajectories import Dropped, Episode, Group, Transcripts
from .drawing import TaskPrompts
from .environment import Component, Mixture
from .failures import BiasWatch, LostDraws, all_lost, never_asks, too_few
from .opening import closing_rules, replacements
from .selfplay import Match, Participants

if TYPE_CHECKING:
    from .admission import Filling, PolicyGroups

RUNS = 3
DEATHS = 2
"""Runs ended by the process's death. A version that dies three times within a minute is suspended."""
OVERLOADED = 8
"""Runs ended by an overloaded machine: no failures."""
MAX_SHORT = 20
"""If one reply in five fails, half of the attempts of eight lose two or more: twenty in a row happen once in a million.
"""
MAX_SILENT = 256
"""Episodes without asking the model. If every other instance asks, 32 groups of eight end so once in 4e9 runs."""
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
    """One episode of a group, until it ends well or fails too often."""

    keeps_final_rewards = True

    def __init__(
        self, runner: GroupRunner, run: GroupRun, number: int, finished: FinishedEpisode | None = None
    ) -> None:
        self.number = number
        self._runner = runner
        self._run = run
        self._finished = finished
        self._earlier: tuple[EpisodeOutcome, ...] = ()
        self._cancelled: FinishedEpisode | None = None

    async def run(self) -> FinishedEpisode:
        """If cancelled because its group closes, returns its progress."""
        run, runner = self._run, self._runner
        try:
            while self._finished is None:
                episode = replace(await self._run_once(), earlier=self._earlier)
                if runs_again(episode.outcomes) and not (run.lease.cut or run.lease.rest is not None):
                    self._earlier = episode.outcomes
                    continue
                run.ended[self.number] = episode = with_final(episode, run.final.get(self.number, {}))
                runner.keep(run, episode)
                runner.close_early(run)
                return episode
            run.ended[self.number] = self._finished
            runner.close_early(run)
            return self._finished
        except asyncio.CancelledError:
            if self._cancelled is None:
                raise
            return replace(self._cancelled, earlier=self._earlier, dropped=True)
        finally:
            self.on_last_turn()

    async def _run_once(self) -> FinishedEpisode:
        run, spec, record = self._run, self._runner.spec, self._run.record
        seed, again = spec.train.seed, f".{len(self._earlier)}" if self._earlier else ""
        noise = noise_seed(seed, "train", record.number, record.attempt, self.number)
        return await self._runner.services.rollout.run_episode(
            run.component.environment.player(run.lease),
            EpisodeSpec("train", record.index, seed, self.number, run.lease.config),
            run.match.roles(run.replicas, spec.sampling, spec.sampling.temperature, noise),
            f"{run.name}.{self.number}{again}",
            self,
        )

    def refuses(self, prompt: PromptHash) -> bool:
        return prompt in self._run.held_out

    def on_agent_done(self, agent: FinishedAgent) -> None:
        """A repeated sample keeps each agent's first final reward."""
        self._run.final.setdefault(self.number, {}).setdefault(agent.agent, agent)
        self._runner.close_early(self._run)

    def on_last_turn(self) -> None:
        if self.number in self._run.asking:
            self._run.asking.remove(self.number)
            self._run.listener.on_samples(-1)

    def on_cancelled(self, episode: FinishedEpisode) -> None:
        self._cancelled = episode


async def run_samples(samples: Sequence[Sample], enough: int) -> list[FinishedEpisode]:
    """Run until ``enough`` samples have a reward or all have ended.

    Returns begun samples by end, cancelled ones last. Raises a sample's error.
    """
    running = [asyncio.ensure_future(sample.run()) for sample in samples]
    ended: list[FinishedEpisode] = []
    pending, rewarded = set(running), 0
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
class GroupRun:
    """One attempt at a group."""

    record: OpenPlay
    """Counts are of earlier attempts."""
    component: Component
    match: Match
    policies: Sequence[PolicyGroups]
    lease: Lease
    held_out: Set[PromptHash]
    replicas: Mapping[str, Replicas]
    name: str
    listener: Filling
    stored: bool
    asking: set[int]
    final: dict[int, dict[str, FinishedAgent]] = field(default_factory=dict)
    ended: dict[int, FinishedEpisode] = field(default_factory=dict)
    unsaved: list[FinishedEpisode] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None
    closed: dict[str, ClosedGroup] = field(default_factory=dict)
    play: int | None = None
    unneeded: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once all groups are closed or too old."""
    samples: list[FinishedEpisode] = field(default_factory=list)
    others: list[FinishedEpisode] = field(default_factory=list)
    cut: bool = False

    @property
    def waiting(self) -> list[PolicyGroups]:
        return [policy for policy in self.policies if policy.name not in self.closed]

    @property
    def stale(self) -> bool:
        return any(self.match.versions[policy.name].number < policy.oldest for policy in self.waiting)

    def counts(self, samples: Iterable[FinishedEpisode]) -> tuple[int, int]:
        samples = list(samples)
        lost, replayed = sum(sample.lost for sample in samples), sum(len(sample.earlier) for sample in samples)
        return self.record.lost + lost, self.record.replayed + replayed

    def group(self, policy: PolicyGroups, episodes: Sequence[Episode], samples: Iterable[FinishedEpisode]) -> Group:
        record, agents = self.record, self.match.agents_of(policy.name)
        lost, replayed = self.counts(samples)
        return Group(
            number=record.number,
            index=record.index,
            version=self.match.versions[policy.name].number,
            environment_version=record.environment_version,
            episodes=tuple(episode_of(episode, agents) for episode in episodes),
            component=record.component,
            replaced=record.replaced,
            lost=lost,
            replayed=replayed,
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
    trajectories = [t for t in episode.episode.trajectories if t.agent not in final]
    paid = [payment for payment in episode.episode.paid if payment.agent not in final]
    texts = {key: text for key, text in episode.transcripts.items() if key[1] not in final}
    for agent in final.values():
        trajectories += agent.trajectories
        paid += agent.paid
        texts |= agent.transcripts
    trajectories.sort(key=lambda trajectory: trajectory.agent)  # the order of ``Rollout``
    changed = replace(episode.episode, trajectories=tuple(trajectories), paid=tuple(paid))
    return replace(episode, episode=changed, transcripts=texts)


def _unfinished(number: int, final: Mapping[str, FinishedAgent]) -> FinishedEpisode:
    return with_final(FinishedEpisode(Episode(number, "ok", ()), {}, None, EpisodeOutcome("ok")), final)


def episode_of(episode: Episode, agents: Set[str] | None) -> Episode:
    """An episode of these agents; None: all."""
    if agents is None:
        return episode
    trajectories = tuple(trajectory for trajectory in episode.trajectories if trajectory.agent in agents)
    paid = tuple(payment for payment in episode.paid if payment.agent in agents)
    if episode.status != "ok" and trajectories and all(trajectory.reward is not None for trajectory in trajectories):
        # done before the failure: their rewards are final
        return replace(episode, status="ok", trajectories=trajectories, paid=paid, failure=None)
    return replace(episode, trajectories=trajectories, paid=paid)


def texts_of(transcripts: Transcripts, agents: Set[str] | None) -> Transcripts:
    """Texts received and written by the agents."""
    return {key: text for key, text in transcripts.items() if agents is None or key[1] in agents}


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
    if rewarded < max(rule.min_members for rule in rules):
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


class Resumed(NamedTuple):
    """An attempt begun by an earlier engine."""

    record: OpenPlay
    match: Match
    samples: Mapping[int, FinishedEpisode]


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
        self._asked: set[tuple[str, str]] = set()
        """Components, with the environment version, that asked an agent at least once."""
        self._silent: Counter[tuple[str, str]] = Counter()
        """Episodes per component that ended well without a request to the model, before the first request."""
        self._lost_draws = LostDraws()
        self._short: Counter[tuple[str, str]] = Counter()
        self._leading = next(iter(participants.agent_map.trained))

    async def room(self, number: int, policies: Iterable[str]) -> None:
        await self._mixture.of(number)[0].environment.room()
        # ``fill`` reports a policy without a worker.
        with suppress(WorkerDied):
            for policy in policies:
                await self.services.rollout.room(self._participants.endpoints(policy), self._size)

    def begin(self) -> None:
        self.services.rollout.begin(self._size)

    async def fill(self, number: int, policies: Sequence[PolicyGroups], listener: Filling) -> Mapping[str, ClosedGroup]:
        """Each policy's group, by name; too old ones are missing.

        Raises ``Paused`` if the environment keeps failing, ``Blocked`` if no version serves, ``WorkerDied``.
        """
        component, place = self._mixture.of(number)
        drawing = self._prompts.drawing(component)
        resumed = self._resumed(number, policies)
        replaced, lost, replayed, first = 0, 0, 0, 0
        if resumed is not None:
            record = resumed.record
            replaced, lost, replayed, first = record.replaced, record.lost, record.replayed, record.attempt
        lost_in_a_row = 0
        done: dict[str, ClosedGroup] = {}
        for attempt in range(first, MAX_ATTEMPTS):
            if attempt > first:
                listener.on_samples(self._size)
            waiting = [policy for policy in policies if policy.name not in done]
            run = await self._attempt(number, attempt, waiting, (replaced, lost, replayed), resumed, listener)
            key = component.name, run.record.environment_version
            self._count_silent(component, key, run.samples)
            resumed, done = None, done | run.closed
            if not run.waiting:
                self._lost_draws.survived(key, lost_in_a_row)
                self._short[key] = 0
                self._bias.see(
                    key[1], [run.ended.get(n) or _unfinished(n, {}) for n in range(self._size)], component.name
                )
                drawing.learn(place)
                return done
            if run.stale:
                self._give_up(run)
                return done
            if not run.samples or (run.cut and any(sample.episode.status == "cancelled" for sample in run.samples)):
                self._give_up(run)
                continue
            begun = [*run.samples, *run.others]
            self._bias.see(key[1], [sample for sample in begun if sample.outcomes], component.name)
            lost, replayed = run.counts(begun)
            if self.spec.train.redundant:
                component.environment.left([sample.outcome for sample in run.others if sample.dropped], run.lease)
            closed = self._close(run)
            if isinstance(closed, TooFewRewards):
                lost_in_a_row = await self._count_lost(run, key, lost_in_a_row)
                self._give_up(run)
                continue
            done |= closed
            self._lost_draws.survived(key, lost_in_a_row)
            lost_in_a_row = self._short[key] = 0
            if self._leading in closed:
                drawing.note(place, attempt, run.record.index, closed[self._leading].rewards)
            if replaced < self._replacements and all(group.rewards.constant for group in done.values()):
                replaced, done = replaced + 1, {}
                self._give_up(run)
                continue
            await self._store(run, closed, drawing.tried(place))
            drawing.learn(place)
            return done
        raise Fruitless(
            f"No usable training prompt was found in {MAX_ATTEMPTS} draws.",
            "The environment's space of prompts may be too small for the held-out set.",
        )

    async def _attempt(
        self,
        number: int,
        attempt: int,
        policies: Sequence[PolicyGroups],
        counts: tuple[int, int, int],
        resumed: Resumed | None,
        listener: Filling,
    ) -> GroupRun:
        component, place = self._mixture.of(number)
        match = resumed.match if resumed else self._participants.match(number, attempt)
        names = tuple(policy.name for policy in policies)
        async with self._participants.playing(match), component.environment.bound() as lease:
            if resumed and resumed.record.environment_version != lease.environment_version:
                self.services.store.open_plays.drop(resumed.record)
                resumed = None
            # also if resumed, so that a curriculum counts it
            index = await self._prompts.drawing(component).instance(lease, place, attempt)
            record = OpenPlay(
                self._task,
                number,
                resumed.record.policies if resumed else names,
                attempt,
                resumed.record.index if resumed else index,
                component.name,
                lease.environment_version,
                {name: (version.number, version.checksum) for name, version in match.versions.items()},
                *counts,
            )
            some = "" if len(names) == len(self._participants.agent_map.trained) else f"-{'+'.join(names)}"
            run = GroupRun(
                record,
                component,
                match,
                policies,
                lease,
                held_out=await self._prompts.kept_out(component, lease),
                replicas=self._participants.replicas(match),
                name=f"{next(iter(match.versions.values())).name}/g{number}{some}.{attempt}",
                listener=listener,
                stored=resumed is not None,
                asking=set(range(self._size)),
            )
            ended = await self._run(run, resumed.samples if resumed else {})
            run.samples, run.others = closing(ended, self.spec.train.group_size)
            if lease.declared.ranked:
                outcomes = [sample.outcome for sample in run.samples]
                verdicts = await ranked(self.services.environments, lease, outcomes, counts=True)
                run.samples = [s.judged(verdict) for s, verdict in zip(run.samples, verdicts, strict=True)]
            run.cut = lease.cut
            return run

    async def _run(self, run: GroupRun, finished: Mapping[int, FinishedEpisode]) -> list[FinishedEpisode]:
        """By end; empty if the prompt is held out, or all groups closed early."""
        if any(episode.prompt in run.held_out for episode in finished.values()):
            return []
        samples = [Sample(self, run, n, finished.get(n)) for n in range(self._size)]
        ended: list[FinishedEpisode] = []

        async def run_all() -> None:
            with suppress(HeldOutPrompt):
                ended.extend(await run_samples(samples, self.spec.train.group_size))

        for policy in run.policies:
            policy.running.add(run)
        try:
            await until_first(run_all(), run.unneeded.wait())
        except BaseException:
            self._save(run)
            raise
        finally:
            if run.timer is not None:
                run.timer.cancel()
            for policy in run.policies:
                policy.running.remove(run)
        return ended

    def keep(self, run: GroupRun, sample: FinishedEpisode) -> None:
        if sample.rewarded and run.waiting:
            run.unsaved.append(sample)
            if run.timer is None:
                run.timer = asyncio.get_running_loop().call_later(KEEP_AFTER, self._save, run)

    def _save(self, run: GroupRun) -> None:
        run.timer = None
        samples, run.unsaved = run.unsaved, []
        try:
            if samples:
                paid = [replace(s, outcome=replace(s.outcome, paid=s.episode.paid)) for s in samples]
                self.services.store.open_plays.keep(run.record, paid)
                run.stored = True
        except StoreError:
            run.unsaved = samples

    def _give_up(self, run: GroupRun) -> None:
        if run.stored:
            run.stored = False
            self.services.store.open_plays.drop(run.record)

    def _resumed(self, number: int, policies: Sequence[PolicyGroups]) -> Resumed | None:
        """Removes attempts that cannot continue."""
        store, names = self.services.store.open_plays, [policy.name for policy in policies]
        record = store.find(self._task, number, names)
        store.drop_others(self._task, number, names, record)
        if record is None:
            return None
        match = self._participants.again(record.speaking)
        # a curriculum has lost the earlier attempts' draws
        unknown = record.attempt and self.spec.train.sampling == "difficulty"
        if match is None or unknown or any(match.versions[p.name].number < p.oldest for p in policies):
            store.drop(record)
            return None
        return Resumed(record, match, {episode.episode.member: episode for episode in store.members(record)})

    def _count_silent(self, component: Component, key: tuple[str, str], samples: Sequence[FinishedEpisode]) -> None:
        if any(sample.prompt is not None for sample in samples):
            self._asked.add(key)
        if key in self._asked:
            return
        self._silent[key] += sum(sample.rewarded for sample in samples)
        if self._silent[key] >= MAX_SILENT:
            raise never_asks(component.spec.environment, f"{self._silent[key]} episodes")

    async def _count_lost(self, run: GroupRun, key: tuple[str, str], lost_in_a_row: int) -> int:
        component, samples = run.component, run.samples
        if all(sample.lost for sample in samples):
            lost_in_a_row += 1
        elif any(sample.lost for sample in samples):
            self._lost_draws.survived(key, lost_in_a_row)
            lost_in_a_row = 0
            self._short[key] += 1
        hopeless = self._lost_draws.beyond_chance(key, lost_in_a_row)
        if hopeless or self._short[key] >= MAX_SHORT:
            await component.environment.check()  # a suspended environment makes the task wait instead of pause
            if hopeless:
                raise all_lost(lost_in_a_row, samples, run.lease.environment, run.record.index, component.name)
            fewest = max(closing_rules(policy.spec).min_members for policy in run.waiting)
            raise too_few(self._short[key], fewest, samples, component.name)
        return lost_in_a_row

    def _close(self, run: GroupRun) -> dict[str, ClosedGroup] | TooFewRewards:
        waiting, episodes = run.waiting, [sample.episode for sample in run.samples]
        groups = [run.group(policy, episodes, [*run.samples, *run.others]) for policy in waiting]
        if self.spec.train.redundant:  # redundant samples need a single trained policy
            agents = run.match.agents_of(waiting[0].name)
            groups = [replace(groups[0], dropped=dropped(run.samples, run.others, agents))]
        closed = close_groups(episodes, groups, [closing_rules(policy.spec) for policy in waiting])
        if isinstance(closed, TooFewRewards):
            return closed
        return {policy.name: group for policy, group in zip(waiting, closed, strict=True)}

    def close_early(self, run: GroupRun) -> None:
        for policy in run.waiting if self._early else ():
            samples = run.done(policy.name, self._size)
            if samples is None:
                continue
            group = run.group(policy, [sample.episode for sample in samples], run.ended.values())
            closed = close_group(group, closing_rules(policy.spec))
            if isinstance(closed, TooFewRewards) or not closed.rewards.count:
                continue
            if closed.rewards.constant and run.record.replaced < self._replacements:
                continue  # the whole group may be replaced
            if not self._store_early(run, policy, closed, samples):
                return
            run.closed[policy.name] = closed
            reach(Point.GROUP_STORED)
            run.listener.on_group(policy.name, closed)
        if not run.waiting:
            run.unneeded.set()

    def _store_early(
        self, run: GroupRun, policy: PolicyGroups, closed: ClosedGroup, samples: Sequence[FinishedEpisode]
    ) -> bool:
        record, draws = run.record, tuple[Draw, ...]()
        drawing, place = self._prompts.drawing(run.component), self._mixture.of(record.number)[1]
        leads, last = policy.name == self._leading, len(run.waiting) == 1
        if leads:
            drawing.note(place, record.attempt, record.index, closed.rewards)
            draws = drawing.tried(place)
        add = self._adding(run, {policy.name: closed}, samples, draws)
        try:
            run.play = add(opens=None if last else record, closes=record if last else None)
        except StoreError:
            if leads:
                drawing.take_back(place)
            return False
        if leads:
            drawing.learn(place)
        run.stored = not last
        if last:
            run.unsaved.clear()
        return True

    async def _store(self, run: GroupRun, closed: Mapping[str, ClosedGroup], draws: Sequence[Draw]) -> None:
        trained = {policy.name for policy in run.policies}
        texts = _texts(run.samples)
        others = untrained([sample.episode for sample in run.samples], texts, run.match, trained)
        add = self._adding(run, closed, run.samples, draws)
        await self.services.store.patiently(partial(add, others, closes=run.record if run.stored else None))
        reach(Point.GROUP_STORED)

    def _adding(
        self,
        run: GroupRun,
        closed: Mapping[str, ClosedGroup],
        samples: Sequence[FinishedEpisode],
        draws: Sequence[Draw],
    ) -> Callable[..., int]:
        texts = _texts(samples)
        parts = [
            PolicyGroup(policy.policy, closed[policy.name].group, texts_of(texts, run.match.agents_of(policy.name)))
            for policy in run.policies
            if policy.name in closed
        ]
        reach(Point.GROUP_CLOSED)
        return partial(self.services.store.experience.add_play, "train", parts, draws=draws, play=run.play)


def _texts(samples: Sequence[FinishedEpisode]) -> Transcripts:
    return {key: text for sample in samples for key, text in sample.transcripts.items()}
