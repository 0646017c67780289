from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, strategies as st

from marlaas.engine.spec.losses import AdvantageKind
from marlaas.engine.trainer.advantages import ClosedGroup, ClosingRules, TooFewRewards, close_group, group_advantages
from marlaas.engine.trajectories import Episode, EpisodeStatus, Group, Span, Trajectory

REWARDS = st.floats(-1e6, 1e6)


def trajectory(reward: float | None, agent: str = "solver") -> Trajectory:
    tokens, mask = np.array([1, 2], dtype=np.int32), np.array([0, 1], dtype=np.uint8)
    return Trajectory(agent, tokens, mask, np.array([0, -1], dtype=np.float32), (Span(1, 2, 0),), reward)


def group(*episodes: tuple[Trajectory, ...]) -> Group:
    return Group(3, 0, 0, "v1", tuple(Episode(n, "ok", trajectories) for n, trajectories in enumerate(episodes)))


def solo(*rewards: float | None) -> Group:
    return group(*((trajectory(reward),) for reward in rewards))


def closed(some: Group) -> ClosedGroup:
    result = close_group(some)
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


def test_a_member_without_reward_neither_counts_nor_trains() -> None:
    result = closed(solo(1.0, None, 0.0))
    assert advantages(result) == [[0.5], [0.0], [-0.5]]
    assert result.rewards.count == 2


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


def test_forking_an_episode_does_not_move_the_baseline() -> None:
    result = closed(group((trajectory(1.0), trajectory(1.0), trajectory(1.0)), (trajectory(0.0),)))
    assert advantages(result) == [[0.5, 0.5, 0.5], [-0.5]]
    assert closed(group((trajectory(0.1),) * 3, (trajectory(0.1),))).rewards.constant


def test_a_rewritten_episode_counts_once_by_its_tokens() -> None:
    """Three turns in three trajectories: the same rewards, and each sampled token has the same advantage."""
    apart = closed(group((trajectory(1.0),) * 3, (trajectory(0.0),), (trajectory(0.2),)))
    together = closed(solo(1.0, 0.0, 0.2))
    assert apart.rewards == together.rewards
    assert [own[0] for own in advantages(apart)] == [own[0] for own in advantages(together)]
    assert len(set(advantages(apart)[0])) == 1


@given(st.lists(st.tuples(REWARDS, st.integers(1, 5)), min_size=2, max_size=6))
def test_how_often_an_episode_began_anew_changes_no_advantage(members: list[tuple[float, int]]) -> None:
    apart = closed(group(*((trajectory(reward),) * parts for reward, parts in members)))
    together = closed(solo(*(reward for reward, _ in members)))
    assert apart.rewards == together.rewards
    for own, (alone,), (_, parts) in zip(advantages(apart), advantages(together), members, strict=True):
        assert own == [alone] * parts


@pytest.mark.parametrize("reward", [0.1, 1 / 3, 1e6 + 0.7])
def test_equal_rewards_give_exact_zeros(reward: float) -> None:
    result = closed(solo(*[reward] * 7))
    assert advantages(result) == [[0.0]] * 7
    assert result.rewards.constant


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
@given(rewards=st.lists(REWARDS, min_size=2, max_size=9))
def test_every_kind_orders_episodes_as_their_rewards(kind: AdvantageKind, rewards: list[float]) -> None:
    values = group_advantages(rewards, kind)
    assert (np.diff(values[np.argsort(rewards)]) >= 0).all()
    assert np.isfinite(values).all()
    assert kind != "standard" or abs(values).max() <= len(rewards) ** 0.5  # the largest z-score of n numbers is below


@pytest.mark.parametrize("kind", get_args(AdvantageKind))
@pytest.mark.parametrize("reward", [0.1, 1e6 + 0.7])
def test_equal_rewards_are_exact_zeros_in_every_kind(kind: AdvantageKind, reward: float) -> None:
    result = close_group(solo(*[reward] * 7), ClosingRules(kind))
    assert isinstance(result, ClosedGroup) and result.rewards.constant
    assert advantages(result) == [[0.0]] * 7


@given(st.lists(REWARDS, min_size=2, max_size=16), REWARDS)
def test_advantages_sum_to_zero_and_ignore_a_constant(rewards: list[float], shift: float) -> None:
    values = group_advantages(rewards)
    scale = 1 + max(map(abs, rewards)) + abs(shift)
    assert abs(values.sum()) <= 1e-9 * scale
    assert np.allclose(values, group_advantages([r + shift for r in rewards]), atol=1e-9 * scale)


def test_everything_else_of_the_group_stays() -> None:
    before = solo(1.0, 0.0)
    after = closed(before).group
    assert (after.number, after.index, after.version, after.environment_version) == (3, 0, 0, "v1")
    for old, new in zip(before.episodes, after.episodes, strict=True):
        assert new.trajectories[0].tokens is old.trajectories[0].tokens
