from dataclasses import replace

import numpy as np

from marlaas.engine.trainer.advantages import spread, train_group

from .test_advantages import group, trajectory


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
