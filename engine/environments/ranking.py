"""Group rewards: the members of a group that are compared with each other by their environment's ranking.

The outcomes of a group's members flow in; the same outcomes flow out, with the ranking's rewards in place of the
members' own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .lease import Lease
from .protocol import EpisodeOutcome, Ranking
from .service import EnvironmentService

FEWEST = 2
"""Members with a reward: one alone has nobody to be compared with."""
OWN = "own_reward"
"""The part under which a member's own reward is charted beside its ranking."""


async def ranked(
    environments: EnvironmentService, lease: Lease, outcomes: Sequence[EpisodeOutcome], counts: bool = False
) -> list[EpisodeOutcome]:
    """The members of an environment with a ranking; where it fails, all who had a reward fail, and none gets a 0.

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
