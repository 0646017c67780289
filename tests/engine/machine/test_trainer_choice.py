"""Who serves a policy: it stays unless another trainer is free so much sooner that moving its state pays."""

from hypothesis import given, strategies as st

from marlaas.engine.machine.trainers import PAYS, Busy, chosen

trainers = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d"]), st.builds(Busy, st.floats(0, 100), st.integers(0, 9)), min_size=1
)


@given(trainers, st.data(), st.floats(0.0, 10.0))
def test_a_policy_moves_only_where_it_pays_and_to_the_least_work(
    busy: dict[str, Busy], data: st.DataObject, move: float
) -> None:
    home = data.draw(st.sampled_from(sorted(busy)))
    there = chosen(home, busy, move)
    least = min(each.work for each in busy.values())
    if there != home:
        assert busy[there].work == least and busy[home].work - least > PAYS * move
    else:
        assert busy[home].work - least <= PAYS * move


@given(trainers)
def test_a_new_policy_goes_where_the_least_work_is(busy: dict[str, Busy]) -> None:
    there = busy[chosen("", busy, 1.0)]
    assert all((there.work, there.policies) <= (each.work, each.policies) for each in busy.values())


def test_where_nobody_has_work_new_policies_are_spread() -> None:
    assert chosen("", {"a": Busy(0.0, 2), "b": Busy(0.0, 1)}, 1.0) == "b"


def test_of_equals_it_stays() -> None:
    assert chosen("b", {"a": Busy(3.0, 0), "b": Busy(3.0, 9)}, 0.0) == "b"
