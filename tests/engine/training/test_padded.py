import numpy as np
from hypothesis import given, strategies as st

from marlaas.engine.training.model import count_trained
from marlaas.engine.training.peft_model import padded_batches
from marlaas.engine.training.protocol import TrainGroup

from .samples import group, sequence


def test_a_group_is_padded_to_its_last_needed_token() -> None:
    some = TrainGroup(0, (sequence([5, 6, 7], 1, 0.5, -1.0), sequence([8, 9], 1, -0.5, -2.0)))
    (batch,) = padded_batches([some], 100)
    assert batch.inputs.tolist() == [[5, 6], [8, 0]]
    assert batch.trained.sequence.tolist() == [0, 0, 1]
    assert batch.columns.tolist() == [0, 1, 0]
    assert batch.trained.targets.tolist() == [6, 7, 9]
    assert batch.trained.behaviour.tolist() == [-1.0, -1.0, -2.0]
    assert batch.trained.advantage.tolist() == [0.5, 0.5, -0.5]


def test_nothing_to_train_makes_no_batch() -> None:
    assert list(padded_batches([TrainGroup(0, ())], 100)) == []
    assert list(padded_batches([TrainGroup(0, (sequence([1, 2], 2, 0.5),))], 100)) == []


@given(st.integers(0, 50), st.integers(1, 9), st.integers(1, 60))
def test_cutting_loses_nothing_and_respects_the_limit(seed: int, members: int, max_tokens: int) -> None:
    some = group(seed, members)
    batches = list(padded_batches([some], max_tokens))
    expected = np.concatenate([s.tokens[s.mask == 1] for s in some.sequences])
    assert np.concatenate([b.trained.targets for b in batches]).tolist() == expected.tolist()
    assert count_trained(some) == len(expected)
    for batch in batches:
        if len(batch.inputs) > 1:
            assert batch.inputs.size <= max_tokens
