"""Words about devices, nodes, builds and how fit the machine is."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, strategies as st

from marlaas.app.text.machine import (
    judge,
    llama_note,
    remarks,
)
from marlaas.engine.devices.software import LlamaBuild
from marlaas.engine.store.queries.machine import NodeRow

# Cards in words.


# Nodes in words.

ADA = NodeRow(
    *("a1", "ada", "10.0.0.5", True, True, False, "", 16, 10**10),
    *(("gpu 0 H1",), ("gpu 1 is left alone: bob holds it.",), 0.25, "Python 3.12.3", ("rollout", "training"), 5.0),
)


def test_what_is_wrong_with_a_node_is_said() -> None:
    assert list(remarks(ADA)) == ["ada: gpu 1 is left alone: bob holds it."]
    wrong = replace(ADA, left_out=(), refused="torch is older.", clock=-600.0)
    assert [text.partition(":")[0] for text in remarks(wrong)] == [
        "ada is not used",
        "The clock of ada is 10 minutes behind this machine's",
    ]


# The quiet line about llama.cpp: how long it takes, that it is there, or why not and where the log is.

BROKEN = LlamaBuild("failed", 8.0, 1000.0, "There is no C++ compiler.", "/src/.venv-llama.log")


def test_a_failure_says_why_and_where_the_log_is() -> None:
    said = llama_note(BROKEN, 1010.0, False)
    assert said == "llama.cpp could not be compiled (log /src/.venv-llama.log): There is no C++ compiler."


# What a step takes, in the words of someone who plans an evening around it.


def test_a_slow_machine_is_told_what_a_night_brings() -> None:
    verdict = judge(540, 60)
    assert verdict.word == "slow"
    assert "about 9 minutes a step on this CPU: 9 hours for 60." in verdict.text


@given(st.floats(0, 1e8), st.floats(0, 1e8))
def test_a_slower_step_is_never_judged_better(one: float, other: float) -> None:
    order = ("fit", "slow", "unfit")
    one, other = sorted((one, other))
    assert order.index(judge(one, 60).word) <= order.index(judge(other, 60).word)
