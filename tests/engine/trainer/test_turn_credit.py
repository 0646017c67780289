"""Advantages of turns: what was paid after a reply, compared with the group."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from marlaas.engine.spec.losses import AdvantageKind
from marlaas.engine.trainer.advantages import (
    ClosedGroup,
    ClosingRules,
    Credit,
    Overlong,
    close_group,
    compare_turns,
    has_signal,
    returns_to_go,
    train_group,
)
from marlaas.engine.trainer.group_pass import check_group
from marlaas.engine.trainer.model import trained_tokens_of
from marlaas.engine.trainer.protocol import PolicyConfig
from marlaas.engine.trajectories import Episode, Group, Span, Trajectory, TurnReward

KINDS: tuple[AdvantageKind, ...] = ("mean", "standard", "leave_one_out")
TURN = ClosingRules(credit=Credit())
REWARDS = st.floats(-100.0, 100.0)


def said(turns: int, reward: float | None, agent: str = "agent", fork: bool = False) -> Trajectory:
    """A prompt token before each reply of two tokens."""
    mask = np.tile(np.array([0, 1, 1], np.uint8), max(1, turns))
    spans = tuple(Span(3 * turn + 1, 3 * turn + 3, 0, fork) for turn in range(turns))
    return Trajectory(agent, np.full(len(mask), 5, np.int32), mask, -0.5 * mask.astype(np.float32), spans, reward)


def member(number: int, turns: int, reward: float, *paid: tuple[int, float]) -> Episode:
    """``paid``: (replies by then, amount)."""
    payments = tuple(TurnReward("agent", replies, amount) for replies, amount in paid)
    return Episode(number, "ok", (said(turns, reward),), paid=payments)


def closed(rules: ClosingRules, *episodes: Episode) -> ClosedGroup:
    result = close_group(Group(3, 0, 0, "v1", episodes), rules)
    assert isinstance(result, ClosedGroup)
    return result


def of_turns(result: ClosedGroup) -> list[list[float | None]]:
    return [[s.advantage for t in episode.trajectories for s in t.spans] for episode in result.group.episodes]


def test_a_reply_is_answerable_for_what_follows_it() -> None:
    """Returns to go by hand: 3, 2, 2 (paid 1 after the first reply, 2 at the end) against 1, 1, 0."""
    result = closed(TURN, member(0, 3, 3.0, (1, 1.0)), member(1, 3, 1.0, (2, 1.0)))
    assert of_turns(result) == [[1.0, 0.5, 1.0], [-1.0, -0.5, -1.0]]
    assert [e.trajectories[0].advantage for e in result.group.episodes] == [1.0, -1.0]  # people see the episode's


def test_a_discount_makes_later_payments_smaller() -> None:
    assert returns_to_go(7.0, [1.0, 2.0, 0.0], 0.5) == [1.0 + 0.5 * (2.0 + 0.5 * 4.0), 2.0 + 0.5 * 4.0, 4.0]
    assert returns_to_go(7.0, [1.0, 2.0, 0.0], 1.0) == [7.0, 6.0, 4.0]
    assert returns_to_go(7.0, [0.0, 0.0], 0.0) == [0.0, 7.0]


def test_equal_episodes_that_were_paid_elsewhere_have_a_signal() -> None:
    """Two episodes of reward 1; one was paid for its first reply, the other for its second."""
    early, late = member(0, 2, 1.0, (1, 1.0)), member(1, 2, 1.0, (2, 1.0))
    assert closed(ClosingRules(), early, late).rewards.constant
    result = closed(TURN, early, late)
    assert of_turns(result) == [[0.0, -0.5], [0.0, 0.5]] and not result.rewards.constant
    assert has_signal(train_group(result.group), PolicyConfig())


def test_who_ended_before_counts_with_its_last_turn() -> None:
    """At the second turn 2 against 1, and at the third, which one alone reached, 1 against 1."""
    result = closed(TURN, member(0, 3, 4.0, (1, 2.0), (2, 1.0)), member(1, 1, 1.0))
    assert of_turns(result) == [[1.5, 0.5, 0.0], [-1.5]]


@given(st.lists(st.tuples(st.integers(1, 4), REWARDS), min_size=2, max_size=6), st.sampled_from(KINDS))
def test_paid_at_the_end_alone_every_turn_has_the_episodes(
    members: list[tuple[int, float]], kind: AdvantageKind
) -> None:
    """To the last bit, however many turns each member has, and whatever the kind."""
    episodes = [member(number, turns, reward) for number, (turns, reward) in enumerate(members)]
    whole, turns = closed(ClosingRules(kind), *episodes), closed(ClosingRules(kind, credit=Credit()), *episodes)
    for one, other in zip(whole.group.episodes, turns.group.episodes, strict=True):
        expected = one.trajectories[0].advantage
        assert other.trajectories[0].advantage == expected
        assert [span.advantage for span in other.trajectories[0].spans] == [expected] * len(other.trajectories[0].spans)
    trained = [trained_tokens_of(train_group(some.group).sequences).advantage for some in (whole, turns)]
    assert trained[0].tobytes() == trained[1].tobytes() and whole.rewards == turns.rewards


@given(
    st.lists(st.tuples(REWARDS, st.lists(st.tuples(st.integers(0, 2), REWARDS), max_size=3)), min_size=2, max_size=6),
    st.sampled_from(KINDS),
    st.floats(0.0, 1.0),
)
def test_a_single_turn_has_the_whole_reward(
    members: list[tuple[float, list[tuple[int, float]]]], kind: AdvantageKind, discount: float
) -> None:
    """Also what was paid before its reply, or after an ask that had no room for one."""
    episodes = [member(number, 1, reward, *paid) for number, (reward, paid) in enumerate(members)]
    whole = closed(ClosingRules(kind), *episodes)
    turns = closed(ClosingRules(kind, credit=Credit(discount)), *episodes)
    assert of_turns(turns) == [[e.trajectories[0].advantage] for e in whole.group.episodes]


def test_each_agent_has_its_own_payments() -> None:
    paid = (TurnReward("b", 1, 5.0), TurnReward("a", 1, 1.0))
    first = Episode(0, "ok", (said(2, 1.0, "a"), said(2, 5.0, "b")), paid=paid)
    second = Episode(1, "ok", (said(2, 1.0, "a"), said(2, 0.0, "b")), paid=(TurnReward("a", 2, 1.0),))
    assert of_turns(closed(TURN, first, second)) == [[0.0, -0.5, 2.5, 0.0], [0.0, 0.5, -2.5, 0.0]]


def test_turns_are_counted_over_rewritten_histories() -> None:
    """Three replies in three trajectories have the advantages that they have in one."""
    together = closed(TURN, member(0, 3, 3.0, (1, 1.0), (2, 2.0)), member(1, 3, 0.0))
    parts = tuple(said(1, 3.0) for _ in range(3))
    apart = Episode(0, "ok", parts, paid=(TurnReward("agent", 1, 1.0), TurnReward("agent", 2, 2.0)))
    assert (
        of_turns(closed(TURN, apart, member(1, 3, 0.0))) == of_turns(together) == [[1.5, 1.0, 0.0], [-1.5, -1.0, 0.0]]
    )


def test_a_fork_without_a_name_has_the_whole_episode() -> None:
    """Its replies have no place among those that payments count; they weigh as the episode does."""
    paid = (TurnReward("agent", 1, 1.0),)
    forked = Episode(0, "ok", (said(2, 1.0), said(1, 1.0, fork=True)), paid=paid)
    result = closed(TURN, forked, member(1, 2, 0.0))
    assert of_turns(result) == [[0.5, 0.0, None], [-0.5, 0.0]]
    trained = trained_tokens_of(train_group(result.group).sequences)
    assert trained.advantage.tolist() == [0.5, 0.5, 0.0, 0.0, 0.5, 0.5, -0.5, -0.5, 0.0, 0.0]


def test_overlong_episodes_are_left_out_or_punished() -> None:
    cut = replace(member(2, 2, 9.0, (1, 9.0)), trajectories=(replace(said(2, 9.0), cut=True),))
    pair = (member(0, 2, 3.0, (1, 1.0)), member(1, 2, 1.0))
    masked = closed(replace(TURN, overlong=Overlong("mask")), *pair, cut)
    assert of_turns(masked) == [[1.0, 0.5], [-1.0, -0.5], [None, None]]
    punished = closed(replace(TURN, overlong=Overlong("penalty", 1, 100, 100)), *pair, cut)
    # returns 3, 2; 1, 1; 8, −1, since the penalty comes at the end
    assert of_turns(punished) == [
        [-1.0, pytest.approx(4 / 3)],
        [-3.0, pytest.approx(1 / 3)],
        [4.0, pytest.approx(-5 / 3)],
    ]


def test_closing_anew_gives_the_same_bits() -> None:
    """A restart closes stored groups again: what an earlier closing left has no effect."""
    episodes = [member(n, 3, 0.1 * n, (1, 0.03 * n), (3, 0.1)) for n in range(5)]
    rules = ClosingRules("standard", credit=Credit(0.9))
    once = closed(rules, *episodes)
    assert of_turns(closed(rules, *once.group.episodes)) == of_turns(once)
    assert of_turns(closed(ClosingRules(), *once.group.episodes)) == [[None] * 3] * 5


def test_turns_are_compared_in_the_order_of_members() -> None:
    seen: list[list[float]] = []

    def compare(values: object) -> list[float]:
        seen.append(list(values))  # type: ignore[call-overload]
        return [0.0] * 3

    assert compare_turns([[1.0], [2.0, 3.0], [4.0]], compare) == [[0.0], [0.0, 0.0], [0.0]]
    assert seen == [[1.0, 2.0, 4.0], [1.0, 3.0, 4.0]]


def test_an_advantage_that_is_not_finite_is_refused() -> None:
    group = train_group(closed(TURN, member(0, 2, 1.0, (1, 1.0)), member(1, 2, 0.0)).group)
    check_group(group, 10)
    (broken, *_), shape = group.sequences, group.sequences[0].tokens.shape
    for advantages, says in ((np.full(shape, np.nan, np.float32), "not finite"), (np.zeros(2, np.float32), "shape")):
        with pytest.raises(ValueError, match=says):
            check_group(replace(group, sequences=(replace(broken, advantages=advantages),)), 10)
