"""Which samples are run again, how often, which of them close a group, and what each policy gets of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.environments.protocol import FAILED, EpisodeOutcome, FinishedEpisode
from marlaas.engine.train.groups import (
    DEATHS,
    OVERLOADED,
    RUNS,
    close_groups,
    episode_of,
    runs_again,
)
from marlaas.engine.trainer.advantages import ClosedGroup, ClosingRules, TooFewRewards, close_group, train_group
from marlaas.engine.trajectories import Episode

from ...trainer.test_advantages import group, trajectory

OK = EpisodeOutcome("ok", {"agent": 1.0})
SKIP = EpisodeOutcome("skip")
ERROR = EpisodeOutcome("error")
DIED = EpisodeOutcome("error", died=True)
SWAMPED = EpisodeOutcome("timeout", overloaded=True)
FAILURES = (ERROR, EpisodeOutcome("timeout"), EpisodeOutcome("cancelled"), DIED, SWAMPED)
ENDS = st.lists(st.sampled_from((OK, SKIP, *FAILURES)), min_size=1, max_size=30)


def runs(ends: Sequence[EpisodeOutcome]) -> list[EpisodeOutcome]:
    """The outcomes of a sample whose runs end so, the last end for ever."""
    outcomes = [ends[0]]
    while runs_again(outcomes):
        outcomes.append(ends[min(len(outcomes), len(ends) - 1)])
    return outcomes


@pytest.mark.parametrize(
    ("ends", "count", "lost"),
    [
        ([OK], 1, False),
        ([SKIP], 1, False),
        ([ERROR, OK], 2, False),
        ([ERROR, ERROR, OK], 3, False),
        ([ERROR], RUNS, True),
        ([DIED, OK], 2, False),
        ([DIED], DEATHS, True),
        ([SWAMPED, SWAMPED, ERROR, SWAMPED, ERROR, OK], 6, False),
        ([SWAMPED], OVERLOADED, True),
        ([replace(SWAMPED, died=True)], OVERLOADED, True),
        ([SWAMPED, SWAMPED, ERROR], 2 + RUNS, True),
    ],
)
def test_how_often_a_sample_is_run(ends: list[EpisodeOutcome], count: int, lost: bool) -> None:
    outcomes = runs(ends)
    assert len(outcomes) == count and (outcomes[-1].status in FAILED) is lost


@given(ENDS)
def test_a_sample_ends_with_its_first_good_run(ends: list[EpisodeOutcome]) -> None:
    outcomes = runs(ends)
    assert len(outcomes) <= RUNS + OVERLOADED
    assert all(end in FAILURES for end in outcomes[:-1]), "a run that ended well was made again"


@given(ENDS)
def test_a_further_failure_never_earns_a_run(ends: list[EpisodeOutcome]) -> None:
    failing = [end for end in ends if end in FAILURES]
    earned = [runs_again(failing[:number]) for number in range(1, len(failing) + 1)]
    assert all(before or not after for before, after in pairwise(earned))


def finished(number: int, end: EpisodeOutcome, **more: Any) -> FinishedEpisode:
    return FinishedEpisode(Episode(number, end.status, ()), {}, None, end, **more)


SOME = group(
    (replace(trajectory(1.0), advantage=0.1), trajectory(2.0, "critic")),
    (trajectory(None),),
    (replace(trajectory(0.0), advantage=-0.1),),
)


@pytest.mark.parametrize(
    ("agents", "advantages"),
    [({"solver"}, [0.1, -0.1]), ({"critic"}, [0.0]), (None, [0.1, 0.0, -0.1]), ({"nobody"}, [])],
)
def test_a_policy_is_trained_on_what_its_agents_wrote(agents: set[str] | None, advantages: list[float]) -> None:
    part = replace(SOME, episodes=tuple(episode_of(episode, agents) for episode in SOME.episodes))
    assert [sequence.advantage for sequence in train_group(part).sequences] == advantages


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=2, max_size=6), st.integers(2, 6))
def test_groups_close_for_all_or_are_made_again(samples: list[tuple[bool, bool, bool]], least: int) -> None:
    """Whoever did not speak gets an empty group; an attempt that lost too many samples gives nobody one."""
    episodes = tuple(
        Episode(
            place,
            "ok" if well else "error",
            tuple(
                trajectory(1.0 if well else None, agent)
                for agent, spoke in (("solver", solver), ("critic", critic))
                if spoke
            ),
        )
        for place, (well, solver, critic) in enumerate(samples)
    )
    rules = [ClosingRules(min_members=least)] * 2
    groups = [
        replace(SOME, episodes=tuple(episode_of(episode, {agent}) for episode in episodes))
        for agent in ("solver", "critic")
    ]
    closed = close_groups(episodes, groups, rules)
    rewarded = sum(well and (solver or critic) for well, solver, critic in samples)
    heard = [sum(well and spoke[agent] for well, *spoke in samples) for agent in (0, 1)]
    if rewarded < least or max(heard) < 2:
        assert closed == TooFewRewards(rewarded)
    else:
        assert not isinstance(closed, TooFewRewards)
        assert [one.rewards.count for one in closed] == [count if count >= 2 else 0 for count in heard]
        again = [close_group(one.group, rule) for one, rule in zip(closed, rules, strict=True)]
        assert all(isinstance(one, ClosedGroup) for one in again)
        assert again == closed, "what was stored is taken up as it was"
