"""What becomes of episodes that the length limit ended (DAPO, arXiv 2503.14476, section 3.4)."""

from dataclasses import replace

import numpy as np
import pytest

from marlaas.engine.trainer.advantages import ClosedGroup, ClosingRules, Overlong, close_group, train_group
from marlaas.engine.trajectories import Episode, Group, Span, Trajectory

MASK = ClosingRules(overlong=Overlong("mask"))
PENALTY = Overlong("penalty", buffer=4, max_tokens=10, max_episode_tokens=16)


def said(*turns: int, cut: bool = False, reward: float = 1.0) -> Trajectory:
    """Turns of so many sampled tokens, a prompt token before each."""
    mask = [bit for turn in turns for bit in [0] + [1] * turn]
    starts = np.cumsum([0, *(turn + 1 for turn in turns)])
    spans = tuple(Span(int(start) + 1, int(start) + 1 + turn, 0) for start, turn in zip(starts, turns, strict=False))
    count = len(mask)
    tokens, logprobs = np.arange(count, dtype=np.int32), np.zeros(count, np.float32)
    return Trajectory("agent", tokens, np.array(mask, np.uint8), logprobs, spans, reward, cut=cut)


def closed(rules: ClosingRules, *trajectories: Trajectory) -> ClosedGroup:
    episodes = tuple(Episode(n, "ok", (trajectory,)) for n, trajectory in enumerate(trajectories))
    result = close_group(Group(0, 0, 0, "e", episodes), rules)
    assert isinstance(result, ClosedGroup)
    return result


def advantages(result: ClosedGroup) -> list[float]:
    return [t.advantage for episode in result.group.episodes for t in episode.trajectories]


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
    assert PENALTY.penalty([said(*turns)]) == penalty


def test_a_cut_episode_has_the_whole_punishment() -> None:
    assert PENALTY.penalty([said(2, cut=True)]) == -1.0


def test_parts_of_a_rewritten_episode_are_punished_once() -> None:
    assert PENALTY.penalty([said(8), said(6)]) == -0.5


def test_a_punishment_moves_the_advantage_and_not_the_reward() -> None:
    result = closed(ClosingRules(overlong=PENALTY), said(2), said(8))
    assert advantages(result) == [0.25, -0.25]  # rewards 1 and 1 − 0.5
    assert (result.rewards.mean, result.rewards.constant) == (1.0, False)


def test_masked_episodes_count_in_no_loss_or_baseline() -> None:
    result = closed(MASK, said(2, reward=1.0), said(2, reward=0.0), said(5, reward=0.0, cut=True))
    assert advantages(result) == [0.5, -0.5, 0.0]
    assert result.rewards.mean == pytest.approx(1 / 3)  # the reward is reported as it was
    assert [len(s.tokens) for s in train_group(result.group, overlong=MASK.overlong).sequences] == [3, 3]
    assert len(train_group(result.group).sequences) == 3


def test_a_group_with_nothing_to_compare_has_no_signal() -> None:
    """It must not be filled again: a base that never ends its replies would be sampled for ever."""
    result = closed(MASK, said(2, reward=1.0), said(5, reward=0.0, cut=True))
    assert advantages(result) == [0.0, 0.0] and result.rewards.constant
    assert closed(MASK, said(5, cut=True), said(6, cut=True)).rewards.constant


def test_kept_episodes_are_like_any_other() -> None:
    result = closed(ClosingRules(), said(2, reward=1.0), said(5, reward=0.0, cut=True))
    assert advantages(result) == [0.5, -0.5]


def test_an_episode_without_a_word_is_not_punished() -> None:
    assert PENALTY.penalty([replace(said(), reward=0.0)]) == 0.0
