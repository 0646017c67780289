"""Sharing a call among replicas loses nothing, doubles nothing, and balances tokens."""

from hypothesis import given, strategies as st

from marlaas.engine.trainer.protocol import TrainGroup
from marlaas.engine.trainer.torch_trainer import shares

from .decoder.random_models import random_groups

calls = st.lists(st.tuples(st.integers(0, 999), st.integers(0, 4), st.integers(1, 8)), min_size=1, max_size=4)


def tokens(groups: list[TrainGroup]) -> int:
    return sum(len(sequence.tokens) for group in groups for sequence in group.sequences)


@given(calls, st.integers(1, 5))
def test_every_group_has_one_replica(calls: list[tuple[int, int, int]], replicas: int) -> None:
    work = [random_groups(seed, groups, members, 9) for seed, groups, members in calls]
    found = shares(work, replicas, worth=0)
    assert len(found) == replicas and all(len(share) == len(work) for share in found)
    assert found == shares(work, replicas, worth=0)
    for policy, groups in enumerate(work):
        for group in groups:
            own = [other for share in found for other in share[policy] if other.number == group.number]
            assert own == [group]


@given(calls, st.integers(2, 4))
def test_no_replica_has_much_more_than_another(calls: list[tuple[int, int, int]], replicas: int) -> None:
    work = [random_groups(seed, groups, members, 9) for seed, groups, members in calls]
    loads = [sum(tokens(list(groups)) for groups in share) for share in shares(work, replicas, worth=0)]
    assert max(loads) - min(loads) <= max((tokens([group]) for groups in work for group in groups), default=0)


def test_a_small_call_stays_on_the_primary() -> None:
    work = [random_groups(0, 3, 4, 9)]
    first, second = shares(work, 2, worth=1_000)
    assert list(first[0]) == work[0] and second == [()]
