"""What a step takes, in the words of someone who plans an evening around it."""

import pytest
from hypothesis import given, strategies as st

from marlaas.app.words.machine import judge, spoken


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0 seconds"),
        (0.0312, "0.031 seconds"),
        (0.999, "1 second"),
        (59, "59 seconds"),
        (89, "89 seconds"),
        (95, "1.6 minutes"),
        (540, "9 minutes"),
        (32400, "9 hours"),
        (200_000, "2.3 days"),
        (1e7, "120 days"),
    ],
)
def test_times_have_two_figures_and_one_unit(seconds: float, said: str) -> None:
    assert spoken(seconds) == said


def test_a_slow_machine_is_told_what_a_night_brings() -> None:
    verdict = judge(540, 60)
    assert verdict.word == "slow"
    assert "about 9 minutes a step on this CPU: 9 hours for 60." in verdict.text


@given(st.floats(0, 1e8), st.floats(0, 1e8))
def test_a_slower_step_is_never_judged_better(one: float, other: float) -> None:
    order = ("fit", "slow", "unfit")
    one, other = sorted((one, other))
    assert order.index(judge(one, 60).word) <= order.index(judge(other, 60).word)
