"""What stands in place of a curve."""

from __future__ import annotations

import pytest

from marlaas.app.words.awaiting import awaiting
from marlaas.engine.fleet import clock
from marlaas.engine.store import FirstStep

from ..filling import NOW
from ..rows import task


def test_the_first_step_comes_at_the_pace_of_its_episodes() -> None:
    row = task(1, started=NOW - 60)
    assert (
        awaiting(row, FirstStep(12, 16), "reward", NOW)
        == f"First step at about {clock(NOW + 20, NOW)}: 12 of 16 episodes."
    )
    assert awaiting(row, FirstStep(0, 16), "reward", NOW) == "First step: 0 of 16 episodes."
    assert awaiting(task(1, started=NOW - 1), FirstStep(1, 16), "reward", NOW) == "First step: 1 of 16 episodes."


@pytest.mark.parametrize(
    ("state", "words"),
    [("queued", "Not begun: it waits for its turn."), ("paused", "No step was made."), ("blocked", "")],
)
def test_what_does_not_run_says_so(state: str, words: str) -> None:
    assert awaiting(task(1, state=state), FirstStep(3, 16), "reward", NOW) == words


def test_without_an_engine_it_waits_for_one() -> None:
    assert "S starts one" in awaiting(task(1), FirstStep(3, 16), "reward", NOW, serving=False)


def test_later_a_metric_alone_may_be_missing() -> None:
    assert awaiting(task(1), None, "held-out", NOW) == "No value of held-out yet."
