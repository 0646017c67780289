"""The ledger: nothing that was used is lost or counted twice."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.fairness.line import ENVIRONMENT, ROLLOUT, TRAINING, Ledger, Usage, rollout_cost


def test_what_is_used_comes_out_once() -> None:
    ledger = Ledger()
    ledger.training(1, 100, 0.5)
    ledger.training(1, 20, 0.25)
    ledger.environment(2, 3.0)
    assert ledger.take() == [Usage(1, TRAINING, 120, 0.75), Usage(2, ENVIRONMENT, 0, 3.0)]
    assert ledger.take() == []
    assert ledger.busy == {TRAINING: 0.75, ENVIRONMENT: 3.0}


def test_what_could_not_be_written_waits_for_the_next_time() -> None:
    ledger = Ledger()
    ledger.training(1, 100, 0.5)
    taken = ledger.take()
    ledger.training(1, 1, 0.5)
    ledger.put_back(taken)
    assert ledger.take() == [Usage(1, TRAINING, 101, 1.0)]
    assert ledger.busy[TRAINING] == 1.0


def test_seconds_of_the_rollout_worker_go_by_what_tokens_cost() -> None:
    ledger = Ledger()
    ledger.rollout(1, prefilled=20, sampled=10)
    ledger.rollout(2, prefilled=0, sampled=30)
    ledger.rollout_seconds(1.0)
    first, second = ledger.take()
    assert (first.task, first.stage, first.tokens) == (1, ROLLOUT, 30)
    assert (second.task, second.stage, second.tokens) == (2, ROLLOUT, 30)
    assert first.seconds / second.seconds == pytest.approx(rollout_cost(20, 10) / rollout_cost(0, 30))
    assert first.seconds + second.seconds == pytest.approx(1.0)


def test_seconds_before_the_first_turn_has_ended_wait_for_it() -> None:
    ledger = Ledger()
    ledger.rollout_seconds(2.0)
    assert ledger.take() == []
    ledger.rollout(1, 5, 5)
    ledger.rollout_seconds(1.0)
    assert ledger.take() == [Usage(1, ROLLOUT, 10, 3.0)]
    assert ledger.busy[ROLLOUT] == 3.0


def test_seconds_after_an_aborted_turn_wait_for_the_next() -> None:
    ledger = Ledger()
    ledger.rollout(1, prefilled=0, sampled=0)
    ledger.rollout_seconds(2.0)
    ledger.rollout(2, prefilled=0, sampled=5)
    ledger.rollout_seconds(1.0)
    assert {usage.task: usage.seconds for usage in ledger.take()} == {1: 0.0, 2: 3.0}


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 50), st.integers(1, 50), st.booleans())))
def test_all_seconds_are_somebodys(turns: list[tuple[int, int, int, bool]]) -> None:
    ledger = Ledger()
    seconds = 0.0
    for task, prefilled, sampled, beat in turns:
        ledger.rollout(task, prefilled, sampled)
        if beat:
            ledger.rollout_seconds(1.0)
            seconds = ledger.busy[ROLLOUT]
    usages = ledger.take()
    assert sum(usage.seconds for usage in usages) == pytest.approx(seconds)
    assert sum(usage.tokens for usage in usages) == sum(turn[1] + turn[2] for turn in turns)


def test_each_policys_mix_is_per_episode_of_the_task() -> None:
    ledger = Ledger()
    for _ in range(2):
        for _ in range(10):
            ledger.rollout(1, prefilled=6, sampled=2, policy="solver")
        ledger.rollout(1, prefilled=50, sampled=1, policy="critic")
        ledger.environment(1, 0.0)
    mixes = ledger.mixes[1]
    assert (mixes["solver"].of_one, mixes["critic"].of_one) == ((60.0, 20.0), (50.0, 1.0))
