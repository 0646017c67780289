"""When the replies are to blame for failures: found soon where they are, and hardly ever where they are not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings, strategies as st

from marlaas.engine.environments.protocol import EpisodeOutcome, FinishedEpisode
from marlaas.engine.train.failures import (
    ENOUGH,
    MOST_FACTOR,
    MOST_LINES,
    Line,
    Plays,
    Survivors,
    factor,
    place_of,
    said_by,
)
from marlaas.engine.train.groups import RUNS
from marlaas.engine.trajectories import Episode, Failure, Transcript

from ....examples import examples

OK = EpisodeOutcome("ok", {"agent": 1.0})
FAILED = EpisodeOutcome("error", failure=Failure("ValueError: no number", "grader.py", 31))
ELSEWHERE = EpisodeOutcome("error", failure=Failure("KeyError: 'x'", "other.py", 3))
PLACE = ("grader.py", 31)
PATTERNS = [(OK,), (FAILED, OK), (FAILED, FAILED, OK), (FAILED, FAILED, FAILED)]


Group = list[tuple[EpisodeOutcome, ...]]


def member(ends: Sequence[EpisodeOutcome], *said: str) -> FinishedEpisode:
    texts = {(0, "agent", 0): Transcript(tuple(turn for text in said for turn in (("user", "?"), ("assistant", text))))}
    return FinishedEpisode(Episode(0, ends[-1].status, ()), texts, None, ends[-1], earlier=tuple(ends[:-1]))


def plays(share: float, rng: random.Random) -> tuple[EpisodeOutcome, ...]:
    """The plays of a member, each of which fails with this probability."""
    ends: list[EpisodeOutcome] = []
    while len(ends) < RUNS and (not ends or ends[-1] is not OK):
        ends.append(FAILED if rng.random() < share else OK)
    return tuple(ends)


def different(group: Group) -> list[FinishedEpisode]:
    """Its members, each of which has said something else."""
    return [member(ends, str(number)) for number, ends in enumerate(group)]


def found(groups: Iterable[Group | list[FinishedEpisode]]) -> tuple[int, Line] | None:
    """After how many groups a line is found, and the line."""
    survivors = Survivors()
    for number, group in enumerate(groups, 1):
        members = [one for one in group if isinstance(one, FinishedEpisode)]
        for line in survivors.see(members or different([one for one in group if not isinstance(one, FinishedEpisode)])):
            return number, line
    return None


def alike(share: float, rng: random.Random, groups: int, by_chance: bool = False) -> Iterator[list[FinishedEpisode]]:
    """Groups of eight that say one of three things each, the first of them mostly, as a trained policy does.

    Plays fail by the reply, or else ``by_chance``.
    """
    for _ in range(groups):
        bad = [rng.random() < share for _ in range(3)]
        replies = rng.choices(range(3), (6, 1, 1), k=8)
        yield [member(plays(share if by_chance else float(bad[one]), rng), str(one)) for one in replies]


def by_reply(share: float, rng: random.Random, groups: int) -> Iterator[Group]:
    """Groups of eight in which a share of the replies makes the environment fail, each time that it is played."""
    for _ in range(groups):
        yield [plays(float(rng.random() < share), rng) for _ in range(8)]


def by_chance(share: Callable[[random.Random], float], rng: random.Random, groups: int) -> Iterator[Group]:
    """Groups of eight whose plays fail independently, with a probability that is drawn for each group."""
    for _ in range(groups):
        own = share(rng)
        yield [plays(own, rng) for _ in range(8)]


@pytest.mark.properties
@pytest.mark.parametrize(("share", "most"), [(0.5, 16), (0.2, 16), (0.05, 64), (0.02, 320)])
def test_replies_that_make_it_fail_are_found(share: float, most: int) -> None:
    for seed in range(examples(4)):
        result = found(by_reply(share, random.Random(seed), most))
        assert result is not None and result[0] >= math.log(ENOUGH) / math.log(MOST_FACTOR), f"seed {seed}"
        assert place_of(FAILED) == PLACE == (result[1].failure.file, result[1].failure.line)


@pytest.mark.properties
@pytest.mark.parametrize(("share", "most"), [(0.3, 160), (0.2, 160), (0.05, 480)])
def test_they_are_found_where_most_replies_are_alike(share: float, most: int) -> None:
    """Of a group whose members all say what fails, chance explains everything, and that says little for it."""
    for seed in range(examples(3)):
        assert found(alike(share, random.Random(seed), most)) is not None, f"seed {seed}"
    alarms = sum(
        found(alike(share, random.Random(seed), 60, by_chance=True)) is not None for seed in range(examples(5))
    )
    assert alarms <= 1, "as few as of different replies"


def test_who_went_on_after_the_same_words_gave_the_same_reply() -> None:
    """A service that is away at the second turn cuts some members short: no reply is to blame."""
    cut, whole = member([FAILED] * 3, "left"), [member([OK], "left", str(number)) for number in range(4)]
    other = [member([OK], "right", str(number)) for number in range(3)]
    assert Plays.of([(said_by(one), one.outcomes) for one in (cut, *whole, *other)], PLACE) == Plays(
        1, 3, 3, 4, 3, (5,)
    )
    assert found([[cut, *whole, *other]] * 100) is None
    assert found([[cut, *other]] * 100) is not None


@settings(max_examples=examples(50))
@given(
    replies=st.lists(st.integers(0, 3), min_size=2, max_size=4),
    p=st.floats(0.0, 1.0),
    failed=st.integers(0, 50),
    passed=st.integers(0, 500),
)
def test_under_chance_a_factor_is_at_most_one(replies: list[int], p: float, failed: int, passed: int) -> None:
    """Exactly, over all that the plays of a group can come to: what the rate of false alarms follows from."""
    expected = 0.0
    said = [{("agent", 0): (str(reply),)} for reply in replies]
    for members in product(PATTERNS, repeat=len(replies)):
        fails = sum(end is FAILED for ends in members for end in ends)
        passes = sum(end is OK for ends in members for end in ends)
        group = Plays.of([*zip(said, members, strict=True)], PLACE)
        expected += p**fails * (1 - p) ** passes * factor(group, failed, passed)
    assert expected <= 1 + 1e-9  # rounding of some 256 terms


@pytest.mark.properties
@pytest.mark.parametrize(
    "share",
    [lambda rng: 0.02, lambda rng: 0.2, lambda rng: 0.6, lambda rng: rng.random() ** 3, lambda rng: rng.choice((0, 1))],
    ids=["rarely", "one in five", "mostly", "by instance", "bad instances"],
)
def test_chance_is_hardly_ever_blamed_on_replies(share: Callable[[random.Random], float]) -> None:
    """At most one task in 1,000 is promised: in 300 of 60 groups each, one alarm would have a probability of 26 %, and
    three one of 0.4 %. Every day a tenth of them is drawn."""
    alarms = sum(found(by_chance(share, random.Random(seed), 60)) is not None for seed in range(examples(30)))
    assert alarms <= 2


def test_a_line_is_told_once_and_counts_its_members() -> None:
    survivors, lines = Survivors(), list[Line]()
    for group in by_reply(0.3, random.Random(0), 40):
        lines += survivors.see(different(group))
    assert len(lines) == 1 and survivors.members == 320
    assert 0 < lines[0].failed < lines[0].passed and lines[0].failed == lines[0].episodes


def test_a_plugin_that_names_ever_new_lines_fills_no_memory() -> None:
    survivors = Survivors()
    for number in range(3 * MOST_LINES):
        end = replace(FAILED, failure=Failure("x", "grader.py", number))
        survivors.see([member([OK], "good")] * 7 + [member([end] * 3, "bad")])
    assert len(survivors._lines) == MOST_LINES


def test_a_failure_at_another_line_is_another_matter() -> None:
    survivors, lines = Survivors(), list[Line]()
    group: Group = [*[(OK,)] * 6, (FAILED,) * 3, (ELSEWHERE,) * 3]
    for _ in range(20):
        lines += survivors.see(different(group))
    assert sorted(line.failure.file for line in lines) == ["grader.py", "other.py"]


@pytest.mark.parametrize("end", [replace(FAILED, died=True), replace(FAILED, overloaded=True), EpisodeOutcome("error")])
def test_deaths_and_overload_blame_no_line(end: EpisodeOutcome) -> None:
    group: Group = [*[(OK,)] * 7, (end,) * 3]
    assert found([group] * 50) is None
