"""Which versions are shown, in which order, and how a line fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from marlaas.app.lists.version_lines import COLUMNS, Choice, age, head, lines, summary, text
from marlaas.app.words.format import cells
from marlaas.engine.store.queries.learning import KeptVersion
from marlaas.engine.store.rows import VersionRow


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
    return [(each.row.task, each.row.number) for each in lines(VERSIONS, choice)]


def test_the_first_line_of_a_task_has_its_sum() -> None:
    made = lines(VERSIONS, Choice())
    assert [each.total for each in made] == [4_000_000, 0, 2_000_000, 0]
    assert "4 MB" in text(made[0], 100, 1100.0, "task") and "name 2" not in text(made[1], 100, 1100.0, "task")
    assert summary(made, VERSIONS) == "4 versions of 2 tasks, 6 MB"


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
    assert summary(lines(VERSIONS, Choice(task=1)), VERSIONS) == "2 versions of 1 task, 2 MB; all 4 take 6 MB"


@given(st.integers(1, 200), st.text(max_size=40), st.floats(0, 1e9))
def test_lines_have_their_width_whatever_they_say(width: int, name: str, seconds: float) -> None:
    version = kept(1, 5, 0.5)
    version = replace(version, row=replace(version.row, task_name=name))
    for each in (text(lines([version], Choice())[0], width, 1000 + seconds, "task"), head(width)):
        assert cells(each) <= max(width, 10) and "\n" not in each


def test_the_columns_leave_room_for_the_task_at_80() -> None:
    assert sum(wide + 1 for _, wide in COLUMNS) + 12 <= 76


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "0 s"), (59, "59 s"), (61, "1 min"), (7300, "2 h")])
def test_ages_have_one_unit(seconds: float, words: str) -> None:
    assert age(seconds) == words
