"""When a version rests, and how outcomes are counted: all of it on a clock of the test."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.environments.durations import bucket_of, quantile
from marlaas.engine.environments.health import (
    LONGEST_REST,
    MOST_AFTER_SUCCESS,
    MOST_DEATHS,
    MOST_FAILURES,
    WINDOW,
    Health,
)
from marlaas.engine.environments.outcomes import OutcomeCounts
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.trajectories import Failure

from ...examples import examples

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
    return [health.failed(SUMS, ("train", 0, first + n), BROKE, first + n) for n in range(times)]


def test_deaths_within_the_window_bring_a_rest() -> None:
    record, clock = health()
    assert [record.died(BROKE) for _ in range(MOST_DEATHS - 1)] == [None] * (MOST_DEATHS - 1)
    assert record.deaths == MOST_DEATHS - 1 and record.resting is None
    rest = record.died(BROKE)
    assert rest is not None and rest.line == BROKE.line
    assert rest.message == "ZeroDivisionError; it died 3 times within 60 s; rests for 60 s"
    assert record.resting == record.resting_with(SUMS) == rest
    clock.now += WINDOW
    assert record.resting is None and record.deaths == 0


def test_several_processes_may_die_as_often_as_one_each() -> None:
    record, _ = health()
    assert [record.died(BROKE, processes=4) for _ in range(4 * MOST_DEATHS - 1)] == [None] * (4 * MOST_DEATHS - 1)
    rest = record.died(BROKE, processes=4)
    assert rest is not None and "died 12 times within 60 s" in rest.message


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


def test_after_a_success_it_takes_more_new_instances() -> None:
    record, _ = health()
    assert not record.troubled
    fail(record, MOST_FAILURES - 1)
    assert record.troubled and not record.did_well(SUMS), "it never rested"
    assert not record.troubled
    assert not any(fail(record, MOST_AFTER_SUCCESS - 1, first=100))
    assert fail(record, 1, first=200) != [None]


def test_what_ends_first_is_no_fair_sample() -> None:
    """Of episodes that began together, failures may all end before the first success does."""
    record, _ = health()
    bad = range(1, 64, 5)
    rests = [record.failed(SUMS, ("eval", 0, n), BROKE, n, lambda: 0) for n in bad]
    assert len(bad) > MOST_FAILURES and not any(rests), "the first of all is still being played"
    assert record.failed(SUMS, ("eval", 0, 1), BROKE, 64) is not None, "now that it has ended without a reward"


def plays(seed: int, share: float, at_once: int, most: int) -> tuple[Health, int]:
    """Run instances until it rests, at most ``most`` episodes; a share of them fails. Returns the number of episodes.

    Of those under way the failing ones end first, and instances that failed are played again at any time. The first
    instance goes well, for a share below 1: an environment whose first eight fail cannot be told from one that always
    fails.
    """
    record, draw, clock = Health(lambda: 0.0), random.Random(seed), iter(range(1 << 30))
    bad: dict[int, bool] = {}
    live: list[tuple[int, int]] = []
    known_bad: list[int] = []
    for episode in range(most):
        while len(live) < at_once:
            again = known_bad and draw.random() < 0.5
            instance = draw.choice(known_bad) if again else len(bad)
            bad.setdefault(instance, draw.random() < share and (share == 1.0 or instance > 0))
            live.append((next(clock), instance))
        number, instance = next((one for one in live if bad[one[1]]), live[0])
        live.remove((number, instance))
        if not bad[instance]:
            record.did_well(SUMS)
            continue
        known_bad.append(instance)
        first = partial(min, [number for number, _ in live], default=None)
        if record.failed(SUMS, ("train", 0, instance), BROKE, number, first):
            return record, episode + 1
    return record, most


@given(seed=st.integers(0, 1 << 32), share=st.floats(0.0, 0.5), at_once=st.sampled_from([1, 8, 64, 256]))
def test_a_share_of_bad_instances_is_no_reason_to_rest(seed: int, share: float, at_once: int) -> None:
    record, episodes = plays(seed, share, at_once, most=examples(1_000))
    assert episodes == examples(1_000) and record.resting_with(SUMS) is None


@given(seed=st.integers(0, 1 << 32), at_once=st.sampled_from([1, 2, 8]))
def test_what_always_fails_rests_after_a_few_instances(seed: int, at_once: int) -> None:
    record, _ = plays(seed, 1.0, at_once, most=10_000)
    rest = record.resting_with(SUMS)
    assert rest is not None and f"all of {MOST_FAILURES} instances" in rest.message


BROKEN = EpisodeOutcome("error", failure=Failure("KeyError: 'x'", "shop.py", 7), seconds=0.1)


def test_what_is_put_back_adds_to_newer_outcomes() -> None:
    counts = OutcomeCounts()
    counts.add("shop/buy", "v1", BROKEN)
    refused = counts.take()
    newer = EpisodeOutcome("timeout", failure=Failure("it took too long"))
    counts.add("shop/buy", "v1", newer)
    counts.put_back(refused)
    counted = counts.take()
    assert {one.status: one.episodes for one in counted.outcomes} == {"error": 1, "timeout": 1}
    assert counted.failures[0].failure == newer.failure


@given(st.floats(min_value=0.002, max_value=4000.0))
def test_a_time_comes_back_to_within_a_tenth(seconds: float) -> None:
    assert quantile({bucket_of(seconds): 7}, 0.5) == pytest.approx(seconds, rel=0.1)
