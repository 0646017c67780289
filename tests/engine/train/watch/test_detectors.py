"""Each sign is found where it is there, and in nothing that looks like it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from marlaas.engine.spec.task import FINDINGS, NAMES, WatchSpec
from marlaas.engine.train.watch import DETECTORS, Course, Learning, found

from ....examples import examples
from .runs import HEALTHY, alarms, noisy, seen, with_scores


def falling(start: float, end: float, steps: int = 40, seed: int = 0, noise: float = 0.02) -> list[float]:
    """From one value to another on a line."""
    way = ((end - start) * step / (steps - 1) for step in range(steps))
    return [start + far + one for far, one in zip(way, noisy(0.0, noise, steps, seed), strict=True)]


def stepped(before: float, after: float, at: int = 25, steps: int = 40, noise: float = 0.05) -> list[float]:
    """One value, and from a step on another."""
    return noisy(before, noise, at) + noisy(after, noise, steps - at, 1)


def test_every_finding_has_a_detector_and_a_name() -> None:
    assert set(DETECTORS) == set(FINDINGS) == set(NAMES)


def test_entropy_that_is_gone_before_the_task_is_learned() -> None:
    entropy = falling(0.4, 0.01, noise=0.005)
    stuck = seen(surprisal=entropy, reward=noisy(0.4, 0.05, 40), reward_max=stepped(0.9, 0.42))
    evidence = found(stuck)["entropy_collapse"]
    assert evidence["now"] < 0.05 < 0.3 < evidence["start"] and evidence["best"] < 0.5 < 0.8 < evidence["reached"]


def test_a_solved_task_is_certain_and_no_sign() -> None:
    solved = falling(0.4, 1.0)[:20] + noisy(0.98, 0.01, 20)
    assert not found(seen(surprisal=falling(0.4, 0.01, noise=0.005), reward=solved))


def test_luck_is_no_sign_either() -> None:
    """A game of dice: the best of a group is luckier than the mean, however certain the policy is."""
    lucky = seen(surprisal=falling(0.4, 0.01, noise=0.005), reward=noisy(0.4, 0.05, 40), reward_max=[0.9] * 40)
    assert not found(lucky)


def test_length_that_runs_into_the_limit() -> None:
    long = seen(length=falling(5, 31, noise=0.5), cut=falling(0.0, 0.9), reward=falling(0.2, 0.9))
    assert found(long)["exploding_length"]["cut"] > 0.6


def test_length_that_brings_nothing() -> None:
    slow = seen(length=falling(40, 200, noise=3.0), reward=noisy(0.4, 0.05, 40))
    assert found(slow)["exploding_length"]["reward"] == pytest.approx(0.4, abs=0.1)
    assert not found(seen(length=falling(40, 200, noise=3.0), reward=falling(0.2, 0.9))), "longer and better"
    assert not found(seen(length=falling(2, 8, noise=0.2), reward=noisy(0.4, 0.05, 40))), "a few tokens cost nothing"
    assert not found(replace(slow, watch=WatchSpec(length=10.0))), "the task file allows it"
    assert not found(replace(slow, alone=False)), "games become longer as both sides learn"


def test_a_limit_that_was_tight_from_the_beginning() -> None:
    tight = seen(length=falling(10, 30, noise=0.5), cut=noisy(0.9, 0.02, 40), reward=falling(0.2, 0.8))
    assert set(found(tight)) == {"cut_replies"}, "it is no growth of replies"


def test_held_out_falls_while_reward_rises() -> None:
    cheating = with_scores(seen(reward=falling(0.3, 0.95)), {0: 0.5, 10: 0.55, 20: 0.4, 30: 0.05, 40: 0.02}, 0.06)
    evidence = found(cheating)["reward_hacking"]
    assert (evidence["best"], evidence["best_step"], evidence["score"]) == (0.55, 10.0, 0.02)
    assert evidence["reward"] > evidence["reward_then"]


@pytest.mark.parametrize(
    "scores", [{0: 0.5, 20: 0.8, 40: 0.72}, {0: 0.5, 40: 0.9}, {40: 0.1}, {}], ids=["noise", "better", "one", "none"]
)
def test_held_out_that_does_not_fall(scores: dict[int, float]) -> None:
    assert not found(with_scores(seen(reward=falling(0.3, 0.9)), scores, 0.05))


def test_few_prompts_say_nothing() -> None:
    fallen = with_scores(seen(reward=falling(0.3, 0.9)), {0: 1.0, 40: 0.0}, 0.0, prompts=4)
    assert not found(fallen)


def test_both_fall_is_no_hacking() -> None:
    both = with_scores(seen(reward=stepped(0.9, 0.2)), {20: 0.9, 40: 0.1})
    assert set(found(both)) == {"falling_reward"}


def test_a_reward_that_falls() -> None:
    evidence = found(seen(reward=stepped(0.8, 0.1)))["falling_reward"]
    assert evidence["best"] > 0.7 and evidence["now"] < 0.2 and evidence["steps"] % 5 == 0
    assert not found(replace(seen(reward=stepped(0.8, 0.1)), alone=False)), "opponents learn, too"
    assert not found(replace(seen(reward=stepped(0.8, 0.1)), uniform=False)), "harder rows are drawn"
    small = seen(reward=stepped(0.80, 0.70, noise=0.001))
    assert not found(small), "significant, and a quarter of what single rewards differ by"


def test_a_distance_that_multiplies() -> None:
    runaway = [0.05 * 1.25**step for step in range(30)]
    assert found(seen(kl=runaway, reward=noisy(0.4, 0.05, 30)))["kl_runaway"]["now"] > 10
    assert not found(seen(kl=falling(0.0, 4.0), reward=falling(0.2, 0.9))), "steady learning adds"
    assert not found(seen(kl=[1e-4 * 1.5**step for step in range(15)])), "near 0 it doubles often"
    assert found(seen(kl=[0.0, 2e6, 1e7, 1e5, 3e4]))["kl_runaway"]["now"] == 1e5, "lost within the first steps"
    limited = replace(seen(kl=noisy(0.8, 0.05, 10)), watch=WatchSpec(kl=0.5))
    assert found(limited)["kl_runaway"]["limit"] == 0.5


def test_a_gap_and_a_drift_that_run_away() -> None:
    assert found(seen(gap_mean=stepped(0.02, 0.4, noise=0.002)))["gap_runaway"]["gap"] > 0.3
    assert not found(seen(gap_mean=noisy(0.12, 0.01, 40))), "a small copy of the base, from the beginning"
    drifting = seen(drift_mean=stepped(0.1, 1.2), weight_ess=stepped(0.9, 0.2))
    assert found(drifting)["gap_runaway"]["ess"] < 0.3
    assert not found(seen(drift_mean=[*noisy(0.1, 0.02, 38), 3.0, 3.0])), "two steps of five are no runaway"


def test_steps_that_are_too_large() -> None:
    assert found(seen(moved=stepped(0.1, 2.0)))["large_steps"]["moved"] > 1.5
    assert not found(seen(moved=[2.0, 2.0, *noisy(0.1, 0.02, 20)]))


def test_one_reply_for_every_prompt() -> None:
    same = noisy(0.97, 0.005, 20)
    evidence = found(seen(same_reply=same, reward=noisy(0.5, 0.05, 20)))["one_reply"]
    assert evidence["share"] > 0.95 and evidence["prompts"] == 40.0
    assert not found(seen(same_reply=same, first_prompts=[1.0] * 20)), "one prompt has one right answer"
    assert not found(seen(same_reply=same, first_prompts=[2.0] * 20)), "ten prompts may have the same right answer"
    assert not found(seen(same_reply=noisy(0.6, 0.05, 20)))


def test_a_policy_that_is_lost_within_the_first_steps() -> None:
    """What a learning rate of 0.02 does to the shipped base: nothing is left after three steps."""
    rewards = [0.55, 0.53, 0.61, 0.11, 0.05, *[0.0] * 20]
    lost = seen(reward=rewards, reward_max=[2 * reward for reward in rewards], reward_spread=[0.4] * 4 + [0.0] * 21)
    assert found(lost)["falling_reward"]["steps"] == 20.0


def test_steps_without_a_pass_say_nothing_of_drift() -> None:
    drifting = {"entropy": [0.3, 0.0] * 10, "drift_mean": [1.2, 0.0] * 10}
    assert found(seen(**drifting))["gap_runaway"]["drift"] == 1.2
    assert found(seen(drift_mean=[1.2, math.nan] * 10))["gap_runaway"]["drift"] == 1.2, "nor where it is left out"


def test_what_the_task_ignores_is_not_found() -> None:
    assert not found(replace(seen(moved=[2.0] * 20), watch=WatchSpec(ignore=("large_steps",))))


@given(st.lists(st.dictionaries(st.sampled_from(sorted(HEALTHY)), st.floats()), max_size=40), st.integers(0, 3))
@settings(max_examples=examples(50))
def test_no_metrics_break_a_detector(steps: list[dict[str, float]], changed: int) -> None:
    course = Course()
    for number, metrics in enumerate(steps, 1):
        course.see(number, f"e{number // 15 * changed}", {"tokens": 1.0} | metrics)
    for evidence in found(Learning(course)).values():
        assert all(not math.isnan(value) for value in evidence.values())


@pytest.mark.parametrize(("groups", "size"), [(8, 8), (2, 4), (1, 16)])
def test_healthy_runs_raise_no_alarm(groups: int, size: int) -> None:
    """60 steps as the demo has them: what is allowed is one run in a hundred for each kind."""
    assert alarms(examples(12), steps=60, groups=groups, size=size, top=0.97) == []
