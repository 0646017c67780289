"""What is remembered of a run."""

from __future__ import annotations

import math

from marlaas.engine.store.versions import StepSeen
from marlaas.engine.train.watch import LATELY, WINDOW, Course

SPOKE = {"tokens": 9.0}


def grown(steps: int) -> Course:
    course = Course()
    for step in range(1, steps + 1):
        course.see(step, "e1", SPOKE | {"reward": float(step), "unknown": 1.0})
    return course


def test_the_first_and_the_last_steps_are_kept() -> None:
    course = grown(LATELY + 100)
    assert course.first("reward") == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert course.last("reward")[-1] == course.newest == LATELY + 100
    assert course.seen == LATELY and len(course.values("reward")) == LATELY + WINDOW
    assert course.values("unknown") == []


def test_a_change_of_the_environment_begins_anew() -> None:
    course = grown(20)
    course.see(21, "e2", SPOKE | {"reward": 0.5})
    assert (course.first("reward"), course.last("reward"), course.values("reward")) == ([0.5], [], [0.5])


def test_silent_steps_and_what_is_no_number_are_left_out() -> None:
    course = grown(3)
    course.see(4, "e1", {"tokens": 0.0, "reward": 7.0})
    course.see(5, "e1", SPOKE | {"reward": math.nan})
    assert course.newest == 5 and course.values("reward") == [1.0, 2.0, 3.0]


def test_metrics_that_come_later_are_added() -> None:
    course = grown(8)
    course.add(7, {"moved": 0.25, "gap_mean": math.inf})
    course.add(99, {"moved": 9.0})
    assert course.values("moved") == [0.25] and course.last("moved") == []


def test_windows() -> None:
    course = grown(23)
    assert course.last("reward") == [19.0, 20.0, 21.0, 22.0, 23.0]
    assert course.last("reward", before=WINDOW) == [14.0, 15.0, 16.0, 17.0, 18.0]
    assert course.around("reward", 9) == [5.0, 6.0, 7.0, 8.0, 9.0]
    assert course.around("reward", 2) == course.first("reward")
    assert course.blocks("reward") == [6.0, 11.0, 16.0, 21.0]


def test_what_the_store_has_gives_the_same_course() -> None:
    rows = [StepSeen(step, "e1", SPOKE | {"reward": float(step)}) for step in range(1, 40)]
    assert Course.of(rows) == grown(39)
