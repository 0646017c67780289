"""An unreadable reply never pays more than one that was read."""

from __future__ import annotations

import itertools

from hypothesis import given, strategies as st

from marlaas.plugins.adapters.declaring import levelled, own_reward
from marlaas.plugins.rewards import Member, Transcript

REWARDS = st.floats(-1e9, 1e9)


def member(reward: float, unreadable: bool) -> Member:
    return Member(None, Transcript({}), {"agent": reward}, logged={"unreadable": 1.0} if unreadable else {"turns": 3.0})


@given(st.lists(st.tuples(REWARDS, st.booleans()), min_size=2, max_size=16))
def test_it_gets_the_least_of_its_group(group: list[tuple[float, bool]]) -> None:
    paid = levelled([member(*one) for one in group])
    read = [reward for reward, unreadable in group if not unreadable]
    assert [now for now, (_, unreadable) in zip(paid, group, strict=True) if not unreadable] == read
    unread = [now for now, (_, unreadable) in zip(paid, group, strict=True) if unreadable]
    assert len(set(unread)) <= 1, "none is better for having been unreadable earlier"
    assert all(now <= other for now, other in itertools.product(unread, read))


@given(REWARDS)
def test_its_own_reward_is_below_what_it_earned(earned: float) -> None:
    assert own_reward(earned, None) <= earned and own_reward(earned, None) <= -1
    assert own_reward(earned, -7.0) == -7.0
