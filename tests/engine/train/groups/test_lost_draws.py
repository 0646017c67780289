"""A share of bad instances never pauses a task; one that has come to lose every draw does soon."""

from __future__ import annotations

import random

import pytest

from marlaas.engine.train.failures import FEWEST_LOST as FEWEST, MOST_LOST as MOST, LostDraws, all_lost_by_chance

WHERE = ("", "v1")


def streak(draws: LostDraws) -> int:
    """How many draws of one group are lost before that is more than chance."""
    return next(number for number in range(MOST + 1) if draws.beyond_chance(WHERE, number))


@pytest.mark.parametrize("share", [0.02, 0.2, 0.5])
def test_a_share_of_bad_instances_goes_on(share: float) -> None:
    """Tasks of 60 steps, 480 groups each: with a share of one in five, 14 % of them lose five draws in a row."""
    longest = 0
    for seed in range(40):
        chance, draws = random.Random(seed), LostDraws()
        for _ in range(480):
            lost = 0
            while chance.random() < share:
                lost += 1
                assert not draws.beyond_chance(WHERE, lost), (share, seed, lost)
            draws.survived(WHERE, lost)
            longest = max(longest, lost)
    assert longest >= {0.02: 2, 0.2: FEWEST, 0.5: 10}[share], "chance tries what it can"


def test_rows_that_run_out_are_noticed_soon() -> None:
    draws = LostDraws()
    for _ in range(41):
        draws.survived(WHERE, 0)
    assert streak(draws) == FEWEST


def test_it_takes_longer_where_draws_were_lost_before() -> None:
    seldom, often = LostDraws(), LostDraws()
    for number in range(100):
        seldom.survived(WHERE, number % 5 == 0)
        often.survived(WHERE, 1)
    assert FEWEST < streak(seldom) < streak(often) < MOST


def test_what_never_had_a_reward_ends_all_the_same() -> None:
    assert streak(LostDraws()) == MOST


def test_another_version_or_component_is_another_matter() -> None:
    draws = LostDraws()
    for _ in range(100):
        draws.survived(WHERE, 0)
    assert not draws.beyond_chance(("", "v2"), FEWEST) and not draws.beyond_chance(("words", "v1"), FEWEST)


def test_laplaces_rule_by_hand() -> None:
    assert all_lost_by_chance(0, 0, 1) == 1 / 2
    assert all_lost_by_chance(1, 2, 2) == 2 / 4 * 3 / 5
    assert all_lost_by_chance(7, 9, 0) == 1
