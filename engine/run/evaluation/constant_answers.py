"""The constant-answer baseline: what a policy would score on the held-out prompts if it always said the same.

Collapsed policies do that. The agents of other policies speak as in the evaluation, so in a game the baseline is what a
constant player wins. Where nobody else speaks no model is asked, and tasks on the same prompts share what was measured
(``baselines``).
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from marlaas.plugins.messages import Answer, Ask, Endpoint, Reply

from ...environments import (
    EpisodeOutcome,
    EpisodeSpec,
    HeldOut,
    KnownScores,
    Lease,
    Listener,
    best_constant,
    endpoint_of,
    no_endpoint,
)
from ...errors import Replaced
from ...fleet import Services
from ...rollout import Roles
from ..selfplay import Match
from .scores import MOST_FAILURES

USUAL = ("", "0", "1", "yes", "no")
MOST = 12
"""How many of the policy's own most frequent replies are tried."""
USUAL_BESIDE, MOST_BESIDE = USUAL[:2], 3
"""Usual texts and own replies to try where others speak, too: each text costs their turns on all prompts."""


@dataclass(frozen=True)
class HeldOutEpisode:
    """One sample of a held-out prompt: the episode to play, and who speaks in it."""

    spec: EpisodeSpec
    match: Match
    roles: Roles

    @property
    def key(self) -> tuple[int, int]:
        """Its instance, and which sample it is."""
        return self.spec.index, self.spec.member


class Constant:
    """An ``Answer`` that says the same to every ask, for some agents; other asks go on to ``others``."""

    def __init__(self, text: str, agents: frozenset[str] | None, others: Answer | None = None) -> None:
        """``agents``: those it acts as; None: all, and ``others`` is not needed."""
        self.asked: set[str] = set()
        """The agents that it has spoken for."""
        self._text = text
        self._agents = agents
        self._others = others
        self._replies: Counter[tuple[str, int]] = Counter()

    async def __call__(self, ask: Ask) -> Reply:
        """Say it, or pass the ask on."""
        if self._others is not None and self._agents is not None and ask.agent not in self._agents:
            return await self._others(ask)
        self.asked.add(ask.agent)
        place = ask.agent, ask.branch
        if ask.fork is not None:
            self._replies[place] = ask.fork.turns
        self._replies[place] += 1
        return Reply(self._text, "stop", self._replies[place] - 1)

    async def endpoint(self, listener: Listener) -> Endpoint:
        """See ``Answering``; who answers there is who answers here."""
        return await (no_endpoint if self._others is None else endpoint_of(self._others))(listener)

    def score(self, outcome: EpisodeOutcome) -> float | None:
        """The mean reward of those that it spoke for; None where they have none."""
        rewards = [reward for agent, reward in outcome.rewards.items() if agent in self.asked]
        return math.fsum(rewards) / len(rewards) if rewards else None


class ConstantAnswers:
    """Measures what one policy of a task would score with constant answers."""

    def __init__(self, services: Services, policy: str) -> None:
        """``policy``: its name in the task."""
        self._services = services
        self._policy = policy
        self._numbers = count()

    async def baseline(self, lease: Lease, episodes: Sequence[HeldOutEpisode], said: Iterable[str]) -> float | None:
        """The best mean score of one text given to every ask of the policy's agents; None where no text has a score.

        ``said`` are the policy's replies. Raises ``Replaced`` where the lease was cut off meanwhile, ``WorkerDied``.
        """
        often = [text for text, _ in Counter(said).most_common(MOST)]
        measure = partial(self._scores, lease, episodes)
        if all(self._alone(episode.match) for episode in episodes):
            return await self._services.baselines.of(_of_lease(lease, episodes), [*often, *USUAL], measure, _mean)
        return await best_constant([*often[:MOST_BESIDE], *USUAL_BESIDE], len(episodes), KnownScores(), measure, _mean)

    def _alone(self, match: Match) -> bool:
        return set(match.agents.values()) <= {self._policy}

    async def _scores(
        self, lease: Lease, episodes: Sequence[HeldOutEpisode], text: str, begin: int, end: int
    ) -> list[float | None]:
        """The scores of a text on some of the prompts."""
        scores = await asyncio.gather(*(self._score(lease, episode, text) for episode in episodes[begin:end]))
        if lease.cut:
            raise Replaced
        return scores

    async def _score(self, lease: Lease, episode: HeldOutEpisode, text: str) -> float | None:
        environments, own = self._services.environments, episode.match.agents_of(self._policy)
        if self._alone(episode.match):
            constant = Constant(text, own)
            with self._services.rollout.canned(constant) as answering:
                return constant.score(await environments.play(lease, episode.spec, answering))
        told: list[Constant] = []

        async def play(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
            told.append(Constant(text, own, answer))
            return await environments.play(lease, spec, told[-1])

        name = f"{episode.match.versions[self._policy].name}/c{episode.spec.index}.{next(self._numbers)}"
        played = await self._services.rollout.play(play, episode.spec, episode.roles, name)
        return told[-1].score(played.outcome)


def _mean(scores: Sequence[float | None]) -> float | None:
    """The mean score of a text; None where it has too few rewards for one."""
    found = [score for score in scores if score is not None]
    few = len(scores) - len(found) > MOST_FAILURES * len(scores)
    return math.fsum(found) / len(found) if found and not few else None


def _of_lease(lease: Lease, episodes: Sequence[HeldOutEpisode]) -> HeldOut:
    """What the prompts follow from; the rows that a task names are among it, and what stands in them."""
    data = dict(lease.data) if lease.data is not None else None
    config = json.dumps([episodes[0].spec.split, lease.config, data, lease.digest], sort_keys=True)
    return HeldOut(lease.environment, lease.environment_version, config, len(episodes))
