"""Lines and columns of the queue and of versions."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from marlaas.app.lists.filters import parse
from marlaas.app.lists.lines import (
    NARROW,
    TINY,
    Arrangement,
    Choice,
    Course,
    Learner,
    Spread,
    arrange,
    cell_text,
    chosen_versions,
    filling,
    layout,
    learner,
    learners,
    spread,
    standing,
    summary,
    table_cells,
    version_columns,
    version_row,
    version_totals,
)
from marlaas.app.text.format import cells
from marlaas.engine.store.queries.learning import KeptVersion
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import ACTIVE, FINISHED, FindingRow, PolicyRow, TaskRow, VersionRow

from ...test_hostile_text import harmless
from ..filling import Filling
from ..rows import task

# The lines of the queue: nothing is lost, whatever the order, and sweeps and tenants fold.

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


# The queue's columns fill the terminal and never more.


def test_columns_fit_at_every_width() -> None:
    for width in range(1, 401):
        assert table_cells(layout(width)) <= max(width - 4, table_cells(TINY)), width


def test_names_grow_with_the_terminal() -> None:
    assert {c.name: c.width for c in layout(100)}["task"] > {c.name: c.width for c in layout(80)}["task"]


def test_wide_terminals_show_more_columns_not_wider_ones() -> None:
    shown = {width: [column.name for column in layout(width)] for width in (60, 80, 120, 160, 200)}
    assert "tenant" not in shown[60] and "held-out" in shown[60] and "rewards" in shown[80]
    assert {"best", "time", "why"} <= set(shown[160])
    assert {"stale", "tokens/s", "tokens", "left"} <= set(shown[200])
    assert shown[200][8:] == ["held-out", "best", "stale", "tokens", "tokens/s", "time", "left", "why"]
    for narrower, wider in pairwise(layout(width) for width in range(120, 240)):
        assert {column.name for column in narrower} <= {column.name for column in wider}
    widths = {column.name: column.width for column in layout(200)}
    assert widths["task"] <= 31 and widths["tenant"] <= 18, "names do not become wide gaps"


@pytest.mark.parametrize(("steps", "text"), [(60, "7/60"), (400_000, "0 %")])
def test_steps_that_have_no_room_are_a_share(filling: Filling, steps: int, text: str) -> None:
    filling.task("running", made=7)
    with Reader(filling.path) as reader:
        row = replace(reader.tasks()[0], steps=steps)
    column = next(column for column in NARROW if column.name == "step")
    assert cell_text(arrange([row], Arrangement())[0], Course(), False, column) == text


# What learns: a task, or each policy that it trains.


def test_a_task_alone_and_a_task_of_several() -> None:
    alone = task(3)
    assert learners(alone) == {Learner(3): alone} and learner(alone, "whoever") == Learner(3)
    policies = (PolicyRow("old", ("a",), frozen="base"), PolicyRow("adder", ("b",), step=7), PolicyRow("judge", ("c",)))
    several = task(4, policies=policies)
    assert {own.policy: row.step for own, row in learners(several).items()} == {"adder": 7, "judge": 0}
    assert learner(several, "judge") == Learner(4, "judge")
    assert learner(several, "old") == learner(several, "") == Learner(4, "adder"), "what is not trained learns nothing"
    assert (Learner(4, "adder").words, Learner(3).words) == ("task 4, adder", "task 3")


# Which versions are shown, in which order, and how a line fits.


def kept(task: int, number: int, score: float | None = None, size: int = 1_000_000, label: str = "") -> KeptVersion:
    row = VersionRow(
        100 * task + number, task, "lab", f"name {task}", "policy", number, f"task-{task}/policy-v{number}-i1",
        "committed", label, score, "0" * 16, "x", size, 1000.0 - number,
    )  # fmt: skip
    return KeptVersion(row, task, "done", "arithmetic", 60)


VERSIONS = [
    kept(2, 9, 0.5, label="last"),
    kept(2, 4, 0.8, 3_000_000, label="best"),
    kept(1, 5, None),
    kept(1, 3, float("nan")),
]


def shown(choice: Choice) -> list[tuple[int, int]]:
    return [(each.row.task, each.row.number) for each in chosen_versions(VERSIONS, choice)]


def texts(width: int) -> list[dict[str, str]]:
    """The cells of the rows of all versions, by column."""
    columns = version_columns(width)
    names = [column.name for column in columns]
    totals = version_totals(VERSIONS, "task")
    rows = [version_row(kept, columns, 1100.0, totals) for kept in VERSIONS]
    return [dict(zip(names, (cell.text for cell in row.cells), strict=True)) for row in rows]


def test_the_first_line_of_a_task_has_its_sum() -> None:
    assert [row["together"] for row in texts(100)] == ["4 MB", "", "2 MB", ""]
    assert [bool(row["task"]) for row in texts(100)] == [True, False, True, False]
    assert summary(VERSIONS, VERSIONS) == "4 versions of 2 tasks, 6 MB"


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        (Choice(sort="score"), [(2, 4), (2, 9), (1, 5), (1, 3)]),
        (Choice(sort="size"), [(2, 4), (2, 9), (1, 5), (1, 3)]),
        (Choice(sort="age"), [(2, 9), (1, 5), (2, 4), (1, 3)]),
        (Choice(task=1), [(1, 5), (1, 3)]),
        (Choice(words=("lab", "final")), [(2, 9)]),
        (Choice(words=("2@4",)), [(2, 4)]),
        (Choice(words=("nothing",)), []),
    ],
)
def test_sorted_and_filtered(choice: Choice, wanted: list[tuple[int, int]]) -> None:
    assert shown(choice) == wanted


def test_what_is_left_out_is_counted() -> None:
    some = chosen_versions(VERSIONS, Choice(task=1))
    assert summary(some, VERSIONS) == "2 versions of 1 task, 2 MB; all 4 take 6 MB"


@given(st.integers(1, 200), st.text(max_size=40), st.floats(0, 1e9))
def test_rows_of_versions_have_their_width_whatever_they_say(width: int, name: str, seconds: float) -> None:
    version = kept(1, 5, 0.5)
    version = replace(version, row=replace(version.row, task_name=name, tenant=name, policy=name, label=name))
    columns = version_columns(width)
    row = version_row(version, columns, 1000 + seconds, version_totals([version], "task"))
    for column, cell in zip(columns, row.cells, strict=True):
        text = filling(column, cell.text)
        assert cells(text) == column.width + 1 and harmless(text) and "\n" not in text


def test_the_columns_of_versions_fit_and_leave_room_for_the_task() -> None:
    for width in range(20, 200):
        columns = version_columns(width)
        assert table_cells(columns) <= width and columns[0].name == "task" and columns[0].width >= 11, width
    assert "resumable" in texts(76)[0] and "resumable" not in texts(40)[0]
