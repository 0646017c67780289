"""Held-out evaluation: the same prompts at every version, none of them ever trained on.

Who speaks on which prompt is fixed before the first is played. Beside each score stands the constant-answer baseline on
the same prompts.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ...environments import Lease
from ...errors import Paused, Replaced
from ...fleet import Services
from ...rollout import Played, Roles, noise_seed
from ...spec import TaskSpec
from ...store import Evaluation, PolicyGroup, Version
from ...trajectories import Group
from ..endings import first_failure, never_spoke
from ..environment import TaskEnvironment
from ..policy_groups import besides, episode_of, texts_of
from ..selfplay.match import Match
from ..selfplay.participants import Participants
from .constant_answers import ConstantAnswers, HeldOutEpisode
from .held_out import EVAL_SEED, held_out_specs

ATTEMPTS = 3
"""Tries at one held-out prompt."""


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
        component: str = "",
        first: int = 0,
    ) -> None:
        """``policy`` is the policy's number in the store, ``name`` its name in the task. Of a mixture: ``component`` is
        the name of what is measured, and ``first`` the number of its first prompt among those of all."""
        self._services = services
        self._spec = spec
        self._policy = policy
        self._name = name
        self._environment = environment
        self._participants = participants
        self._component = component
        self._first = first
        self._constants = ConstantAnswers(services, name)
        self._baselines: dict[str, float | None] = {}

    async def evaluate(self, version: Version, lease: Lease) -> Evaluation:
        """Measure a version that the caller holds, record the score and return it. Raises as ``measure``."""
        evaluation, store = await self.measure(version, lease), self._services.store
        await store.patiently(lambda: store.versions.add_evaluation(self._policy, version.id, evaluation))
        return evaluation

    async def measure(self, version: Version, lease: Lease) -> Evaluation:
        """Play every held-out prompt with a version that the caller holds, and return the score.

        Raises ``Replaced`` where the lease was cut off meanwhile. Where no episode has a reward, raises ``Paused``, or
        ``Replaced`` if the task plays on a newer environment version by then, or ``Blocked`` if none serves it.
        """
        specs, measure = held_out_specs(lease, self._spec.eval.prompts), self._spec.eval
        matches = [
            self._participants.examination(self._name, version, measure.agents, spec.index if measure.rotate else 0)
            for spec in specs
        ]
        async with self._participants.playing(matches[0]):  # all matches have the same versions
            episodes = [
                HeldOutEpisode(spec, match, self._roles(spec.index, match))
                for spec, match in zip(specs, matches, strict=True)
            ]
            played = list(await asyncio.gather(*(self._prompt(version, lease, episode) for episode in episodes)))
            own = await self._stored(version, lease, matches, played)
            series = lease.environment_version
            if all(t.reward is None for one in own for t in one.episode.trajectories):
                await self._still_plays_on(series)
                raise self._worthless(played, own)
            if series not in self._baselines:
                self._baselines[series] = await self._baseline(lease, episodes, own)
        return summarise(version.number, series, own, self._baselines[series])

    async def _stored(
        self, version: Version, lease: Lease, matches: Sequence[Match], played: Sequence[Played]
    ) -> list[Played]:
        """Store everything that was said, and return the policy's own part of each prompt. Raises ``Replaced``."""
        if lease.cut and any(one.episode.status == "cancelled" for one in played):
            raise Replaced
        found, store = [], self._services.store
        for number, (one, match) in enumerate(zip(played, matches, strict=True)):
            agents = match.agents_of(self._name)
            rewards = {a: reward for a, reward in one.outcome.rewards.items() if agents is None or a in agents}
            own = replace(
                one,
                episode=episode_of(one.episode, agents),
                transcripts=texts_of(one.transcripts, agents),
                outcome=replace(one.outcome, rewards=rewards),
            )
            place, series = self._first + number, lease.environment_version
            group = Group(place, number, version.number, series, (own.episode,), component=self._component)
            beside = besides([one.episode], one.transcripts, match, {self._name})
            part = PolicyGroup(self._policy, group, own.transcripts)
            await store.patiently(partial(store.experience.add_play, "eval", [part], beside, version.number))
            found.append(own)
        return found

    def _worthless(self, played: Sequence[Played], own: Sequence[Played]) -> Paused:
        """The error for an evaluation without a score."""
        if any(one.episode.trajectories for one in played) and not any(one.episode.trajectories for one in own):
            agents = [agent for agent, policy in self._participants.agent_map.agents.items() if policy == self._name]
            return never_spoke(agents, self._name, f"{len(played)} held-out episodes")
        return Paused(f"No held-out episode has a reward: {first_failure(played)}.")

    async def _still_plays_on(self, environment_version: str) -> None:
        """Raise ``Replaced`` where the environment has a newer version meanwhile, ``Blocked`` where it rests."""
        async with self._environment.bound() as lease:
            if lease.environment_version != environment_version:
                raise Replaced

    def _roles(self, index: int, match: Match) -> Roles:
        """How the agents speak on a prompt."""
        noise = noise_seed(EVAL_SEED, "eval", index)
        endpoints = self._participants.endpoints(match, index)
        return match.roles(endpoints, self._spec.sampling, self._spec.eval.temperature, noise)

    async def _prompt(self, version: Version, lease: Lease, episode: HeldOutEpisode) -> Played:
        """Play one prompt; again where it failed, since another episode may have killed the process."""
        player = self._environment.player(lease)
        for attempt in range(ATTEMPTS):
            name = f"{version.name}/e{self._first + episode.spec.index}.{attempt}"
            played = await self._services.rollout.play(player, episode.spec, episode.roles, name)
            if played.episode.status != "error":
                break
        return played

    async def _baseline(self, lease: Lease, episodes: Sequence[HeldOutEpisode], own: Sequence[Played]) -> float | None:
        """The constant-answer baseline of a series; where others speak, as it was when the series began, for they may
        have learned meanwhile."""
        others = any(set(episode.match.agents.values()) - {self._name} for episode in episodes)
        known = self._services.store.versions.baseline(self._policy, lease.environment_version) if others else None
        if known is not None:
            return known
        transcripts = (transcript for one in own for transcript in one.transcripts.values())
        said = (text for transcript in transcripts for role, text in transcript.turns if role == "assistant")
        return await self._constants.baseline(lease, episodes, said)


def summarise(step: int, series: str, played: Sequence[Played], baseline: float | None) -> Evaluation:
    """Mean reward over the episodes that have one, with its standard error, and the means of what was logged.

    An agent that was paid counts although it was never asked: whoever loses before its turn has lost.
    """
    scores = []
    logged: dict[str, list[float]] = {}
    for one in played:
        rewards = one.outcome.rewards.values()
        if one.outcome.status == "ok" and rewards:
            scores.append(math.fsum(rewards) / len(rewards))
        numbers = {**one.episode.parts, **one.episode.metrics}
        for name, value in numbers.items():
            if isinstance(value, (int, float)):
                logged.setdefault(name, []).append(float(value))
    n = len(scores)
    mean = math.fsum(scores) / n if n else 0.0
    variance = math.fsum((score - mean) ** 2 for score in scores) / (n - 1) if n > 1 else 0.0
    means = {name: math.fsum(values) / len(values) for name, values in logged.items()}
    return Evaluation(step, series, mean, math.sqrt(variance / n) if n else 0.0, n, baseline, means)
