"""Held-out evaluation: the same prompts at every version, none of them ever trained on.

A version flows in, one ``Evaluation`` row flows out. The floor beside it is the best score that a constant answer gets
on the same prompts: what a collapsed policy would score.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ..environments.lease import Lease
from ..environments.protocol import Answer, Ask, EpisodeSpec, Reply
from ..rollout.episodes import Played
from ..rollout.seeds import noise_seed
from ..spec import TaskSpec
from ..store.experience import Part
from ..store.versions import Evaluation, Version
from ..types import Group
from .company import Company
from .endings import Paused, first_failure, never_spoke
from .environment import TaskEnvironment
from .floors import HeldOut
from .held_out import EVAL_SEED, held_out_specs
from .lineup import Lineup
from .parts import besides, episode_of, texts_of
from .services import Services

ATTEMPTS = 3
"""At one held-out prompt."""
USUAL_ANSWERS = ("", "0", "1", "yes", "no")
FLOOR_ANSWERS = 12
"""How many of the policy's own most frequent replies are tried as constant answers."""


class Replaced(Exception):
    """A newer environment version took the place of the one that was measured on, which did not get to a score."""


class Evaluator:
    """Measures the versions of one policy."""

    def __init__(
        self,
        services: Services,
        spec: TaskSpec,
        policy: int,
        name: str,
        environment: TaskEnvironment,
        company: Company,
    ) -> None:
        """``policy`` is its number in the store, ``name`` that in its task."""
        self._services = services
        self._spec = spec
        self._policy = policy
        self._name = name
        self._environment = environment
        self._company = company
        self._floors: dict[str, float] = {}

    async def evaluate(self, version: Version, lease: Lease) -> Evaluation:
        """Play every held-out prompt with a version that the caller holds, record the score and return it.

        Raises ``Replaced`` where the lease was cut off meanwhile; where no episode counts ``Paused``, but ``Replaced``
        if the task plays on a newer version by now, and ``Blocked`` if none serves it.
        """
        lineups = [self._lineup(version, number) for number in range(self._spec.eval.prompts)]
        played = await self._play(version, lease, lineups)
        if lease.cut and any(one.episode.status == "cancelled" for one in played):
            raise Replaced
        series, store = lease.environment_version, self._services.store
        own = [
            replace(one, episode=episode_of(one.episode, lineup.agents_of(self._name)))
            for one, lineup in zip(played, lineups, strict=True)
        ]
        for number, (one, lineup) in enumerate(zip(played, lineups, strict=True)):
            group = Group(number, number, version.number, series, (own[number].episode,))
            part = Part(self._policy, group, texts_of(one.transcripts, lineup.agents_of(self._name)))
            beside = besides([one.episode], one.transcripts, lineup, {self._name})
            store.experience.add_play("eval", [part], beside, version.number)
        if all(t.reward is None for one in own for t in one.episode.trajectories):
            await self._still_plays_on(series)
            if any(one.episode.trajectories for one in played) and not any(one.episode.trajectories for one in own):
                agents = [agent for agent, speaker in self._company.cast.agents.items() if speaker == self._name]
                raise never_spoke(agents, self._name, f"{len(played)} held-out episodes")
            raise Paused(f"No held-out episode has a reward: {first_failure(played)}.")
        if series not in self._floors:
            self._floors[series] = await self._floor(lease, played)
        evaluation = summarise(version.number, series, own, self._floors[series])
        store.versions.add_evaluation(self._policy, version.id, evaluation)
        return evaluation

    async def _still_plays_on(self, environment_version: str) -> None:
        """Raise ``Replaced`` where the author has mended meanwhile what failed, ``Blocked`` where it rests by now."""
        async with self._environment.bound() as lease:
            if lease.environment_version != environment_version:
                raise Replaced

    async def _play(self, version: Version, lease: Lease, lineups: Sequence[Lineup]) -> list[Played]:
        """Every prompt with its lineup; those hold the same versions, and differ in who speaks for whom."""
        specs = held_out_specs(lease, self._spec.eval.prompts)
        async with self._company.playing(lineups[0]):
            prompts = (self._prompt(version, lineup, lease, spec) for lineup, spec in zip(lineups, specs, strict=True))
            return list(await asyncio.gather(*prompts))

    def _lineup(self, version: Version, index: int) -> Lineup:
        measure = self._spec.eval
        return self._company.examination(self._name, version, measure.agents, index if measure.rotate else 0)

    async def _prompt(self, version: Version, lineup: Lineup, lease: Lease, spec: EpisodeSpec) -> Played:
        """One prompt; again where it failed, since its process may have died under another episode."""
        noise = noise_seed(EVAL_SEED, "eval", spec.index)
        stations = self._company.stations(lineup, spec.index)
        roles = lineup.roles(stations, self._spec.sampling, self._spec.eval.temperature, noise)
        player = self._environment.player(lease)
        for attempt in range(ATTEMPTS):
            name = f"{version.name}/e{spec.index}.{attempt}"
            played = await self._services.rollout.play(player, spec, roles, name)
            if played.episode.status != "error":
                break
        return played

    async def _floor(self, lease: Lease, played: Sequence[Played]) -> float:
        """The best mean reward of one text given to every ask; costs environment time only."""
        said = Counter(
            text
            for one in played
            for transcript in one.transcripts.values()
            for role, text in transcript.turns
            if role == "assistant"
        )
        answers = dict.fromkeys([*(text for text, _ in said.most_common(FLOOR_ANSWERS)), *USUAL_ANSWERS])
        config = json.dumps(lease.config, sort_keys=True)
        held_out = HeldOut(lease.environment, lease.environment_version, config, self._spec.eval.prompts)
        return await self._services.floors.of(held_out, answers, lambda answer: self._constant(lease, answer))

    async def _constant(self, lease: Lease, text: str) -> float | None:
        async def say(_: Ask) -> Reply:
            return Reply(text, "stop", 0)

        answer: Answer = say
        environments, specs = self._services.environments, held_out_specs(lease, self._spec.eval.prompts)
        outcomes = await asyncio.gather(*(environments.play(lease, spec, answer) for spec in specs))
        if lease.cut:
            raise Replaced
        rewards = [math.fsum(o.rewards.values()) / len(o.rewards) for o in outcomes if o.status == "ok" and o.rewards]
        return math.fsum(rewards) / len(rewards) if rewards else None


def summarise(step: int, series: str, played: Sequence[Played], floor: float) -> Evaluation:
    """Mean reward over the episodes that have one, with its standard error, and the means of what was logged."""
    scores = []
    logged: dict[str, list[float]] = {}
    for one in played:
        by_agent = {t.agent: t.reward for t in one.episode.trajectories}  # an agent's trajectories share its reward
        rewards = [reward for reward in by_agent.values() if reward is not None]
        if rewards:
            scores.append(math.fsum(rewards) / len(rewards))
        numbers = {**one.episode.parts, **one.episode.metrics}
        for name, value in numbers.items():
            if isinstance(value, (int, float)):
                logged.setdefault(name, []).append(float(value))
    n = len(scores)
    mean = math.fsum(scores) / n if n else 0.0
    variance = math.fsum((score - mean) ** 2 for score in scores) / (n - 1) if n > 1 else 0.0
    means = {name: math.fsum(values) / len(values) for name, values in logged.items()}
    return Evaluation(step, series, mean, math.sqrt(variance / n) if n else 0.0, n, floor, means)
