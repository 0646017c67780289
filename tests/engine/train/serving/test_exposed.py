"""What a policy waits for its versions, from moments that are given."""

from __future__ import annotations

import math

import pytest

from marlaas.engine.train.publishing import ExposedTime, unserved


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("began", "ended", "served", "seconds"),
    [
        (0.0, 9.0, 5.0, 3.0),  # from the commit, at 2, until it is served
        (3.0, 9.0, 5.0, 2.0),  # the group waits only since 3
        (0.0, 4.0, math.inf, 2.0),  # not served yet
        (6.0, 9.0, 5.0, 0.0),  # it was served before
        (0.0, 1.0, math.inf, 0.0),  # it was not committed yet: the group waited for the step
    ],
)
def test_only_what_is_committed_and_not_served_counts(
    began: float, ended: float, served: float, seconds: float
) -> None:
    assert unserved(began, ended, 2.0, served) == pytest.approx(seconds)


def test_both_waits_are_counted_from_step_to_step() -> None:
    clock = Clock()
    exposed = ExposedTime(clock)
    exposed.held_up(0.0)
    with exposed.step():
        clock.now = 1.5
    exposed.committed()
    clock.now = 2.0
    exposed.held_up(1.0)
    clock.now = 4.0
    exposed.served()
    clock.now = 5.0
    exposed.held_up(2.0)
    assert exposed.take() == {"publish_wait_seconds": 1.5, "begin_wait_seconds": pytest.approx(0.5 + 2.0)}
    assert exposed.take() == {"publish_wait_seconds": 0.0, "begin_wait_seconds": 0.0}
