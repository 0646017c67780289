"""Which rollouts a report shows."""

from __future__ import annotations

from hypothesis import given, strategies as st

from marlaas.app.report.telling import Choice, Played, chosen

REWARDS = st.lists(st.sampled_from((0.0, 0.25, 0.5, 1.0)), min_size=1, max_size=4).map(tuple)
MEASURED = st.dictionaries(st.integers(0, 9), REWARDS, max_size=10)


def evaluated(rewards: dict[int, tuple[float, ...]], step: int) -> dict[int, Played]:
    return {instance: Played(100 * step + instance, instance, step, paid) for instance, paid in rewards.items()}


def test_what_changed_most_comes_first() -> None:
    first = evaluated({0: (0.0,), 1: (1.0,), 2: (0.0,), 3: (1.0,)}, 0)
    best = evaluated({0: (1.0,), 1: (0.0,), 2: (0.0,), 3: (1.0,)}, 9)
    found = chosen([first, best], [], [])
    assert [(one.group, one.reward) for one in found] == [(0, 0), (900, 1), (1, 1), (901, 0), (2, 0), (902, 0)]
    assert found[0].why == "Most was gained on prompt 0: at step 0" and found[1].why.endswith("at step 9")
    assert found[2].why.startswith("Most was lost on prompt 1") and "Prompt 2 is not solved" in found[4].why


def test_both_ends_of_the_widest_group() -> None:
    groups = [Played(1, 5, 3, (0.5, 0.5)), Played(2, 6, 3, (0.0, 1.0)), Played(3, 7, 3, (0.2, 0.6))]
    assert [(one.group, one.reward) for one in chosen([], groups, [])] == [(2, 1.0), (2, 0.0)]
    assert [one.reward for one in chosen([], groups[:1], [])] == [0.5]


def test_nothing_and_failures() -> None:
    assert chosen([], [], []) == []
    assert chosen([], [], [7]) == [Choice("An episode that failed", conversation=7)]


@given(MEASURED, MEASURED, st.lists(REWARDS, max_size=3))
def test_each_choice_can_be_found(
    first: dict[int, tuple[float, ...]], best: dict[int, tuple[float, ...]], trained: list[tuple[float, ...]]
) -> None:
    measured = [evaluated(first, 0), evaluated(best, 9)]
    groups = [Played(5000 + place, place, 9, rewards) for place, rewards in enumerate(trained)]
    known = {one.group: one.rewards for one in (*measured[0].values(), *measured[1].values(), *groups)}
    found = chosen(measured, groups, [])
    assert all(one.reward in known[one.group] for one in found)
    assert len({(one.group, one.reward) for one in found}) == len(found)
