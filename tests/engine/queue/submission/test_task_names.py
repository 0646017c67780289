"""A task is meant by its number, or by a name that no other task has."""

from __future__ import annotations

import pytest

from marlaas.engine.errors import ConfigError, UnknownTask
from marlaas.engine.queue.submission.references import task_number
from marlaas.engine.store.rows import KnownTask

HOME = [
    KnownTask(1, "lab", "first run", "", 1.0),
    KnownTask(2, "lab", "7", "", 2.0),
    KnownTask(3, "bio", "warm-up", "", 3.0),
    KnownTask(4, "lab", "warm-up", "", 4.0),
    KnownTask(5, "lab", "sums [seed=1]", "sums", 5.0),
    KnownTask(6, "lab", "sums [seed=2]", "sums", 5.0),
    KnownTask(7, "lab", "long", "", 6.0),
]


@pytest.mark.parametrize(
    ("said", "number"),
    [(1, 1), ("first run", 1), ("lab/first run", 1), ("bio/warm-up", 3), ("sums [seed=2]", 6), (7, 7), ("7", 2)],
)
def test_a_number_or_a_name(said: int | str, number: int) -> None:
    assert task_number(said, HOME) == number


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (8, "There is no task 8. `marlaas list`"),
        ("frist run", "There is no task 'frist run'. Did you mean 'first run'? `marlaas list`"),
        ("nothing like it", "There is no task 'nothing like it'. `marlaas list` shows the tasks."),
        ("sums", "'sums' is a sweep, not a task. Give one of its tasks, 5, 6; verbs that take several"),
        ("", "There is no task ''."),
    ],
)
def test_what_is_no_task(said: int | str, sentence: str) -> None:
    with pytest.raises(UnknownTask) as caught:
        task_number(said, HOME)
    assert str(caught.value).startswith(sentence)


def test_a_name_of_several_is_refused_with_their_numbers() -> None:
    with pytest.raises(ConfigError) as caught:
        task_number("warm-up", HOME)
    assert str(caught.value) == "Several tasks are named 'warm-up': 3, 4. Give a number: 4 is the newest."
    many = [KnownTask(number, "lab", "again", "", 1.0) for number in range(1, 31)]
    with pytest.raises(ConfigError, match="9, 10 and 20 more"):
        task_number("again", many)
