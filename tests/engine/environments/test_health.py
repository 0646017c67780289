"""When a version rests, for how long, and whom that concerns: all of it on a clock of the test's own."""

from __future__ import annotations

from dataclasses import dataclass

from marlaas.engine.environments.health import LONGEST_REST, MOST_DEATHS, MOST_FAILURES, WINDOW, Health
from marlaas.engine.trajectories import Failure

SUMS = ("sums", '{"digits": 2}')
BROKE = Failure("ZeroDivisionError", "sums.py", 7)


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def health() -> tuple[Health, Clock]:
    clock = Clock()
    return Health(clock), clock


def fail(health: Health, times: int, first: int = 0) -> list[Failure | None]:
    return [health.failed(SUMS, ("train", 0, first + n), BROKE) for n in range(times)]


def test_deaths_within_the_window_bring_a_rest() -> None:
    record, clock = health()
    assert [record.died(BROKE) for _ in range(MOST_DEATHS - 1)] == [None] * (MOST_DEATHS - 1)
    assert record.deaths == MOST_DEATHS - 1 and record.resting is None
    rest = record.died(BROKE)
    assert rest is not None and "died 3 times within 60 s" in rest.message and rest.line == BROKE.line
    assert record.resting == record.resting_with(SUMS) == rest
    clock.now += WINDOW
    assert record.resting is None and record.deaths == 0


def test_deaths_far_apart_bring_none() -> None:
    record, clock = health()
    for _ in range(10 * MOST_DEATHS):
        assert record.died(BROKE) is None
        clock.now += WINDOW / (MOST_DEATHS - 1) + 1


def test_a_rest_that_did_not_help_is_followed_by_a_longer_one() -> None:
    record, clock = health()
    fail(record, MOST_FAILURES)
    lengths = []
    for number in range(12):
        began = clock.now
        while record.resting_with(SUMS):
            clock.now += WINDOW / 4
        lengths.append(clock.now - began)
        assert fail(record, 1, first=number) != [None], "one more failure is enough"
    assert lengths[:3] == [WINDOW, 2 * WINDOW, 4 * WINDOW] and lengths[-1] == LONGEST_REST


def test_the_members_of_one_group_count_once() -> None:
    record, _ = health()
    assert not any(fail(record, 1)[0] for _ in range(50))
    assert [rest is not None for rest in fail(record, MOST_FAILURES)] == [False] * (MOST_FAILURES - 1) + [True]


def test_what_goes_well_ends_the_row() -> None:
    record, _ = health()
    assert not record.troubled
    fail(record, MOST_FAILURES - 1)
    assert record.troubled and not record.did_well(SUMS), "it never rested"
    assert not record.troubled
    assert not any(fail(record, MOST_FAILURES - 1))


def test_other_parameters_and_environments_are_not_concerned() -> None:
    record, clock = health()
    others = [("sums", '{"digits": 1}'), ("words", SUMS[1])]
    fail(record, MOST_FAILURES)
    assert [record.resting_with(other) for other in others] == [None, None]
    assert not any(record.did_well(other) for other in others)
    rest = record.failing("sums")
    assert rest is not None and "sums failed on 8 instances in a row and rests for 60 s" in rest.message
    assert record.failing("words") is None
    clock.now += WINDOW
    assert record.resting_with(SUMS) is None and record.failing("sums") == rest, "it is told until something goes well"
    assert record.did_well(SUMS) and record.failing("sums") is None


def test_earlier_failures_do_not_lengthen_a_rest() -> None:
    record, clock = health()
    fail(record, MOST_FAILURES)
    assert not any(fail(record, 100, first=100))
    clock.now += WINDOW
    assert record.resting_with(SUMS) is None
