"""Held-out evaluation: the same prompts at every version, none of them ever trained on.

A version flows in, one ``Evaluation`` row flows out. The floor beside it is the best score that a constant answer gets
on the same prompts: what a collapsed policy would score.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections import Counter
from collections.abc import Sequence

from ..environments.lease import Lease
from ..environments.protocol import Answer, Ask, EpisodeSpec, Reply
from ..rollout.conversation import Unplayable, Voice
from ..rollout.episodes import Played, PromptHash
from ..rollout.seeds import noise_seed
from ..spec import TaskSpec
from ..store.versions import Evaluation, Version
from ..types import Group
from .endings import Paused, first_failure
from .environment import TaskEnvironment
from .floors import HeldOut
from .services import Services

EVAL_SEED = 0
"""Of every run: all runs and tenants are measured on the same instances."""
ATTEMPTS = 3
"""At one held-out prompt."""
USUAL_ANSWERS = ("", "0", "1", "yes", "no")
FLOOR_ANSWERS = 12
"""How many of the policy's own most frequent replies are tried as constant answers."""


class Evaluator:
    """Measures the versions of one policy."""

    def __init__(
        self, services: Services, task: int, spec: TaskSpec, policy: int, environment: TaskEnvironment
    ) -> None:
        self._services = services
        self._task = task
        self._spec = spec
        self._policy = policy
        self._environment = environment
        self._floors: dict[str, float] = {}

    async def held_out(self) -> frozenset[PromptHash]:
        """Hashes of all held-out first prompts, without asking the model.

        Where most of them are the same (a game that always opens alike), a prompt does not tell one instance from
        another: nothing is held out then, and the log says so.
        """
        environments = self._services.environments
        async with self._environment.bound() as lease:
            peeks = (environments.peek(lease, spec) for spec in self._specs())
            asks = await asyncio.gather(*peeks, return_exceptions=True)
        hashes = []
        for ask in asks:
            with contextlib.suppress(Unplayable):  # its evaluation will say so
                if isinstance(ask, Ask):
                    hashes.append(self._services.rollout.prompt_hash(ask))
        distinct = frozenset(hashes)
        if len(distinct) * 2 >= len(hashes):
            return distinct
        self._services.store.telemetry.event(
            "evaluation",
            f"Only {len(distinct)} of {len(hashes)} held-out prompts differ: training may meet them too.",
            self._task,
            "warning",
        )
        return frozenset()

    async def evaluate(self, version: Version, lease: Lease) -> Evaluation:
        """Play every held-out prompt with a version that the caller holds, record the score and return it."""
        played = await self._play(version, lease)
        series, store = lease.environment_version, self._services.store
        for number, one in enumerate(played):
            group = Group(number, number, version.number, series, (one.episode,))
            store.experience.add_group(self._policy, "eval", group, one.transcripts, version.number)
        if all(t.reward is None for one in played for t in one.episode.trajectories):
            raise Paused(f"No held-out episode has a reward: {first_failure(played)}.")
        if series not in self._floors:
            self._floors[series] = await self._floor(lease, played)
        evaluation = summarise(version.number, series, played, self._floors[series])
        store.versions.add_evaluation(self._policy, version.id, evaluation)
        return evaluation

    def _specs(self) -> list[EpisodeSpec]:
        config = self._environment.config
        return [EpisodeSpec("eval", index, EVAL_SEED, 0, config) for index in range(self._spec.eval.prompts)]

    async def _play(self, version: Version, lease: Lease) -> list[Played]:
        return list(await asyncio.gather(*(self._prompt(version, lease, spec) for spec in self._specs())))

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
        player = self._environment.player(lease)
        for attempt in range(ATTEMPTS):
            name = f"{version.name}/e{spec.index}.{attempt}"
            played = await self._services.rollout.play(player, spec, voice, name)
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
        config = json.dumps(self._environment.config, sort_keys=True)
        held_out = HeldOut(lease.environment, lease.environment_version, config, self._spec.eval.prompts)
        return await self._services.floors.of(held_out, answers, lambda answer: self._constant(lease, answer))

    async def _constant(self, lease: Lease, text: str) -> float | None:
        async def say(_: Ask) -> Reply:
            return Reply(text, "stop", 0)

        answer: Answer = say
        environments = self._services.environments
        outcomes = await asyncio.gather(*(environments.play(lease, spec, answer) for spec in self._specs()))
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
