"""Group rewards: an environment's ranking compares the members of a group, and replaces their own rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .protocol import EpisodeOutcome, Ranking
from .served_version import Lease
from .service import EnvironmentService

FEWEST = 2
"""Fewest members with a reward: one alone cannot be compared."""
OWN = "own_reward"
"""Name of the reward part that keeps a member's own reward beside its ranking."""


async def ranked(
    environments: EnvironmentService, lease: Lease, outcomes: Sequence[EpisodeOutcome], counts: bool = False
) -> list[EpisodeOutcome]:
    """The outcomes with the ranking's rewards; where it fails, all members with a reward fail, and none gets a 0.

    ``counts``: as in ``EnvironmentService.rank``."""
    places = [place for place, outcome in enumerate(outcomes) if outcome.status == "ok"]
    judged = list(outcomes)
    if len(places) < FEWEST:
        return judged
    verdict = await environments.rank(lease, [outcomes[place] for place in places], counts)
    for number, place in enumerate(places):
        if isinstance(verdict, Ranking):
            judged[place] = _placed(outcomes[place], verdict.rewards[number])
        else:
            judged[place] = replace(outcomes[place], status=verdict.status, rewards={}, failure=verdict.failure)
    return judged


def _placed(outcome: EpisodeOutcome, rewards: dict[str, float]) -> EpisodeOutcome:
    alone = len(outcome.rewards) == 1
    own = {OWN if alone else f"{agent}.{OWN}": reward for agent, reward in outcome.rewards.items()}
    return replace(outcome, rewards=rewards, parts=outcome.parts | own)
