"""The lines of the queue: nothing is lost, whatever the order, and sweeps and tenants fold."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, strategies as st

from marlaas.app.lists.filters import parse
from marlaas.app.lists.queue_lines import Arrangement, Spread, arrange, spread, standing
from marlaas.engine.store.rows import ACTIVE, FINISHED, FindingRow, PolicyRow, TaskRow

from ..rows import task

STATES = (*ACTIVE, *FINISHED)


rows = st.lists(
    st.builds(
        task,
        st.integers(1, 10**6),
        tenant=st.sampled_from(["bio", "lab", ""]),
        state=st.sampled_from(STATES),
        family=st.sampled_from(["", "a", "b"]),
        reward=st.none() | st.floats(),
        created=st.sampled_from([1.0, 2.0]),
    ),
    max_size=30,
    unique_by=lambda row: row.id,
)
arrangements = st.builds(
    Arrangement,
    query=st.sampled_from([parse(""), parse("state:running"), parse("tenant:bio reward>0")]),
    sort=st.sampled_from(["", "reward", "tenant", "id"]),
    backwards=st.booleans(),
    by_tenant=st.booleans(),
)


@given(rows, arrangements)
def test_every_task_is_shown_once_when_all_is_unfolded(tasks: list[TaskRow], how: Arrangement) -> None:
    folded = {line.key for line in arrange(tasks, how) if line.key.startswith("sweep:")}
    lines = arrange(tasks, replace(how, toggled=frozenset(folded)))
    singles = [line.single.id for line in lines if line.single]
    wanted = {row.id for row in arrange_flat(tasks, how)}
    assert sorted(singles) == sorted(wanted)
    assert len({line.key for line in lines}) == len(lines)


@given(rows, arrangements)
def test_every_task_is_in_exactly_one_top_line(tasks: list[TaskRow], how: Arrangement) -> None:
    top = [row.id for line in arrange(tasks, how) if line.depth == 0 for row in line.tasks]
    assert sorted(top) == sorted(row.id for row in arrange_flat(tasks, how))


def arrange_flat(tasks: list[TaskRow], how: Arrangement) -> list[TaskRow]:
    plain = [replace(row, family="") for row in tasks]
    return [line.tasks[0] for line in arrange(plain, replace(how, by_tenant=False))]


def test_a_sweep_is_one_line_until_it_is_unfolded() -> None:
    tasks = [task(1), task(2, family="s"), task(3, family="s"), task(4, family="s", created=9.0)]
    lines = arrange(tasks, Arrangement())
    assert [line.title or line.tasks[0].id for line in lines] == [1, "s", 4]
    unfolded = arrange(tasks, Arrangement(toggled=frozenset([lines[1].key])))
    assert [(line.depth, len(line.tasks)) for line in unfolded] == [(0, 1), (0, 2), (1, 1), (1, 1), (0, 1)]


def test_tenants_are_lines_with_their_tasks_below() -> None:
    tasks = [task(1), task(2, tenant="lab"), task(3)]
    lines = arrange(tasks, Arrangement(by_tenant=True))
    assert [line.key for line in lines] == ["tenant:bio", "1", "3", "tenant:lab", "2"]
    folded = arrange(tasks, Arrangement(by_tenant=True, toggled=frozenset(["tenant:bio"])))
    assert [line.key for line in folded] == ["tenant:bio", "tenant:lab", "2"]


def test_spread_leaves_out_what_is_no_number() -> None:
    assert spread([0.25, None, 0.75, float("nan"), float("inf")]) == Spread(0.5, 0.25, 0.75)
    assert spread([None]) is None


def test_standing_counts_states() -> None:
    assert standing([task(1), task(2), task(3, state="queued")]) == "○1 ●2"


def test_standing_counts_what_goes_wrong() -> None:
    wrong = task(2, findings=(FindingRow("policy", 3, "one_reply"),))
    over = task(4, findings=(FindingRow("policy", 3, "one_reply", holds=False),))
    assert standing([task(1), wrong, task(3, state="queued"), over]) == "○1 ●3 !1"


def test_each_policy_of_a_task_has_a_line_that_folds() -> None:
    policies = (PolicyRow("adder", ("a",), reward=0.5), PolicyRow("old", ("b",), frozen="base"))
    several, alone = task(4, policies=policies), task(3)
    lines = arrange([several, alone], Arrangement())
    assert [(line.key, line.depth, line.unfolded) for line in lines] == [
        ("3", 0, False), ("4", 0, True), ("4/adder", 1, False), ("4/old", 1, False),
    ]  # fmt: skip
    assert [line.folds for line in lines] == ["", "4", "4", "4"] and lines[2].single is several
    folded = arrange([several, alone], Arrangement(toggled=frozenset({"4"})))
    assert [line.key for line in folded] == ["3", "4"] and not folded[1].unfolded
    nested = arrange([several, alone], Arrangement(by_tenant=True))
    assert [(line.key, line.depth) for line in nested][2:] == [("4", 1), ("4/adder", 2), ("4/old", 2)]
    assert nested[0].folds == "tenant:bio"
