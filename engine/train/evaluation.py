"""Held-out evaluation: the same prompts for every version; training never uses them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from ..environments import EpisodeOutcome, EpisodeSpec, FinishedEpisode, Lease
from ..errors import Paused, Replaced
from ..fleet import Services
from ..rollout import Replicas, Roles, Truncation, noise_seed
from ..spec import ONLY, AgentMap, NamedPolicySpec, TaskSpec, by_base
from ..store import Evaluation, MeasuredEpisode, PolicyGroup, Version
from ..trajectories import Episode, Group, Split, Trajectory
from .environment import History, TaskEnvironment
from .failures import first_failure, never_spoke
from .first_replies import keep_numbers
from .groups import DEATHS, episode_of, texts_of, untrained
from .held_out import EVAL_SEED, ConstantAnswers, HeldOutEpisode, HeldOutPrompts, held_out_spec
from .opening import check_room, check_servable, join_router, set_leftovers_aside
from .publishing import PublishedVersions
from .scores import Sampled, averages, score, series_of
from .selfplay import FrozenPolicies, Match, Opponents, Participants

EVAL_ATTEMPTS = 3
"""Runs of one held-out episode."""
MOST_OVERLOADED = 20
"""Additional runs that the load of the machine may end."""
AGAIN = 1
"""Repetitions of failed episodes if there is no score."""
NO_TOKENS = Trajectory("", np.empty(0, np.int32), np.empty(0, np.uint8), np.empty(0, np.float32), ())


@dataclass(frozen=True)
class _Prompt:
    number: int
    match: Match
    played: tuple[FinishedEpisode, ...]
    own: tuple[FinishedEpisode, ...]

    @property
    def sampled(self) -> Sampled:
        rewards = [tuple(one.outcome.rewards.values()) for one in self.own if one.outcome.status == "ok"]
        means = tuple(sum(found) / len(found) for found in rewards if found)
        return Sampled(means, sum(not one for one in self._unusable) - len(means))

    @property
    def skipped(self) -> bool:
        return all(self._unusable)

    @property
    def _unusable(self) -> list[bool]:
        return [one.outcome.status == "skip" and not one.episode.trajectories for one in self.own]


class Evaluator:
    """Measures the versions of one policy."""

    def __init__(
        self,
        services: Services,
        spec: TaskSpec,
        policy: int,
        name: str,
        environment: TaskEnvironment,
        participants: Participants,
        held_out: HeldOutPrompts,
        suite: str = "",
        keeps: bool = False,
        component: str = "",
    ) -> None:
        """``suite``: name of the measured suite; empty: the task's own environment. ``keeps``: a restart does not
        repeat finished prompts; this needs the same speakers. ``component``: the measured environment of a
        mixture, stored like a suite.
        """
        self._keeps = keeps
        self._beside_training = bool(suite or held_out.split == "test") and not keeps
        """True if training continues without a measurement, because another environment or split is measured."""
        self._services = services
        self._spec = spec
        self._policy = policy
        self._name = name
        self._environment = environment
        self._participants = participants
        self._held_out = held_out
        self._component = component
        self._suite, self._split = suite or component, held_out.split
        self._place = "" if (self._suite, self._split) == ("", "eval") else f"-{self._suite}-{self._split}-"
        self.tell = held_out.tell
        self._constants = ConstantAnswers(services, name)
        self._evaluations = services.store.evaluations.of(self._suite, held_out.split)
        self._baselines: dict[str, float | None] = {}

    def series(self, lease: Lease) -> str:
        return series_of(lease, self._spec.eval)

    async def evaluate(self, version: Version, lease: Lease) -> Evaluation:
        """Run every held-out prompt with ``version``, which the caller holds; record and return the score.

        Raises ``Replaced`` if the lease ended, ``Blocked`` if not all prompts can be seen. If no episode has a reward,
        raises ``Replaced`` if a newer environment version serves, ``Blocked`` if none serves, else ``Paused`` (only
        logged for a suite or the split test of a training task).
        """
        instances, measure = (await self._held_out.division(lease)).instances, self._spec.eval
        matches = [
            self._participants.examination(self._name, version, measure.agents, index if measure.rotate else 0)
            for index in instances
        ]
        series = self.series(lease)
        async with self._participants.playing(matches[0]):  # all matches have the same versions
            episodes = [self._samples(lease, index, match) for index, match in zip(instances, matches, strict=True)]
            found = self._kept(version, lease) if self._keeps else {}
            stored = {index for index, _ in found}
            prompts = await self._played(version, lease, episodes, found, stored)
            await self._store(version, lease, [prompt for prompt in prompts if prompt.number not in stored])
            own = [one for prompt in prompts for one in prompt.own]
            if all(t.reward is None for one in own for t in one.episode.trajectories):
                await self._still_plays_on(lease.environment_version)
                worthless = self._worthless([one for prompt in prompts for one in prompt.played], own)
                if not self._beside_training:
                    raise worthless
                self.tell(f"Nothing could be measured on {self._suite or 'the split test'}: {worthless.message}")
            elif series not in self._baselines:
                usable = [one[0] for one, prompt in zip(episodes, prompts, strict=True) if not prompt.skipped]
                self._baselines[series] = await self._baseline(lease, series, usable, own)
        evaluation = self._summary(version.number, lease, series, prompts)
        store = self._services.store
        await store.patiently(lambda: self._evaluations.add(self._policy, version.id, evaluation))
        return evaluation

    async def _played(
        self,
        version: Version,
        lease: Lease,
        episodes: Sequence[Sequence[HeldOutEpisode]],
        found: dict[tuple[int, int], FinishedEpisode],
        stored: set[int],
    ) -> list[_Prompt]:
        prompt_of = {prompt[0].spec.index: prompt for prompt in episodes}

        async def play(one: HeldOutEpisode, again: int) -> FinishedEpisode:
            found[one.key] = played = await self._episode(version, lease, one, again)
            prompt = prompt_of[one.spec.index]
            if self._keeps and not any(_failed(found.get(each.key)) for each in prompt):
                await self._store(version, lease, [self._prompt(prompt, [found[each.key] for each in prompt])])
                stored.add(one.spec.index)
            return played

        for again in range(AGAIN + 1):
            missing = [one for prompt in episodes for one in prompt if _failed(found.get(one.key))]
            played = await asyncio.gather(*(play(one, again) for one in missing))
            if lease.cut and any(one.episode.status == "cancelled" for one in played):
                raise Replaced
            prompts = [self._prompt(prompt, [found[one.key] for one in prompt]) for prompt in episodes]
            scored = score([one.sampled for one in prompts], self._spec.eval.samples, self._spec.eval.pass_at_least)
            if scored.score is not None or not scored.n:
                break
        return prompts

    def _kept(self, version: Version, lease: Lease) -> dict[tuple[int, int], FinishedEpisode]:
        where = self._policy, self._split, self._suite, version.number, lease.environment_version
        found: dict[tuple[int, int], FinishedEpisode] = {}
        for index, members in self._services.store.experience.measured(*where).items():
            played = [_from_store(one) for one in members]
            if len(played) == self._spec.eval.samples and not any(map(_failed, played)):
                found |= {(index, one.episode.member): one for one in played}
        return found

    def _prompt(self, episodes: Sequence[HeldOutEpisode], played: Sequence[FinishedEpisode]) -> _Prompt:
        match = episodes[0].match
        agents, own = match.agents_of(self._name), []
        for one in played:
            rewards = {a: reward for a, reward in one.outcome.rewards.items() if agents is None or a in agents}
            part = replace(
                one,
                episode=episode_of(one.episode, agents),
                transcripts=texts_of(one.transcripts, agents),
                outcome=replace(one.outcome, rewards=rewards),
            )
            own.append(part)
        return _Prompt(episodes[0].spec.index, match, tuple(played), tuple(own))

    async def _store(self, version: Version, lease: Lease, prompts: Sequence[_Prompt]) -> None:
        store = self._services.store
        for prompt in prompts:
            episodes = tuple(one.episode for one in prompt.own)
            where = lease.environment_version
            group = Group(prompt.number, prompt.number, version.number, where, episodes, component=self._component)
            texts = {key: text for one in prompt.played for key, text in one.transcripts.items()}
            beside = untrained([one.episode for one in prompt.played], texts, prompt.match, {self._name})
            own = {key: text for one in prompt.own for key, text in one.transcripts.items()}
            part = PolicyGroup(self._policy, group, own)
            rewards = [one.outcome.rewards for one in prompt.own]
            play = partial(store.experience.add_play, self._split, [part], beside, version.number, self._suite)
            add = partial(play, rewards=rewards)
            await store.patiently(add)

    def _summary(self, step: int, lease: Lease, series: str, prompts: Sequence[_Prompt]) -> Evaluation:
        measure, own = self._spec.eval, [one for prompt in prompts for one in prompt.own]
        scored = score([one.sampled for one in prompts], measure.samples, measure.pass_at_least)
        if scored.score is None:
            failed = f"{scored.failures} of {scored.n + scored.failures} episodes failed"
            whose = f" of {self._name}" if len(self._participants.agent_map.trained) > 1 else ""
            whose += f" on {self._component}" if self._component else ""
            self.tell(f"No held-out score{whose} at step {step}: {failed}. The first: {first_failure(own)}.")
        return Evaluation(
            step,
            lease.environment_version,
            scored.score,
            scored.stderr,
            scored.n,
            self._baselines.get(series),
            averages([{**one.episode.parts, **one.episode.metrics} for one in own]),
            failures=scored.failures,
            prompts=scored.prompts,
            samples=measure.samples,
            series=series,
            suite=self._suite,
            split=self._split,
            best_of=scored.best_of,
            pass_at=scored.pass_at,
        )

    def _worthless(self, played: Sequence[FinishedEpisode], own: Sequence[FinishedEpisode]) -> Paused:
        if any(one.episode.trajectories for one in played) and not any(one.episode.trajectories for one in own):
            agents = [agent for agent, policy in self._participants.agent_map.agents.items() if policy == self._name]
            return never_spoke(agents, self._name, f"{len(played)} held-out episodes")
        on = f" on {self._component}" if self._component else ""
        return Paused(f"No held-out episode{on} has a reward: {first_failure(played)}.")

    async def _still_plays_on(self, environment_version: str) -> None:
        async with self._environment.bound() as lease:
            if lease.environment_version != environment_version:
                raise Replaced

    def _episode_of(self, lease: Lease, index: int, member: int) -> EpisodeSpec:
        return held_out_spec(lease, index, member, self._split)

    def _samples(self, lease: Lease, index: int, match: Match) -> list[HeldOutEpisode]:
        replicas = self._participants.replicas(match)
        return [
            HeldOutEpisode(self._episode_of(lease, index, member), match, self._roles(index, member, match, replicas))
            for member in range(self._spec.eval.samples)
        ]

    def _roles(self, index: int, member: int, match: Match, replicas: Mapping[str, Replicas]) -> Roles:
        noise = noise_seed(EVAL_SEED, self._split, index, *([member] if member else []))
        measure = self._spec.eval
        truncation = Truncation(measure.top_k, measure.top_p, measure.min_p)
        return match.roles(replicas, self._spec.sampling, measure.temperature, noise, truncation)

    async def _episode(self, version: Version, lease: Lease, episode: HeldOutEpisode, again: int) -> FinishedEpisode:
        """Run one episode, again if it fails; after a death of the process only once (see ``groups.DEATHS``)."""
        player = self._environment.player(lease)
        tries = overloaded = died = 0
        while True:
            number = again * (EVAL_ATTEMPTS + MOST_OVERLOADED) + tries + overloaded
            name = f"{version.name}/e{self._place}{episode.spec.index}.{episode.spec.member}.{number}"
            played = await self._services.rollout.run_episode(player, episode.spec, episode.roles, name)
            if played.outcome.overloaded and overloaded < MOST_OVERLOADED:
                overloaded += 1
                continue
            tries += 1
            died += played.outcome.died
            if played.episode.status not in ("error", "timeout") or tries == EVAL_ATTEMPTS or died == DEATHS:
                return played

    async def _baseline(
        self, lease: Lease, series: str, episodes: Sequence[HeldOutEpisode], own: Sequence[FinishedEpisode]
    ) -> float | None:
        """With other speakers, the one from the beginning of the series, because they may have learned since."""
        others = any(set(episode.match.agents.values()) - {self._name} for episode in episodes)
        known = self._evaluations.baseline(self._policy, series) if others else None
        if known is not None:
            return known
        transcripts = (transcript for one in own for transcript in one.transcripts.values())
        said = (text for transcript in transcripts for role, text in transcript.turns if role == "assistant")
        return await self._constants.baseline(lease, episodes, said)


def _from_store(one: MeasuredEpisode) -> FinishedEpisode:
    rewards = dict(one.rewards)
    spoke = dict.fromkeys(agent for _, agent, _ in one.transcripts if agent)
    trajectories = tuple(replace(NO_TOKENS, agent=agent, reward=rewards.get(agent)) for agent in spoke)
    episode = Episode(one.member, one.status, trajectories, one.parts, one.metrics)
    return FinishedEpisode(episode, one.transcripts, None, EpisodeOutcome(one.status, rewards, one.parts, one.metrics))


def _failed(played: FinishedEpisode | None) -> bool:
    return played is None or played.outcome.status not in ("ok", "skip")


# A running task of ``kind = "eval"``: each version is a policy of the task, and nothing is trained.
#
# All are measured on the environment version of the first, with the same noise. Stored results are not measured again.


class EvalRun:
    """Measures one task's versions with one generation of the workers."""

    def __init__(self, services: Services, task: int, spec: TaskSpec, started: Callable[[EvalRun], None]) -> None:
        self._services = services
        self._task = task
        self._submitted = spec
        self._spec = spec = by_base(spec, services.traits)
        self._started = started
        versions = services.store.versions
        self._policies = {
            words: versions.policy(task, words, {}, cast(Split, spec.eval.split)) for words in spec.versions
        }
        pinned = replace(spec, environment_version="pin")
        self._environment = TaskEnvironment(services.environments, pinned, self._history())
        self._opponents = FrozenPolicies(services, task, spec, ())
        self._versions = FrozenPolicies(services, task, spec, (), "measured")
        self._published = PublishedVersions(services.endpoints)
        self._held_out = HeldOutPrompts(services, task, spec.eval.prompts, cast(Split, spec.eval.split))
        self.remark = ""
        self.drained = False
        """True if it ended between two versions because the engine drains; the next engine continues."""

    @property
    def progress(self) -> int:
        return sum(map(self._measured, self._policies.values()))

    @property
    def waits_for(self) -> str:
        return self._environment.waits_for

    async def run(self) -> None:
        """Measure the remaining versions. Raises ``Blocked``, ``Paused``, ``ConfigError``, ``WorkerDied``, …"""
        services = self._services
        check_room(services.shortage)
        await self._environment.check()
        check_servable(self._spec, services)
        await keep_numbers(services, self._task, self._submitted, self._spec, "by its base")
        try:
            await join_router(services, self._task, self._spec, list(self._policies.values()))
            if self._folder.is_dir():  # it exists while files written for this task are served
                await set_leftovers_aside(services, self._task)
            async with AsyncExitStack() as stack:
                participants = await self._participants(await self._opponents.enter(stack))
                await services.store.patiently(lambda: self._started(self))
                for words, policy in self._policies.items():
                    if not self._measured(policy):
                        if services.draining.is_set():
                            self.drained = True
                            return
                        check_room(services.shortage)
                        await self._measure(words, policy, participants)
                    await services.store.patiently(partial(services.store.versions.mark_measured, policy))
                self.remark = self._said()
        finally:
            services.router.leave(self._task)
            leaving = (self._published.clear(), self._versions.leave(), self._opponents.leave())
            await asyncio.shield(asyncio.gather(*leaving, return_exceptions=True))
            with suppress(OSError):
                self._folder.rmdir()

    @property
    def _folder(self) -> Path:
        return self._services.home.adapters / f"task-{self._task}"

    def _measured(self, policy: int) -> bool:
        return self._services.store.evaluations.has(policy)

    def _said(self) -> str:
        evaluations = self._services.store.evaluations.of("", self._held_out.split)
        without = [words for words, policy in self._policies.items() if not evaluations.scores(policy)]
        has = "has" if len(without) == 1 else "have"
        return f"{', '.join(without)} {has} no score: too many episodes failed." if without else ""

    async def _measure(self, words: str, policy: int, participants: Participants) -> None:
        version = await self._versions.version(words)
        await self._published.publish(version, self._services.router.shares(self._task, ONLY))
        evaluator = Evaluator(
            self._services,
            self._spec,
            policy,
            ONLY,
            self._environment,
            participants,
            self._held_out,
            keeps=True,
        )
        while not await self._tried(evaluator, version):
            pass

    async def _tried(self, evaluator: Evaluator, version: Version) -> bool:
        try:
            async with self._environment.bound() as lease:
                await evaluator.evaluate(version, lease)
        except Replaced:
            return False
        return True

    async def _participants(self, opponents: Opponents) -> Participants:
        agents = {}
        if self._spec.eval.agents or self._spec.eval.rotate:
            async with self._environment.bound() as lease:
                agents = dict.fromkeys(lease.declared.agents, ONLY)
        return Participants(AgentMap({ONLY: NamedPolicySpec()}, agents), {ONLY: self._published}, opponents)

    def _history(self) -> History:
        first = next(iter(self._policies.values()))
        experience = self._services.store.experience
        return History(experience.first_environment(first), experience.last_environment(first))
