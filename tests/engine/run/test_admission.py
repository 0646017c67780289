"""The staleness bound holds by construction, for every order in which things can happen."""

from __future__ import annotations

from hypothesis import given, strategies as st

from marlaas.engine.run.admission import may_begin, staleness, step_groups


@given(
    groups_per_step=st.integers(1, 5),
    max_staleness=st.integers(0, 4),
    choices=st.lists(st.integers(0, 2**30), min_size=1, max_size=200),
)
def test_no_trained_group_is_older_than_the_bound(groups_per_step: int, max_staleness: int, choices: list[int]) -> None:
    version, admitted = 0, 0
    running: dict[int, int] = {}  # number -> version at which it began
    complete: dict[int, int] = {}
    for choice in choices:
        while may_begin(admitted, version, groups_per_step, max_staleness):
            running[admitted] = version
            admitted += 1
        assert running or complete, "nothing can go on"
        if running:
            number = sorted(running)[choice % len(running)]
            complete[number] = running.pop(number)
        wanted = step_groups(version, groups_per_step)
        if all(number in complete for number in wanted):
            ages = [staleness(number, complete.pop(number), groups_per_step) for number in wanted]
            assert all(0 <= age <= max_staleness for age in ages)
            version += 1


@given(st.integers(0, 100), st.integers(1, 8))
def test_staleness_zero_is_the_synchronous_algorithm(version: int, groups_per_step: int) -> None:
    allowed = [n for n in range((version + 3) * groups_per_step) if may_begin(n, version, groups_per_step, 0)]
    assert allowed[-1] == step_groups(version, groups_per_step)[-1]


@given(st.integers(0, 50), st.integers(1, 8))
def test_steps_share_no_group_and_leave_none_out(step: int, groups_per_step: int) -> None:
    assert step_groups(step, groups_per_step).stop == step_groups(step + 1, groups_per_step).start
