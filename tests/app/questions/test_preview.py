"""The queue's question about the line under the cursor reads little, and only what is new."""

from __future__ import annotations

import pytest

from marlaas.app.lists.lines import Learner
from marlaas.app.questions import PreviewAnswer, PreviewQuestion
from marlaas.app.reading import opened
from marlaas.engine.home.paths import Home

from ..filling import Filling
from ..filling_evaluation import fill_evaluation

ONE, TWO = Learner(1), Learner(2)


def test_curves_are_kept_from_line_to_line(home: Home, filling: Filling) -> None:
    filling.task(made=3)
    filling.task(made=2)
    with opened(home) as reader:
        first = PreviewQuestion((ONE,)).read(reader, None)
        both = PreviewQuestion((TWO, ONE), known=first).read(reader, None)
        assert list(both.curves) == [TWO, ONE]
        assert both.curves[ONE].track("reward") is first.curves[ONE].track("reward")
        assert both.rollout is not None and both.rollout.task == 2 and both.samples == {}
        wide = PreviewQuestion((ONE,), samples=True).read(reader, both)
        assert {"entropy", "reward"} <= set(wide.samples) and wide.recent["entropy"] == pytest.approx(0.74)


def test_questions_are_compared_by_what_they_ask() -> None:
    assert PreviewQuestion((ONE,), known=PreviewAnswer()) == PreviewQuestion((ONE,)) != PreviewQuestion((ONE,), True)
    assert PreviewQuestion((ONE,)) != PreviewQuestion((TWO,))


def test_an_evaluation_has_its_versions(home: Home) -> None:
    fill_evaluation(home.database)
    with opened(home) as reader:
        answer = PreviewQuestion((Learner(2, "1@best"),)).read(reader, None)
    scores = {name: None if row is None else row.score for name, row in answer.versions.items()}
    assert scores == {"1@best": 0.75, "1@3": 0.25, "base": None}


def test_nobody_and_a_task_that_is_gone(home: Home, filling: Filling) -> None:
    with opened(home) as reader:
        assert PreviewQuestion(()).read(reader, None) == PreviewAnswer()
        answer = PreviewQuestion((Learner(99),), samples=True).read(reader, None)
    assert answer.rollout is None and not answer.samples and not answer.curves[Learner(99)].track("reward").steps
