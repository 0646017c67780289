"""One member of a group, played until it ends well: what failed is played again, a few times.

A member is played again alone, on the same instance, with the same versions and the same sampling noise. So it gives
the same replies where the sampler repeats them, and a failure that a reply caused comes again: no reply is ever chosen
for having been easy on the environment. Other noise would choose, and rewards would be means over what does not fail.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ..environments import EpisodeOutcome
from ..rollout import Played

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

    @property
    def plays(self) -> tuple[EpisodeOutcome, ...]:
        """How each of its plays ended, in order."""
        return (*self.before, self.played.outcome)

    @property
    def lost(self) -> bool:
        """Whether it failed to the end."""
        return self.played.outcome.status in FAILED


def plays_again(ends: Sequence[EpisodeOutcome]) -> bool:
    """Whether a member whose plays have ended so, at least one, is played again."""
    if ends[-1].status not in FAILED:
        return False
    overloaded = sum(end.overloaded for end in ends)
    died = sum(end.died and not end.overloaded for end in ends)
    return overloaded < OVERLOADED and died < DEATHS and len(ends) - overloaded < PLAYS


async def play_member(play: Callable[[int], Awaitable[Played]], given_up: Callable[[], bool]) -> Member:
    """Play a member until it ends well, or until ``plays_again`` says that it is lost.

    ``play`` is given the number of the play, from 0, and must begin it in the same way each time. Once ``given_up``,
    nothing is played again. Raises what ``play`` raises.
    """
    before: list[EpisodeOutcome] = []
    while True:
        played = await play(len(before))
        if given_up() or not plays_again([*before, played.outcome]):
            return Member(played, tuple(before))
        before.append(played.outcome)
