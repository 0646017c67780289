"""The engine view's question: what is known is not read again, and nothing is missed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marlaas.app.operations import this_machine
from marlaas.app.questions import EngineAnswer, EngineQuestion
from marlaas.app.reading import opened
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries import machine as timeline

from ..filling import NOW
from ..filling_machine import fill_machine, same_machine


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    same_machine(monkeypatch)


@pytest.mark.parametrize("grain", [1, 5, 60])
def test_reading_on_gives_what_reading_anew_would(home: Home, grain: int) -> None:
    filling = fill_machine(home)
    question = EngineQuestion(home, grain, 30)
    with opened(home) as reader:
        answer = question.read(reader, None)
        for age in range(5):
            for stage in timeline.STAGES:
                row = {"incarnation": 3, "stage": stage, "device": "cpu", "begun": NOW + 1.1 * age, "wall": 1.1}
                filling.insert("stages", **row, busy=0.3, ended=age)
            answer = question.read(reader, answer)
            anew = question.read(reader, None)
            oldest = answer.until - 30 * grain
            assert answer.until == pytest.approx(NOW + 1.1 * (age + 1))
            assert [one for one in answer.spans if one.begun >= oldest] == [
                one for one in anew.spans if one.begun >= oldest
            ]
            assert replace(answer, spans=(), counted=0.0) == replace(anew, spans=(), counted=0.0)
            assert answer.now["rollout"].ended == age


def test_files_are_counted_now_and_then(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    filling = fill_machine(home)
    counts: list[Home] = []
    monkeypatch.setattr(this_machine, "disk", counts.append)
    question, answer = EngineQuestion(home, 1, 10), EngineAnswer()
    with opened(home) as reader:
        answer = question.read(reader, None)
        for second in range(1, 21):
            filling.insert(
                "stages", incarnation=3, stage="engine", device="cpu", begun=NOW + second, wall=1.0, busy=0.1
            )
            answer = question.read(reader, answer)
    assert len(counts) == 3


def test_a_home_that_never_ran(home: Home, filling: object) -> None:
    with opened(home) as reader:
        answer = EngineQuestion(home, 1, 10).read(reader, None)
    assert (answer.until, answer.spans, answer.minute, answer.starts) == (0.0, (), {}, ())
