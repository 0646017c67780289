"""Which members are played again, how often, and that nothing about a member changes meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.rollout.episodes import Played
from marlaas.engine.run.members import DEATHS, OVERLOADED, PLAYS, Member, play_member, plays_again
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

    async def play(number: int) -> Played:
        asked.append(number)
        end = ends[min(number, len(ends) - 1)]
        return Played(Episode(0, end.status, ()), {}, None, end)

    return await play_member(play, lambda: len(asked) >= given_up), asked


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
