"""Which policies have their group of a play before the play is over: those whose agents are done in every member.

An agent is done in a member where its reward is final (``FinishedAgent``), or where the member has ended. What it said
up to its final reward is what it is trained on, whatever becomes of the episode: of a member that is played again
because it failed later, the first final reward of each agent stands, and what the agent says again is a prompt to
others at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...environments import EpisodeOutcome
from ...rollout import FinishedAgent, Played
from ...trajectories import Episode, Transcripts
from ..selfplay import Match
from .members import Member


class EarlyGroups:
    """What is final in one attempt at a play, and what its members that have ended left."""

    def __init__(self, match: Match, members: int) -> None:
        self._match = match
        self._members = members
        self._final: dict[int, dict[str, FinishedAgent]] = {}
        """By member and agent."""
        self._ended: dict[int, Member] = {}

    @property
    def ended(self) -> list[Member]:
        """Members that have ended for good."""
        return [*self._ended.values()]

    @property
    def members(self) -> list[Member]:
        """All members of a play of which all groups are closed: those that go on have done well as far as it counts."""
        return [self._ended.get(number) or Member(_done(number, {})) for number in range(self._members)]

    def note(self, done: FinishedAgent) -> None:
        """Take note of an agent that is done in a member that goes on; only the first time counts."""
        self._final.setdefault(done.member, {}).setdefault(done.agent, done)

    def end(self, number: int, member: Member) -> Member:
        """Take note of a member that has ended for good; returns it with what was final before."""
        final = self._final.get(number, {})
        ended = replace(member, played=with_final(member.played, final)) if final else member
        self._ended[number] = ended
        return ended

    def episodes(self, policy: str) -> tuple[tuple[Episode, ...], Transcripts] | None:
        """The episodes of a policy's group, with what was heard and said in them.

        None where one of the policy's agents is not done, or where the whole play is over and closes as one.
        """
        agents = self._match.agents_of(policy)
        if agents is None or len(self._ended) == self._members:
            return None
        episodes, texts = [], Transcripts()
        for number in range(self._members):
            ended = self._ended.get(number)
            final = self._final.get(number, {})
            if ended is None and not agents <= final.keys():
                return None
            played = _done(number, final) if ended is None else ended.played
            episodes.append(played.episode)
            texts |= played.transcripts
        return tuple(episodes), texts


def with_final(played: Played, final: Mapping[str, FinishedAgent]) -> Played:
    """An episode in which final rewards stand, with what was said for them."""
    trajectories = [t for t in played.episode.trajectories if t.agent not in final]
    paid = [one for one in played.episode.paid if one.agent not in final]
    texts = {key: text for key, text in played.transcripts.items() if key[1] not in final}
    for one in final.values():
        trajectories += one.trajectories
        paid += one.paid
        texts |= one.transcripts
    trajectories.sort(key=lambda trajectory: trajectory.agent)  # as ``Rollout`` has them
    episode = replace(played.episode, trajectories=tuple(trajectories), paid=tuple(paid))
    return replace(played, episode=episode, transcripts=texts)


def _done(member: int, final: Mapping[str, FinishedAgent]) -> Played:
    """A member that goes on, as those agents see it that are done."""
    alone = Played(Episode(member, "ok", ()), {}, None, EpisodeOutcome("ok"))
    return with_final(alone, final)
