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

from ..environments.lease import Lease
from ..environments.protocol import Answer, Ask, EpisodeSpec, Reply
from ..rollout.conversation import Voice
from ..rollout.episodes import Played
from ..rollout.seeds import noise_seed
from ..spec import TaskSpec
from ..store.versions import Evaluation, Version
from ..types import Group
from .endings import Paused, first_failure
from .environment import TaskEnvironment
from .floors import HeldOut
from .held_out import EVAL_SEED, held_out_specs
from .services import Services
from .shelf import Shelf

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
        self, services: Services, spec: TaskSpec, policy: int, environment: TaskEnvironment, shelf: Shelf
    ) -> None:
        self._services = services
        self._spec = spec
        self._policy = policy
        self._environment = environment
        self._shelf = shelf
        self._floors: dict[str, float] = {}

    async def evaluate(self, version: Version, lease: Lease) -> Evaluation:
        """Play every held-out prompt with a version that the caller holds, record the score and return it.

        Raises ``Replaced`` where the lease was cut off meanwhile; where no episode counts ``Paused``, but ``Replaced``
        if the task plays on a newer version by now, and ``Blocked`` if none serves it.
        """
        played = await self._play(version, lease)
        if lease.cut and any(one.episode.status == "cancelled" for one in played):
            raise Replaced
        series, store = lease.environment_version, self._services.store
        for number, one in enumerate(played):
            group = Group(number, number, version.number, series, (one.episode,))
            store.experience.add_group(self._policy, "eval", group, one.transcripts, version.number)
        if all(t.reward is None for one in played for t in one.episode.trajectories):
            await self._still_plays_on(series)
            raise Paused(f"No held-out episode has a reward: {first_failure(played)}.")
        if series not in self._floors:
            self._floors[series] = await self._floor(lease, played)
        evaluation = summarise(version.number, series, played, self._floors[series])
        store.versions.add_evaluation(self._policy, version.id, evaluation)
        return evaluation

    async def _still_plays_on(self, environment_version: str) -> None:
        """Raise ``Replaced`` where the author has mended meanwhile what failed, ``Blocked`` where it rests by now."""
        async with self._environment.bound() as lease:
            if lease.environment_version != environment_version:
                raise Replaced

    async def _play(self, version: Version, lease: Lease) -> list[Played]:
        specs = held_out_specs(lease, self._spec.eval.prompts)
        return list(await asyncio.gather(*(self._prompt(version, lease, spec) for spec in specs)))

    async def _prompt(self, version: Version, lease: Lease, spec: EpisodeSpec) -> Played:
        """One prompt; again where it failed, since its process may have died under another episode."""
        sampling = self._spec.sampling
        voice = Voice(
            version=version.name,
            number=version.number,
            temperature=self._spec.eval.temperature,
            max_tokens=sampling.max_tokens,
            max_episode_tokens=sampling.max_episode_tokens,
            seed=noise_seed(EVAL_SEED, "eval", spec.index),
            thinking=sampling.thinking,
        )
        player, station = self._environment.player(lease), self._shelf.homes(version)[0]
        for attempt in range(ATTEMPTS):
            name = f"{version.name}/e{spec.index}.{attempt}"
            played = await self._services.rollout.play(player, spec, voice, name, station)
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
