"""The task view's question reads only what it does not know yet."""

from __future__ import annotations

import pytest

from marlaas.app.lists.lines import Learner
from marlaas.app.questions import TaskAnswer, TaskQuestion
from marlaas.app.reading import opened
from marlaas.engine.home.paths import Home

from ..filling import Filling

ONE = Learner(1)


def test_another_metric_keeps_what_is_known_of_the_others(home: Home, filling: Filling) -> None:
    filling.task(made=3)
    filling.task(made=2)
    with opened(home) as reader:
        first = TaskQuestion(ONE).read(reader, None)
        assert list(first.own.track("reward").steps) == [1, 2, 3]
        second = TaskQuestion(ONE, others=(Learner(2),), known=first).read(reader, None)
        assert second.own.track("reward") is first.own.track("reward"), "nothing came in it: the same arrays"
        third = TaskQuestion(Learner(2), "loss", (ONE,), known=second).read(reader, None)
        assert list(third.own.track("loss").steps) == [1, 2] and list(third.others[ONE].track("loss").steps) == [
            1,
            2,
            3,
        ]
        assert set(third.configs) == {1, 2} and "reward" in third.samples


def test_questions_are_compared_by_what_they_ask() -> None:
    assert TaskQuestion(ONE, known=TaskAnswer(ONE, "loss")) == TaskQuestion(ONE) != TaskQuestion(ONE, "loss")


@pytest.mark.parametrize("metric", ["reward", "held-out", "[/m]"])
def test_a_task_that_is_not_there(home: Home, filling: Filling, metric: str) -> None:
    with opened(home) as reader:
        answer = TaskQuestion(Learner(99), metric, (Learner(98),)).read(reader, None)
    assert not answer.own.track(metric).steps and answer.trajectories == () and answer.ages == {}
