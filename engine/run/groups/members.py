"""The members of a group, each played until it ends well: what failed is played again, a few times.

A member is played again alone, on the same instance, with the same versions and the same sampling noise. So it gives
the same replies where the sampler repeats them, and a failure that a reply caused comes again: no reply is ever chosen
for having been easy on the environment. Other noise would choose, and rewards would be means over what does not fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ...environments import EpisodeOutcome
from ...rollout import Played

FAILED = ("error", "timeout", "cancelled")
"""How a play ends that has failed. A draw that the environment skips is unusable, which is no failure."""
PLAYS = 3
"""Most plays of a member that fail: the first, and two more."""
DEATHS = 2
"""Most plays that the death of the process ends: a version that dies three times within a minute rests, with all who
play on it, so a reply that kills must not be played three times."""
OVERLOADED = 8
"""Plays that an overloaded machine ends and that do not count; there must be an end to it, too."""


@dataclass(frozen=True)
class Member:
    """A member as its last play left it, and how the plays before ended."""

    played: Played
    before: tuple[EpisodeOutcome, ...] = ()
    """None of them ended well."""
    dropped: bool = False
    """Whether its group closed without it, while it was played."""

    @property
    def plays(self) -> tuple[EpisodeOutcome, ...]:
        """How each of its plays ended, in order."""
        return self.before if self.dropped else (*self.before, self.played.outcome)

    @property
    def rewarded(self) -> bool:
        """Whether it has a reward."""
        return self.played.outcome.status == "ok"

    @property
    def lost(self) -> bool:
        """Whether it failed to the end."""
        return not self.dropped and self.played.outcome.status in FAILED


def plays_again(ends: Sequence[EpisodeOutcome]) -> bool:
    """Whether a member whose plays have ended so, at least one, is played again."""
    if ends[-1].status not in FAILED:
        return False
    overloaded = sum(end.overloaded for end in ends)
    died = sum(end.died and not end.overloaded for end in ends)
    return overloaded < OVERLOADED and died < DEATHS and len(ends) - overloaded < PLAYS


class MemberPlay:
    """A member while it is played."""

    def __init__(
        self,
        play: Callable[[int, Callable[[Played], None]], Awaitable[Played]],
        given_up: Callable[[], bool],
        known: Member | None = None,
        ended: Callable[[Member], Member] = lambda member: member,
    ) -> None:
        """``play`` is given the number of the play, from 0, and must begin it in the same way each time; where it is
        cancelled, it tells the function that it is given how far it was. Once ``given_up``, nothing is played again.
        A member that is ``known`` has ended before. ``ended`` is told of the member's end, and returns what counts."""
        self._play = play
        self._given_up = given_up
        self._known = known
        self._ended = ended
        self._before: list[EpisodeOutcome] = []
        self._left: Played | None = None

    async def run(self) -> Member:
        """Play until it ends well, or until ``plays_again`` says that it is lost. Raises what ``play`` raises."""
        if self._known is not None:
            return self._ended(self._known)
        while True:
            played = await self._play(len(self._before), self._leave)
            if not plays_again([*self._before, played.outcome]) or self._given_up():
                return self._ended(Member(played, tuple(self._before)))
            self._before.append(played.outcome)

    @property
    def dropped(self) -> Member | None:
        """The member as it was when ``run`` was cancelled; None where it had not begun."""
        return None if self._left is None else Member(self._left, tuple(self._before), dropped=True)

    def _leave(self, played: Played) -> None:
        self._left = played


async def play_members(plays: Sequence[MemberPlay], enough: int, ended: Callable[[int], None]) -> list[Member]:
    """Play members side by side until ``enough`` of them have a reward, or all have ended; cancel the others.

    Returns those that have begun, in the order in which they ended, the cancelled ones last. ``ended`` is told the
    place of each that is not played any more. Raises what a play raises; by then none is played.
    """
    loop = asyncio.get_running_loop()
    running = [loop.create_task(play.run()) for play in plays]
    over: asyncio.Future[None] = loop.create_future()
    order: list[int] = []
    rewarded = 0

    def note(place: int, one: asyncio.Task[Member]) -> None:
        nonlocal rewarded
        order.append(place)
        ended(place)
        failed = one.cancelled() or one.exception() is not None
        rewarded += not failed and one.result().rewarded
        if (failed or rewarded >= enough or len(order) == len(running)) and not over.done():
            over.set_result(None)

    for place, one in enumerate(running):
        one.add_done_callback(partial(note, place))
    try:
        await over
        for place in order:
            running[place].result()
    finally:
        left = [one for one in running if not one.done()]
        for one in left:
            one.cancel()
        if left:
            await asyncio.gather(*left, return_exceptions=True)
    members = [play.dropped if one.cancelled() else one.result() for play, one in zip(plays, running, strict=True)]
    return [member for place in order if (member := members[place]) is not None]
