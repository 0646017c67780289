"""Members of plays that are under way survive the engine: stored once their play has waited, taken up by the next run.

A member that ended well is stored a moment later, unless its play is over by then: plays of quick environments cost
nothing. A run that ends, such as by a pause, stores what it has at once. The next run goes on with such a play where it
can: on the same version of the environment, and with the same versions of all who speak. It then plays only the members
that are missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType

from ...errors import StoreError
from ...rollout import Played
from ...store import KeptMember, OpenPlay, Store
from ..selfplay import Match, Participants
from .members import Member

KEEP_AFTER = 1.0
"""Seconds after which members that have ended are stored, if their play goes on. To store one costs about as much as
to store its part of a group, so that plays which are over within that time would pay twice."""


@dataclass(frozen=True)
class Resumed:
    """A play that an earlier run has begun."""

    play: OpenPlay
    match: Match
    members: Mapping[int, Member] = field(default_factory=dict)
    """Those that have ended well, by their places."""


def resumed(store: Store, participants: Participants, task: int, number: int, names: Sequence[str]) -> Resumed | None:
    """The play to go on with for group ``number`` of these policies; what cannot go on is removed.

    There may be others: one of them may have gone on alone in an earlier run, and now all begin together.
    """
    play = store.open_plays.find(task, number, names)
    store.open_plays.drop_others(task, number, names, play)
    if play is None:
        return None
    match = participants.again(play.speaking)
    if match is None:
        store.open_plays.drop(play)
        return None
    return Resumed(play, match, {one.episode.member: _member(one) for one in store.open_plays.members(play)})


class Keeper:
    """Stores the members of one attempt at a play; enter it for as long as the play goes on."""

    def __init__(self, store: Store, play: OpenPlay, stored: bool = False) -> None:
        self._store = store
        self._play = play
        self._ended: list[Member] = []
        """Not stored yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.stored = stored
        """Whether the store knows of the play."""

    def note(self, member: Member) -> None:
        """Take note of a member that has ended; only one that ended well is kept."""
        if self._closed or member.played.outcome.status != "ok":
            return
        self._ended.append(member)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(KEEP_AFTER, self._store_ended)

    def give_up(self) -> None:
        """The play is made anew from another instance."""
        if self.stored:
            self.stored = False
            self._store.open_plays.drop(self._play)

    def close(self) -> None:
        """The last group of the play is stored, and its members are gone from the store: keep none any more."""
        self._closed, self.stored = True, False
        self._ended.clear()

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if error is not None:
            self._store_ended()

    def _store_ended(self) -> None:
        self._timer = None
        ended, self._ended = self._ended, []
        try:
            if ended:
                self._store.open_plays.keep(self._play, [_kept(member) for member in ended])
                self.stored = True
        except StoreError:  # locked or full: they are played again if it comes to that
            self._ended = ended


def _kept(member: Member) -> KeptMember:
    played = member.played
    outcome = replace(played.outcome, paid=played.episode.paid)
    return KeptMember(played.episode, played.transcripts, outcome, member.before, played.prompt, played.seconds)


def _member(kept: KeptMember) -> Member:
    return Member(Played(kept.episode, kept.transcripts, kept.prompt, kept.outcome, kept.seconds), kept.before)
