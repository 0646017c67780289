"""Which members are played again, how often, and that nothing about a member changes meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.rollout.episodes import Played
from marlaas.engine.run.groups.members import DEATHS, OVERLOADED, PLAYS, Member, MemberPlay, play_members, plays_again
from marlaas.engine.trajectories import Episode

OK = EpisodeOutcome("ok", {"agent": 1.0})
SKIP = EpisodeOutcome("skip")
ERROR = EpisodeOutcome("error")
DIED = EpisodeOutcome("error", died=True)
SWAMPED = EpisodeOutcome("timeout", overloaded=True)
FAILURES = (ERROR, EpisodeOutcome("timeout"), EpisodeOutcome("cancelled"), DIED, SWAMPED)
ENDS = st.lists(st.sampled_from((OK, SKIP, *FAILURES)), min_size=1, max_size=30)


async def played(ends: Sequence[EpisodeOutcome], given_up: int = 1000) -> tuple[Member, list[int]]:
    """A member whose plays end so, the last end for ever; nothing is played again after ``given_up`` plays."""
    asked: list[int] = []

    async def play(number: int, left: Callable[[Played], None]) -> Played:
        asked.append(number)
        return ended(ends[min(number, len(ends) - 1)])

    return await MemberPlay(play, lambda: len(asked) >= given_up).run(), asked


def ended(end: EpisodeOutcome, member: int = 0) -> Played:
    return Played(Episode(member, end.status, ()), {}, None, end)


@pytest.mark.parametrize(
    ("ends", "plays", "lost"),
    [
        ([OK], 1, False),
        ([SKIP], 1, False),
        ([ERROR, OK], 2, False),
        ([ERROR, ERROR, OK], 3, False),
        ([ERROR], PLAYS, True),
        ([DIED, OK], 2, False),
        ([DIED], DEATHS, True),
        ([SWAMPED, SWAMPED, ERROR, SWAMPED, ERROR, OK], 6, False),
        ([SWAMPED], OVERLOADED, True),
        ([replace(SWAMPED, died=True)], OVERLOADED, True),
        ([SWAMPED, SWAMPED, ERROR], 2 + PLAYS, True),
    ],
)
async def test_how_often_a_member_is_played(ends: list[EpisodeOutcome], plays: int, lost: bool) -> None:
    member, asked = await played(ends)
    assert asked == list(range(plays)) and member.lost is lost
    assert member.plays == tuple((ends + ends[-1:] * plays)[:plays])


@given(ENDS)
async def test_a_member_ends_with_its_first_good_play(ends: list[EpisodeOutcome]) -> None:
    member, asked = await played(ends)
    assert len(member.plays) == len(asked) <= PLAYS + OVERLOADED
    assert all(end in FAILURES for end in member.before), "a play that ended well was made again"
    assert member.lost is (member.plays[-1] in FAILURES)
    if member.lost:
        assert not plays_again(member.plays)


@given(ENDS)
def test_a_further_failure_never_earns_a_play(ends: list[EpisodeOutcome]) -> None:
    failing = [end for end in ends if end in FAILURES]
    earned = [plays_again(failing[:number]) for number in range(1, len(failing) + 1)]
    assert all(before or not after for before, after in pairwise(earned))


async def test_nothing_is_played_again_where_it_was_given_up() -> None:
    member, asked = await played([ERROR, OK], given_up=1)
    assert asked == [0] and member.lost


class Race:
    """Members whose plays end when they are told to."""

    def __init__(self, count: int) -> None:
        self.ends: list[asyncio.Queue[EpisodeOutcome]] = [asyncio.Queue() for _ in range(count)]
        self.over = 0
        self.plays = [MemberPlay(self.player(member), lambda: False) for member in range(count)]

    def player(self, member: int) -> Callable[[int, Callable[[Played], None]], Awaitable[Played]]:
        async def play(number: int, left: Callable[[Played], None]) -> Played:
            try:
                return ended(await self.ends[member].get(), member)
            except asyncio.CancelledError:
                left(ended(EpisodeOutcome("cancelled"), member))
                raise

        return play

    def note(self, _: int) -> None:
        self.over += 1

    async def run(self, enough: int, *ends: tuple[int, EpisodeOutcome]) -> list[Member]:
        """End plays one after the other; the members, as ``play_members`` returns them."""
        running = asyncio.ensure_future(play_members(self.plays, enough, self.note))
        for member, end in ends:
            self.ends[member].put_nowait(end)
            for _ in range(5):
                await asyncio.sleep(0)
        return await asyncio.wait_for(running, 50)


async def test_the_first_with_a_reward_are_enough() -> None:
    race = Race(5)
    found = await race.run(2, (4, ERROR), (3, OK), (1, OK))
    assert [(one.played.episode.member, one.dropped) for one in found[:2]] == [(3, False), (1, False)]
    assert {one.played.episode.member for one in found[2:]} == {0, 2, 4} and all(one.dropped for one in found[2:])
    assert race.over == 5
    left = {one.played.episode.member: one for one in found}
    assert left[4].plays == (ERROR,), "what failed before it was dropped is known"
    assert left[0].plays == () and not left[0].lost and not left[0].rewarded


async def test_what_is_lost_is_made_up_for() -> None:
    found = await Race(4).run(3, (0, ERROR), (0, ERROR), (0, ERROR), (1, OK), (2, OK), (3, OK))
    assert [one.lost for one in found] == [True, False, False, False] and not any(one.dropped for one in found)


async def test_an_error_of_the_engine_ends_all_members() -> None:
    race = Race(3)
    running = asyncio.ensure_future(play_members(race.plays, 2, race.note))
    await asyncio.sleep(0)

    async def broken(number: int, left: Callable[[Played], None]) -> Played:
        raise RuntimeError("It is broken.")

    race.plays.append(MemberPlay(broken, lambda: False))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    with pytest.raises(RuntimeError):
        await play_members(race.plays, 2, race.note)
    assert race.over == 3 + 4
