"""How vLLM tells log-probabilities: what was asked for first, the likeliest behind it. Runs without vLLM."""

from types import SimpleNamespace

import numpy as np

from marlaas.engine.samplers.vllm.sampler import _likeliest, _one_of_each

TOLD = SimpleNamespace(
    start_indices=[0, 0, 3],
    end_indices=[0, 3, 6],  # the first token of a prompt has none
    token_ids=[7, 9, 7, 3, 3, 4],
    logprobs=[-1.0, -0.5, -1.0, -0.1, -0.1, -2.5],
)


def test_the_likeliest_are_behind_what_was_asked_for() -> None:
    assert _one_of_each(TOLD, -3) == [-1.0, -0.1]
    found = _likeliest(TOLD, 2)
    assert found.tokens.tolist() == [[9, 7], [3, 4]] and found.tokens.dtype == np.int32
    np.testing.assert_allclose(found.logprobs, [[-0.5, -1.0], [-0.1, -2.5]])


def test_a_target_is_the_last() -> None:
    assert _one_of_each(SimpleNamespace(start_indices=[0], end_indices=[2], logprobs=[-3.0, -0.7]), -1) == [-0.7]


def test_nothing_told_is_nothing() -> None:
    assert _one_of_each(None, -1) == []
    assert _likeliest(None, 3).tokens.shape == (0, 3)
