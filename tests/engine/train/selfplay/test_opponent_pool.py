"""Pools of what a policy was: who is in them, and who plays next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.errors import AdapterError
from marlaas.engine.spec.task import NamedPolicySpec
from marlaas.engine.store.versions import Version
from marlaas.engine.train.selfplay import OpponentPool, in_pool, weights

POOL = NamedPolicySpec(pool="solver", every=5, size=3)


def version(number: int) -> Version:
    return Version(number, 1, number, f"v{number}", "sum", f"/v{number}", 1)


def opponent_pool(
    numbers: Sequence[int], scores: Mapping[int, float] | None = None, pick: str = "recent"
) -> OpponentPool:
    policy = NamedPolicySpec(pool="solver", every=5, size=3, pick=pick)
    kept = [version(number) for number in sorted(numbers, reverse=True)]
    return OpponentPool("old", policy, 0, lambda: kept, lambda: scores or {})


def drawn(pool: OpponentPool) -> list[int]:
    return [pool.draw(number, 0).number for number in range(400)]


@pytest.mark.parametrize(
    ("numbers", "pool"), [([0], (0,)), ([0, 3, 4], (0,)), ([0, 5, 10, 11, 15, 20], (10, 15, 20)), ([], ())]
)
def test_versions_enter_and_the_oldest_leaves(numbers: list[int], pool: tuple[int, ...]) -> None:
    assert in_pool(numbers, POOL) == pool


@given(
    st.lists(st.integers(0, 100), min_size=1, max_size=9, unique=True),
    st.sampled_from(["recent", "uniform", "score"]),
    st.dictionaries(st.integers(0, 100), st.floats(-10, 10)),
)
def test_odds_add_up_and_nobody_is_left_out(numbers: list[int], pick: str, scores: dict[int, float]) -> None:
    odds = weights(sorted(numbers), pick, scores)
    assert sum(odds) == pytest.approx(1.0) and min(odds) > 0


def test_the_young_play_more_often_or_the_strong_or_all_alike() -> None:
    count = {pick: drawn(opponent_pool([0, 5, 10], {0: 0.9, 5: 0.1}, pick)) for pick in ("recent", "uniform", "score")}
    shares = {pick: [played.count(number) / len(played) for number in (0, 5, 10)] for pick, played in count.items()}
    assert shares["recent"] == pytest.approx([1 / 7, 2 / 7, 4 / 7], abs=0.08)
    assert shares["uniform"] == pytest.approx([1 / 3] * 3, abs=0.08)
    assert shares["score"][0] > shares["score"][2] > shares["score"][1], "who was not measured is in the middle"
    assert count["recent"] == drawn(opponent_pool([0, 5, 10])), "a pure function of the group and the pool"


def test_the_newest_plays_where_none_entered() -> None:
    assert set(drawn(opponent_pool([3, 4]))) == {4}
    with pytest.raises(AdapterError, match="The pool 'old' is empty: no version of 'solver' is on the disk"):
        opponent_pool([]).draw(0, 0)
