"""Splits a play among its policies: a closed group for each trained one, and what the others said, for people. Pure."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from ...store import Beside
from ...training import ClosedGroup, ClosingRules, TooFewRewards, close_group
from ...trajectories import Episode, Group, Transcripts
from ..selfplay import Match


@dataclass(frozen=True)
class Play:
    """All members of one instance, with all of their agents."""

    number: int
    index: int
    """Index of the instance."""
    environment_version: str
    episodes: tuple[Episode, ...]
    component: str = ""
    """See ``Group.component``."""
    replaced: int = 0
    """How many plays with equal rewards it replaces under this number."""
    lost: int = 0
    """See ``Group.lost``."""
    replayed: int = 0
    """See ``Group.replayed``."""


def part_of(play: Play, version: int, agents: Set[str] | None) -> Group:
    """The group of one policy, whose ``version`` spoke for ``agents`` (None: for all)."""
    episodes = tuple(episode_of(episode, agents) for episode in play.episodes)
    return Group(
        number=play.number,
        index=play.index,
        version=version,
        environment_version=play.environment_version,
        episodes=episodes,
        component=play.component,
        replaced=play.replaced,
        lost=play.lost,
        replayed=play.replayed,
    )


def episode_of(episode: Episode, agents: Set[str] | None) -> Episode:
    """An episode with the trajectories and rewards of these agents alone."""
    if agents is None:
        return episode
    own = tuple(trajectory for trajectory in episode.trajectories if trajectory.agent in agents)
    paid = tuple(one for one in episode.paid if one.agent in agents)
    if episode.status != "ok" and own and all(trajectory.reward is not None for trajectory in own):
        # they were done before the episode failed, and their rewards are final
        return replace(episode, status="ok", trajectories=own, paid=paid, failure=None)
    return replace(episode, trajectories=own, paid=paid)


def texts_of(transcripts: Transcripts, agents: Set[str] | None) -> Transcripts:
    """What these agents heard and said."""
    return {key: text for key, text in transcripts.items() if agents is None or key[1] in agents}


def besides(
    episodes: Sequence[Episode], transcripts: Transcripts, match: Match, trained: Set[str]
) -> tuple[Beside, ...]:
    """What was said by policies that are not trained on this play, for people to read."""
    others = dict.fromkeys(policy for policy in match.agents.values() if policy not in trained)
    found = []
    for policy in others:
        agents = match.agents_of(policy)
        own = tuple(episode_of(episode, agents) for episode in episodes)
        if any(episode.trajectories for episode in own):
            found.append(Beside(policy, own, texts_of(transcripts, agents)))
    return tuple(found)


def close_parts(
    episodes: Sequence[Episode], groups: Sequence[Group], rules: Sequence[ClosingRules]
) -> tuple[ClosedGroup, ...] | TooFewRewards:
    """Close the groups of policies that have none yet once a play is over; ``episodes`` are those of all agents.

    Returns ``TooFewRewards``, and the play is to be made again, where fewer members than any of the rules asks for have
    a reward. A group with too few rewards in a play with enough of them, such as one whose agents did not speak, counts
    as empty; where all are, ``TooFewRewards`` is returned, too.
    """
    rewarded = sum(
        episode.status == "ok" and any(t.reward is not None for t in episode.trajectories) for episode in episodes
    )
    if rewarded < max(own.min_members for own in rules):
        return TooFewRewards(rewarded)
    closed = [close_group(group, own) for group, own in zip(groups, rules, strict=True)]
    if all(isinstance(one, TooFewRewards) for one in closed):
        return next(one for one in closed if isinstance(one, TooFewRewards))
    return tuple(
        one if isinstance(one, ClosedGroup) else empty(group) for one, group in zip(closed, groups, strict=True)
    )


def empty(group: Group) -> ClosedGroup:
    """A closed group without episodes, for a number that a policy skips."""
    closed = close_group(replace(group, episodes=()))
    if isinstance(closed, TooFewRewards):
        raise ValueError("A group without episodes is closed.")
    return closed
