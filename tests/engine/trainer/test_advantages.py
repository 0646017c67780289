"""Advantages of episodes and turns, what becomes of overlong episodes, and what a group trains on."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, strategies as st

from marlaas.engine.spec.losses import AdvantageKind
from marlaas.engine.trainer.advantages import (
    PLAIN,
    ClosedGroup,
    ClosingRules,
    Credit,
    Overlong,
    TooFewRewards,
    close_group,
    group_advantages,
    has_signal,
    returns_to_go,
    spread,
    train_group,
)
from marlaas.engine.trainer.group_pass import check_group
from marlaas.engine.trainer.model import trained_tokens_of
from marlaas.engine.trainer.protocol import PolicyConfig
from marlaas.engine.trajectories import Episode, EpisodeStatus, Group, Span, Trajectory, TurnReward

REWARDS = st.floats(-1e6, 1e6)


def trajectory(reward: float | None, agent: str = "solver") -> Trajectory:
    tokens, mask = np.array([1, 2], dtype=np.int32), np.array([0, 1], dtype=np.uint8)
    return Trajectory(agent, tokens, mask, np.array([0, -1], dtype=np.float32), (Span(1, 2, 0),), reward)


def group(*episodes: tuple[Trajectory, ...]) -> Group:
    return Group(3, 0, 0, "v1", tuple(Episode(n, "ok", trajectories) for n, trajectories in enumerate(episodes)))


def solo(*rewards: float | None) -> Group:
    return group(*((trajectory(reward),) for reward in rewards))


def closed(some: Group, rules: ClosingRules = PLAIN) -> ClosedGroup:
    result = close_group(some, rules)
    assert isinstance(result, ClosedGroup)
    return result


def advantages(result: ClosedGroup) -> list[list[float]]:
    return [[t.advantage for t in episode.trajectories] for episode in result.group.episodes]


def test_the_advantage_is_the_reward_less_the_group_mean() -> None:
    result = closed(solo(1.0, 0.0, 0.0, 1.0))
    assert advantages(result) == [[0.5], [-0.5], [-0.5], [0.5]]
    assert result.rewards.count == 4
    assert (result.rewards.mean, result.rewards.spread) == (0.5, 0.5)
    assert not result.rewards.constant


@pytest.mark.parametrize(("rewards", "rewarded"), [((None, None), 0), ((1.0,), 1), ((None, 1.0), 1)])
def test_fewer_than_two_rewards_do_not_close(rewards: tuple[float | None, ...], rewarded: int) -> None:
    assert close_group(solo(*rewards)) == TooFewRewards(rewarded)


MEMBERS = st.lists(st.tuples(st.sampled_from(get_args(EpisodeStatus)), st.booleans()), min_size=1, max_size=10)


@given(MEMBERS, st.integers(2, 10))
def test_a_group_closes_with_enough_members_that_ended_well(
    members: list[tuple[EpisodeStatus, bool]], least: int
) -> None:
    """Of a policy that did not speak everywhere fewer may be rewarded, though never fewer than two."""
    some = group(*((trajectory(1.0 if status == "ok" and spoke else None),) for status, spoke in members))
    episodes = zip(some.episodes, members, strict=True)
    some = replace(some, episodes=tuple(replace(one, status=status) for one, (status, _) in episodes))
    well = sum(status == "ok" for status, _ in members)
    rewarded = sum(status == "ok" and spoke for status, spoke in members)
    result = close_group(some, ClosingRules(min_members=least))
    assert isinstance(result, ClosedGroup) is (well >= least and rewarded >= 2)
    if isinstance(result, TooFewRewards):
        assert result.rewarded == rewarded
    else:
        assert result.rewards.count == rewarded


def test_each_agent_has_a_baseline_of_its_own() -> None:
    result = closed(
        group(
            (trajectory(1.0, "solver"), trajectory(10.0, "critic")),
            (trajectory(0.0, "solver"), trajectory(30.0, "critic")),
        )
    )
    assert advantages(result) == [[0.5, -10.0], [-0.5, 10.0]]


def test_an_agent_rewarded_once_has_no_signal() -> None:
    result = closed(group((trajectory(1.0), trajectory(5.0, "critic")), (trajectory(0.0),)))
    assert advantages(result) == [[0.5, 0.0], [-0.5]]


@given(st.lists(st.tuples(REWARDS, st.integers(1, 5)), min_size=2, max_size=6))
def test_how_often_an_episode_began_anew_changes_no_advantage(members: list[tuple[float, int]]) -> None:
    apart = closed(group(*((trajectory(reward),) * parts for reward, parts in members)))
    together = closed(solo(*(reward for reward, _ in members)))
    assert apart.rewards == together.rewards
    for own, (alone,), (_, parts) in zip(advantages(apart), advantages(together), members, strict=True):
        assert own == [alone] * parts


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_not_finite_is_refused(reward: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        close_group(solo(1.0, reward))


def test_the_kinds_by_hand() -> None:
    rewards = [1.0, 0.0, 0.0, 3.0]  # mean 1; squared distances 0, 1, 1, 4; sample deviation sqrt(6 / 3)
    assert group_advantages(rewards, "mean").tolist() == [0.0, -1.0, -1.0, 2.0]
    assert group_advantages(rewards, "standard").tolist() == pytest.approx([0.0, -0.70705678, -0.70705678, 1.41411356])
    # each against the mean of the other three: 1 − 3/3, 0 − 4/3, 0 − 4/3, 3 − 1/3
    assert group_advantages(rewards, "leave_one_out").tolist() == pytest.approx([0.0, -4 / 3, -4 / 3, 8 / 3])


@pytest.mark.parametrize("kind", get_args(AdvantageKind))
@pytest.mark.parametrize("reward", [0.1, 1e6 + 0.7])
def test_equal_rewards_are_exact_zeros_in_every_kind(kind: AdvantageKind, reward: float) -> None:
    result = close_group(solo(*[reward] * 7), ClosingRules(kind))
    assert isinstance(result, ClosedGroup) and result.rewards.constant
    assert advantages(result) == [[0.0]] * 7


KINDS: tuple[AdvantageKind, ...] = ("mean", "standard", "leave_one_out")
TURN = ClosingRules(credit=Credit())
AMOUNTS = st.floats(-100.0, 100.0)


def said(turns: int, reward: float | None, agent: str = "agent", fork: bool = False) -> Trajectory:
    """A prompt token before each reply of two tokens."""
    mask = np.tile(np.array([0, 1, 1], np.uint8), max(1, turns))
    spans = tuple(Span(3 * turn + 1, 3 * turn + 3, 0, fork) for turn in range(turns))
    return Trajectory(agent, np.full(len(mask), 5, np.int32), mask, -0.5 * mask.astype(np.float32), spans, reward)


def member(number: int, turns: int, reward: float, *paid: tuple[int, float]) -> Episode:
    """``paid``: (replies by then, amount)."""
    payments = tuple(TurnReward("agent", replies, amount) for replies, amount in paid)
    return Episode(number, "ok", (said(turns, reward),), paid=payments)


def turns_closed(rules: ClosingRules, *episodes: Episode) -> ClosedGroup:
    return closed(Group(3, 0, 0, "v1", episodes), rules)


def of_turns(result: ClosedGroup) -> list[list[float | None]]:
    return [[s.advantage for t in episode.trajectories for s in t.spans] for episode in result.group.episodes]


def test_a_reply_is_answerable_for_what_follows_it() -> None:
    """Returns to go by hand: 3, 2, 2 (paid 1 after the first reply, 2 at the end) against 1, 1, 0."""
    result = turns_closed(TURN, member(0, 3, 3.0, (1, 1.0)), member(1, 3, 1.0, (2, 1.0)))
    assert of_turns(result) == [[1.0, 0.5, 1.0], [-1.0, -0.5, -1.0]]
    assert [e.trajectories[0].advantage for e in result.group.episodes] == [1.0, -1.0]  # people see the episode's


def test_a_discount_makes_later_payments_smaller() -> None:
    assert returns_to_go(7.0, [1.0, 2.0, 0.0], 0.5) == [1.0 + 0.5 * (2.0 + 0.5 * 4.0), 2.0 + 0.5 * 4.0, 4.0]
    assert returns_to_go(7.0, [1.0, 2.0, 0.0], 1.0) == [7.0, 6.0, 4.0]
    assert returns_to_go(7.0, [0.0, 0.0], 0.0) == [0.0, 7.0]


def test_equal_episodes_that_were_paid_elsewhere_have_a_signal() -> None:
    """Two episodes of reward 1; one was paid for its first reply, the other for its second."""
    early, late = member(0, 2, 1.0, (1, 1.0)), member(1, 2, 1.0, (2, 1.0))
    assert turns_closed(ClosingRules(), early, late).rewards.constant
    result = turns_closed(TURN, early, late)
    assert of_turns(result) == [[0.0, -0.5], [0.0, 0.5]] and not result.rewards.constant
    assert has_signal(train_group(result.group), PolicyConfig())


def test_who_ended_before_counts_with_its_last_turn() -> None:
    """At the second turn 2 against 1, and at the third, which one alone reached, 1 against 1."""
    result = turns_closed(TURN, member(0, 3, 4.0, (1, 2.0), (2, 1.0)), member(1, 1, 1.0))
    assert of_turns(result) == [[1.5, 0.5, 0.0], [-1.5]]


@given(st.lists(st.tuples(st.integers(1, 4), AMOUNTS), min_size=2, max_size=6), st.sampled_from(KINDS))
def test_paid_at_the_end_alone_every_turn_has_the_episodes(
    members: list[tuple[int, float]], kind: AdvantageKind
) -> None:
    """To the last bit, however many turns each member has, and whatever the kind."""
    episodes = [member(number, turns, reward) for number, (turns, reward) in enumerate(members)]
    whole, turns = (
        turns_closed(ClosingRules(kind), *episodes),
        turns_closed(ClosingRules(kind, credit=Credit()), *episodes),
    )
    for one, other in zip(whole.group.episodes, turns.group.episodes, strict=True):
        expected = one.trajectories[0].advantage
        assert other.trajectories[0].advantage == expected
        assert [span.advantage for span in other.trajectories[0].spans] == [expected] * len(other.trajectories[0].spans)
    trained = [trained_tokens_of(train_group(some.group).sequences).advantage for some in (whole, turns)]
    assert trained[0].tobytes() == trained[1].tobytes() and whole.rewards == turns.rewards


def test_each_agent_has_its_own_payments() -> None:
    paid = (TurnReward("b", 1, 5.0), TurnReward("a", 1, 1.0))
    first = Episode(0, "ok", (said(2, 1.0, "a"), said(2, 5.0, "b")), paid=paid)
    second = Episode(1, "ok", (said(2, 1.0, "a"), said(2, 0.0, "b")), paid=(TurnReward("a", 2, 1.0),))
    assert of_turns(turns_closed(TURN, first, second)) == [[0.0, -0.5, 2.5, 0.0], [0.0, 0.5, -2.5, 0.0]]


def test_turns_are_counted_over_rewritten_histories() -> None:
    """Three replies in three trajectories have the advantages that they have in one."""
    together = turns_closed(TURN, member(0, 3, 3.0, (1, 1.0), (2, 2.0)), member(1, 3, 0.0))
    parts = tuple(said(1, 3.0) for _ in range(3))
    apart = Episode(0, "ok", parts, paid=(TurnReward("agent", 1, 1.0), TurnReward("agent", 2, 2.0)))
    assert (
        of_turns(turns_closed(TURN, apart, member(1, 3, 0.0)))
        == of_turns(together)
        == [[1.5, 1.0, 0.0], [-1.5, -1.0, 0.0]]
    )


def test_a_fork_without_a_name_has_the_whole_episode() -> None:
    """Its replies have no place among those that payments count; they weigh as the episode does."""
    paid = (TurnReward("agent", 1, 1.0),)
    forked = Episode(0, "ok", (said(2, 1.0), said(1, 1.0, fork=True)), paid=paid)
    result = turns_closed(TURN, forked, member(1, 2, 0.0))
    assert of_turns(result) == [[0.5, 0.0, None], [-0.5, 0.0]]
    trained = trained_tokens_of(train_group(result.group).sequences)
    assert trained.advantage.tolist() == [0.5, 0.5, 0.0, 0.0, 0.5, 0.5, -0.5, -0.5, 0.0, 0.0]


def test_overlong_episodes_are_left_out_or_punished() -> None:
    cut = replace(member(2, 2, 9.0, (1, 9.0)), trajectories=(replace(said(2, 9.0), cut=True),))
    pair = (member(0, 2, 3.0, (1, 1.0)), member(1, 2, 1.0))
    masked = turns_closed(replace(TURN, overlong=Overlong("mask")), *pair, cut)
    assert of_turns(masked) == [[1.0, 0.5], [-1.0, -0.5], [None, None]]
    punished = turns_closed(replace(TURN, overlong=Overlong("penalty", 1, 100, 100)), *pair, cut)
    # returns 3, 2; 1, 1; 8, −1, since the penalty comes at the end
    assert of_turns(punished) == [
        [-1.0, pytest.approx(4 / 3)],
        [-3.0, pytest.approx(1 / 3)],
        [4.0, pytest.approx(-5 / 3)],
    ]


def test_an_advantage_that_is_not_finite_is_refused() -> None:
    group = train_group(turns_closed(TURN, member(0, 2, 1.0, (1, 1.0)), member(1, 2, 0.0)).group)
    check_group(group, 10)
    (broken, *_), shape = group.sequences, group.sequences[0].tokens.shape
    for advantages, says in ((np.full(shape, np.nan, np.float32), "not finite"), (np.zeros(2, np.float32), "shape")):
        with pytest.raises(ValueError, match=says):
            check_group(replace(group, sequences=(replace(broken, advantages=advantages),)), 10)


MASK = ClosingRules(overlong=Overlong("mask"))
PENALTY = Overlong("penalty", buffer=4, max_tokens=10, max_episode_tokens=16)


def replied(*turns: int, cut: bool = False, reward: float = 1.0) -> Trajectory:
    """Turns of so many sampled tokens, a prompt token before each."""
    mask = [bit for turn in turns for bit in [0] + [1] * turn]
    starts = np.cumsum([0, *(turn + 1 for turn in turns)])
    spans = tuple(Span(int(start) + 1, int(start) + 1 + turn, 0) for start, turn in zip(starts, turns, strict=False))
    count = len(mask)
    tokens, logprobs = np.arange(count, dtype=np.int32), np.zeros(count, np.float32)
    return Trajectory("agent", tokens, np.array(mask, np.uint8), logprobs, spans, reward, cut=cut)


def closed_by(rules: ClosingRules, *trajectories: Trajectory) -> ClosedGroup:
    return closed(group(*((trajectory,) for trajectory in trajectories)), rules)


@pytest.mark.parametrize(
    ("turns", "penalty"),
    [
        ((1,), 0.0),
        ((6,), 0.0),  # 4 of 10 tokens are left: the whole buffer
        ((7,), -0.25),
        ((8,), -0.5),
        ((10,), -1.0),
        ((6, 6), 0.0),  # the turn has 4 left, the episode 4 of 16
        ((8, 6), -0.5),  # the episode has 2 left
        ((1, 9), -0.75),  # the last turn has 1 left
        ((9, 1), 0.0),  # earlier turns count for the episode alone, and it has 6 left
    ],
)
def test_the_punishment_is_a_line_over_the_buffer(turns: tuple[int, ...], penalty: float) -> None:
    assert PENALTY.penalty([replied(*turns)]) == penalty


def test_a_cut_episode_has_the_whole_punishment() -> None:
    assert PENALTY.penalty([replied(2, cut=True)]) == -1.0


def test_parts_of_a_rewritten_episode_are_punished_once() -> None:
    assert PENALTY.penalty([replied(8), replied(6)]) == -0.5


def test_a_punishment_moves_the_advantage_and_not_the_reward() -> None:
    result = closed_by(ClosingRules(overlong=PENALTY), replied(2), replied(8))
    assert advantages(result) == [[0.25], [-0.25]]  # rewards 1 and 1 − 0.5
    assert (result.rewards.mean, result.rewards.constant) == (1.0, False)


def test_masked_episodes_count_in_no_loss_or_baseline() -> None:
    result = closed_by(MASK, replied(2, reward=1.0), replied(2, reward=0.0), replied(5, reward=0.0, cut=True))
    assert advantages(result) == [[0.5], [-0.5], [0.0]]
    assert result.rewards.mean == pytest.approx(1 / 3)  # the reward is reported as it was
    assert [len(s.tokens) for s in train_group(result.group, overlong=MASK.overlong).sequences] == [3, 3]
    assert len(train_group(result.group).sequences) == 3


def test_a_group_with_nothing_to_compare_has_no_signal() -> None:
    """It must not be filled again: a base that never ends its replies would be sampled for ever."""
    result = closed_by(MASK, replied(2, reward=1.0), replied(5, reward=0.0, cut=True))
    assert advantages(result) == [[0.0], [0.0]] and result.rewards.constant
    assert closed_by(MASK, replied(5, cut=True), replied(6, cut=True)).rewards.constant


def test_only_rewarded_trajectories_with_tokens_train() -> None:
    silent = replace(trajectory(1.0), mask=np.zeros(2, dtype=np.uint8))
    some = group(
        (replace(trajectory(1.0), advantage=0.1), trajectory(2.0, "critic")),
        (trajectory(None), silent),
        (replace(trajectory(0.0), advantage=-0.1),),
    )
    assert [s.advantage for s in train_group(some).sequences] == [0.1, 0.0, -0.1]
    assert train_group(some).number == some.number


def test_a_sequence_knows_its_agents_tokens_per_episode() -> None:
    two = replace(trajectory(1.0), tokens=np.arange(4, dtype=np.int32), mask=np.array([0, 1, 0, 1], dtype=np.uint8))
    some = group((trajectory(1.0), two, trajectory(1.0, "critic")), (trajectory(0.0),))
    assert [s.episode_tokens for s in train_group(some).sequences] == [3, 3, 1, 1]


def test_weights_lie_beside_every_token_that_was_sampled() -> None:
    two = replace(trajectory(1.0), tokens=np.arange(4, dtype=np.int32), mask=np.array([0, 1, 0, 1], dtype=np.uint8))
    some = group((trajectory(1.0), two), (trajectory(None),), (trajectory(0.0),))
    trained = train_group(some)
    assert [int(s.mask.sum()) for s in trained.sequences] == [1, 2, 1]
    spread_out = spread(some, trained, np.array([0.1, 0.2, 0.3, 0.4], np.float16))
    np.testing.assert_array_equal(spread_out, np.array([0.1, 0.2, 0.3, np.nan, 0.4], np.float16))
