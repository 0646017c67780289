"""When the replies are to blame for failures: found soon where they are, and hardly ever where they are not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings, strategies as st

from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.rollout.episodes import Played
from marlaas.engine.run.groups.members import PLAYS, Member
from marlaas.engine.run.groups.survivors import ENOUGH, MOST, MOST_LINES, Line, Plays, Survivors, factor, place_of
from marlaas.engine.trajectories import Episode, Failure

from ....examples import examples

OK = EpisodeOutcome("ok", {"agent": 1.0})
FAILED = EpisodeOutcome("error", failure=Failure("ValueError: no number", "grader.py", 31))
ELSEWHERE = EpisodeOutcome("error", failure=Failure("KeyError: 'x'", "other.py", 3))
PLACE = ("grader.py", 31)
PATTERNS = [(OK,), (FAILED, OK), (FAILED, FAILED, OK), (FAILED, FAILED, FAILED)]


def member(ends: Sequence[EpisodeOutcome]) -> Member:
    return Member(Played(Episode(0, ends[-1].status, ()), {}, None, ends[-1]), tuple(ends[:-1]))


def plays(share: float, rng: random.Random) -> tuple[EpisodeOutcome, ...]:
    """The plays of a member, each of which fails with this probability."""
    ends: list[EpisodeOutcome] = []
    while len(ends) < PLAYS and (not ends or ends[-1] is not OK):
        ends.append(FAILED if rng.random() < share else OK)
    return tuple(ends)


def found(groups: Iterator[list[tuple[EpisodeOutcome, ...]]]) -> tuple[int, Line] | None:
    """After how many groups a line is found, and the line."""
    survivors = Survivors()
    for number, group in enumerate(groups, 1):
        for line in survivors.see([member(ends) for ends in group]):
            return number, line
    return None


def by_reply(share: float, rng: random.Random, groups: int) -> Iterator[list[tuple[EpisodeOutcome, ...]]]:
    """Groups of eight in which a share of the replies makes the environment fail, each time that it is played."""
    for _ in range(groups):
        yield [plays(float(rng.random() < share), rng) for _ in range(8)]


def by_chance(
    share: Callable[[random.Random], float], rng: random.Random, groups: int
) -> Iterator[list[tuple[EpisodeOutcome, ...]]]:
    """Groups of eight whose plays fail independently, with a probability that is drawn for each group."""
    for _ in range(groups):
        own = share(rng)
        yield [plays(own, rng) for _ in range(8)]


@pytest.mark.parametrize(("share", "most"), [(0.5, 16), (0.2, 16), (0.05, 64), (0.02, 320)])
def test_replies_that_make_it_fail_are_found(share: float, most: int) -> None:
    for seed in range(20):
        result = found(by_reply(share, random.Random(seed), most))
        assert result is not None and result[0] >= math.log(ENOUGH) / math.log(MOST), f"seed {seed}"
        assert place_of(FAILED) == PLACE == (result[1].failure.file, result[1].failure.line)


@settings(max_examples=examples(50))
@given(
    size=st.integers(2, 4),
    p=st.floats(0.0, 1.0),
    failed=st.integers(0, 50),
    passed=st.integers(0, 500),
)
def test_under_chance_a_factor_is_at_most_one(size: int, p: float, failed: int, passed: int) -> None:
    """Exactly, over all that the plays of a group can come to: what the rate of false alarms follows from."""
    expected = 0.0
    for members in product(PATTERNS, repeat=size):
        fails = sum(end is FAILED for ends in members for end in ends)
        passes = sum(end is OK for ends in members for end in ends)
        expected += p**fails * (1 - p) ** passes * factor(Plays.of(members, PLACE), failed, passed)
    assert expected <= 1 + 1e-9  # rounding of some 256 terms


@pytest.mark.parametrize(
    "share",
    [lambda rng: 0.02, lambda rng: 0.2, lambda rng: 0.6, lambda rng: rng.random() ** 3, lambda rng: rng.choice((0, 1))],
    ids=["rarely", "one in five", "mostly", "by instance", "bad instances"],
)
def test_chance_is_hardly_ever_blamed_on_replies(share: Callable[[random.Random], float]) -> None:
    """At most one task in 1,000 is promised: in 300 of 60 groups each, one alarm would have a probability of 26 %, and
    three one of 0.4 %."""
    alarms = sum(found(by_chance(share, random.Random(seed), 60)) is not None for seed in range(300))
    assert alarms <= 2


def test_a_line_is_told_once_and_counts_its_members() -> None:
    survivors, lines = Survivors(), list[Line]()
    for group in by_reply(0.3, random.Random(0), 40):
        lines += survivors.see([member(ends) for ends in group])
    assert len(lines) == 1 and survivors.members == 320
    assert 0 < lines[0].failed < lines[0].passed


def test_a_plugin_that_names_ever_new_lines_fills_no_memory() -> None:
    survivors = Survivors()
    for number in range(3 * MOST_LINES):
        end = replace(FAILED, failure=Failure("x", "grader.py", number))
        survivors.see([member([OK])] * 7 + [member([end] * 3)])
    assert len(survivors._lines) == MOST_LINES


def test_a_failure_at_another_line_is_another_matter() -> None:
    survivors, lines = Survivors(), list[Line]()
    group = [(OK,)] * 6 + [(FAILED,) * 3, (ELSEWHERE,) * 3]
    for _ in range(20):
        lines += survivors.see([member(ends) for ends in group])
    assert sorted(line.failure.file for line in lines) == ["grader.py", "other.py"]


@pytest.mark.parametrize("end", [replace(FAILED, died=True), replace(FAILED, overloaded=True), EpisodeOutcome("error")])
def test_deaths_and_overload_blame_no_line(end: EpisodeOutcome) -> None:
    group: list[tuple[EpisodeOutcome, ...]] = [*[(OK,)] * 7, (end,) * 3]
    assert found(iter([group] * 50)) is None
