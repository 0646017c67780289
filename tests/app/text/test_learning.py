"""Verdicts and findings in words."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from marlaas.app.questions import evidence
from marlaas.app.text.format import plain
from marlaas.app.text.learning import (
    Evidence,
    Score,
    Verdict,
    findings,
    gone_wrong,
    held_out_trend,
    newest,
    reward_trend,
    state_text,
    told,
    verdict,
)
from marlaas.engine.spec.task import FINDINGS
from marlaas.engine.store.queries.learning import Track
from marlaas.engine.store.rows import FindingRow
from marlaas.engine.train.watch import found

from ..filling import HOSTILE
from ..rows import task, task as row_of

# A verdict for everything that can be recorded of a task.

STEPS = 40
RISING = [0.2 + 0.015 * step + 0.02 * (step % 3) for step in range(STEPS)]
FLAT = [0.3 + 0.05 * (-1) ** step for step in range(STEPS)]
FALLING = RISING[::-1]
PARTS = {"no_signal": 0.2, "entropy": 0.8, "weight_ess": 0.9, "cut": 0.0, "reward_max": 0.9}
SIZES = {"tokens": 640.0, "length": 10.0}
"""Of a step of 64 episodes."""


def seen(rewards: list[float], *scores: float, error: float = 0.03, **recent: float) -> Evidence:
    """A run with these rewards, and held-out scores spread over it."""
    apart = max(1, len(rewards) // max(1, len(scores) - 1))
    return Evidence(
        step=len(rewards),
        steps=60,
        reward_steps=range(1, len(rewards) + 1),
        rewards=rewards,
        scores=[Score(place * apart, one, error) for place, one in enumerate(scores)],
        baseline=0.02,
        recent={**PARTS, **SIZES, **recent},
    )


def test_it_learns_by_its_held_out_scores() -> None:
    found = verdict(seen(RISING, 0.44, 0.7, 0.95))
    assert found.words == "Learning: held-out 0.44 → 0.95 in 40 steps; the best constant answer gets 0.02."
    assert (found.tone, found.glyph) == ("good", "▲")
    done = verdict(replace(seen(RISING, 0.44, 0.95), state="done", baseline=None))
    assert done.words == "Learned: held-out 0.44 → 0.95 in 40 steps."


def test_a_gain_that_one_answer_for_all_has_too_is_none() -> None:
    found = verdict(replace(seen(RISING, 0.1, 0.5), baseline=0.48))
    assert found.tone == "fair" and "no better yet than one answer for all" in found.words and "0.48" in found.words


SIDES = "The mean reward says nothing: one policy acts as both sides."


def test_who_plays_against_itself_is_judged_by_held_out_alone() -> None:
    flat = replace(seen(FLAT, 0.5, 0.66), both_sides=True)
    known = "the best constant answer gets 0.02"
    assert verdict(flat) == Verdict("good", f"Learning: held-out 0.50 → 0.66 in 40 steps; {known}. {SIDES}")
    noisy = verdict(replace(seen(FLAT, 0.5, 0.55), both_sides=True))
    assert noisy.tone == "fair" and noisy.words.startswith(
        "Not clear yet: held-out 0.50 → 0.55 in 40 steps, within its"
    )
    worse = verdict(replace(seen(RISING, 0.6, 0.4), both_sides=True))
    assert worse.tone == "bad" and worse.words.startswith("Getting worse: held-out 0.60 → 0.40 in 40 steps.")
    young = verdict(replace(seen(RISING, 0.6), both_sides=True))
    assert young == Verdict("none", f"Too early to tell: held-out 0.60. {SIDES}")


def test_both_sides_are_known_by_who_plays_held_out() -> None:
    config = {"agents": {"first": "player", "second": "player"}, "eval": {"agents": {"second": "player@0"}}}
    alone = {"agents": {"first": "player", "second": "rival"}, "eval": {"agents": {"second": "player@0"}}}
    together = {"agents": {"asker": "player", "solver": "player"}, "eval": {"agents": {}}}
    known = [
        evidence(task(1), (), Track(), {}, {}, each, "player").both_sides for each in (config, alone, together, {})
    ]
    assert known == [True, False, False, False]


def test_what_was_better_before_is_said_with_its_step() -> None:
    found = verdict(seen(RISING, 0.3, 0.9, 0.6))
    assert found.tone == "fair" and "at step 20, now 0.60" in found.words and "0.30 → 0.90" in found.words


def test_a_reward_that_rises_while_held_out_falls_is_a_trick() -> None:
    found = verdict(seen(RISING, 0.6, 0.4))
    assert found.tone == "bad" and found.words.startswith("It learns something else: reward ")
    assert "held-out 0.60 → 0.40" in found.words and "Read rollouts" in found.words


def test_falling_is_said() -> None:
    assert verdict(seen(FALLING, 0.6, 0.4)).words.startswith("Getting worse: held-out 0.60 → 0.40 in 40 steps.")
    alone = verdict(seen(FALLING))
    assert alone.tone == "bad" and alone.words.startswith("Getting worse: reward 0.")


def test_only_the_reward_rises() -> None:
    found = verdict(seen(RISING, 0.44, 0.46))
    assert found.tone == "fair" and found.words.startswith("Only the reward rises: ")
    assert "held-out stays at 0.46 ± 0.03" in found.words
    assert verdict(seen(RISING)).words.endswith("; held-out is not measured.")
    assert verdict(seen(RISING, 0.44)).words.endswith("; held-out 0.44 so far.")


def test_a_reward_is_compared_over_the_steps_of_the_scores() -> None:
    late = [Score(30, 0.7, 0.03), Score(40, 0.72, 0.03)]
    level = [*RISING[:30], *[0.8 + 0.05 * (-1) ** step for step in range(10)]]
    found = verdict(replace(seen(level), scores=late))
    assert found.tone == "good" and found.words.endswith("held-out 0.72 so far."), "the series began when it had risen"
    again = verdict(replace(seen(RISING + [value + 0.6 for value in RISING]), scores=[*late, Score(80, 0.72, 0.03)]))
    assert again.words.startswith("Only the reward rises: reward 0.")


@pytest.mark.parametrize(
    ("recent", "tone", "cause"),
    [
        ({"errors": 32.0}, "bad", "50 % of the episodes fail. Mend the environment."),
        ({"no_signal": 0.9}, "bad", "in 90 % of the groups all rewards are equal, which teaches nothing."),
        ({"cut": 0.45}, "bad", "the length limit ends 45 % of the replies. Raise `max_tokens`."),
        ({"entropy": 0.01}, "bad", "the policy tries nothing new (entropy 0.010)."),
        ({"weight_ess": 0.12}, "bad", "tokens are too stale, 12 % of them count. Lower `max_staleness`."),
        ({"moved": 0.002}, "bad", "a step hardly moves the policy. Raise `learning_rate`."),
        ({"no_signal": 0.6}, "fair", "in 60 % of the groups all rewards are equal."),
        ({}, "fair", "which is within its noise."),
    ],
)
def test_a_flat_curve_has_a_cause(recent: dict[str, float], tone: str, cause: str) -> None:
    found = verdict(seen(FLAT, 0.3, 0.31, **recent))
    assert found.tone == tone and cause in found.words and found.words.startswith("Flat")
    assert "0.3" in found.words


def test_a_solved_task_is_solved_not_flat() -> None:
    found = verdict(seen([1.0] * STEPS, 0.99, 1.0, no_signal=1.0, reward_max=1.0))
    assert found.words.startswith("Solved: the reward stays at 1.00.") and found.tone == "fair"
    hopeless = verdict(seen([0.0] * STEPS, 0.0, 0.0, no_signal=1.0, reward_max=0.0))
    assert hopeless.words.startswith("Flat at 0.00: in 100 % of the groups") and "easier prompts" in hopeless.words
    halfway = verdict(seen([5.0] * STEPS, no_signal=1.0, reward_max=5.0))
    assert "Solved" not in halfway.words, "nobody knows how much can be reached"


def test_nothing_is_said_too_early() -> None:
    found = verdict(seen(RISING[:2], 0.44))
    assert found.tone == "none" and found.words == "Too early to tell: 2 steps of 60, reward 0.22."
    ended = verdict(replace(seen(RISING[:3]), state="cancelled"))
    assert ended.words.startswith("Too short to tell")
    sure = verdict(seen(RISING[:3], 0.1, 0.9))
    assert sure.words.startswith("Learning: held-out 0.10 → 0.90"), "scores tell it sooner than rewards"


def test_scores_that_are_missing_are_the_news() -> None:
    found = verdict(replace(seen(RISING), unmeasured=(9, 64)))
    assert found.tone == "bad" and found.words.startswith("Held-out cannot be measured: 9 of 64 episodes failed.")


@pytest.mark.parametrize(
    ("state", "code", "tone", "words"),
    [
        ("running", "", "none", "No step yet"),
        ("queued", "slots", "none", "Not begun"),
        ("blocked", "blocked", "bad", "Blocked"),
        ("paused", "person", "fair", "Paused before"),
        ("failed", "failed", "bad", "Failed before"),
        ("cancelled", "", "none", "It ended before"),
        ("?", "", "none", "It ended before"),
    ],
)
def test_before_the_first_step(state: str, code: str, tone: str, words: str) -> None:
    found = verdict(Evidence(state, code))
    assert found.tone == tone and found.words.startswith(words)


def test_an_evaluation_names_the_best_version() -> None:
    measured = [("1@best", Score(2, 0.75, 0.1)), ("1@3", Score(3, 0.25, 0.1)), ("base", None)]
    found = verdict(Evidence(measured=measured))
    assert found.words == "Measured 2 of 3 versions; the best so far: 1@best, 0.75."
    assert verdict(Evidence(state="done", measured=measured[:1])).words.startswith(
        "Measured 1 of 1 version; the best: "
    )
    assert verdict(Evidence(measured=[("base", None)])).words == "Nothing measured yet: 0 of 1 version."


def test_a_finding_comes_first() -> None:
    found = verdict(seen(RISING, 0.44, 0.95), "Step 30: every reply is the same.")
    assert (found.tone, found.words) == ("bad", "Step 30: every reply is the same.")


def test_noise_is_no_trend() -> None:
    held = held_out_trend([Score(0, 0.5, 0.05), Score(10, 0.6, 0.05)])
    assert held is not None and held.way == "flat", "0.1 is less than two errors of 0.07"
    surer = held_out_trend([Score(0, 0.5, 0.02), Score(10, 0.6, 0.02)])
    assert surer is not None and surer.way == "up"
    assert held_out_trend([Score(0, 0.5, 0.05)]) is None
    flat, up = reward_trend(range(STEPS), FLAT), reward_trend(range(STEPS), RISING)
    assert flat is not None and flat.way == "flat" and up is not None and up.way == "up"
    assert reward_trend(range(9), RISING[:9]) is None
    gaps = reward_trend(range(STEPS), [math.nan if step % 4 == 1 else value for step, value in enumerate(RISING)])
    assert gaps is not None and gaps.way == "up"


numbers = st.floats(allow_nan=True, allow_infinity=True)
RECENT = ("no_signal", "entropy", "cut", "weight_ess", "errors", "tokens", "length", "moved", "reward_max")


@given(
    st.lists(numbers, max_size=60),
    st.lists(st.builds(Score, st.integers(0, 100), st.floats(-1e6, 1e6), st.floats(0, 1e6)), max_size=5),
    st.dictionaries(st.sampled_from(RECENT), numbers),
    st.sampled_from(["running", "queued", "paused", "done", "failed", "[/]"]),
)
def test_anything_recorded_has_a_verdict(
    rewards: list[float], scores: list[Score], recent: dict[str, float], state: str
) -> None:
    known = Evidence(
        state,
        "",
        len(rewards),
        60,
        range(len(rewards)),
        rewards,
        sorted(scores, key=lambda one: one.step),
        recent=recent,
    )
    assert verdict(known).words.endswith(".")


# What goes wrong in learning, in words.

EVIDENCE = {
    "reward_hacking": [
        {"best": 0.8, "best_step": 10.0, "best_error": 0.05, "score": 0.1, "score_step": 30.0, "error": 0.03}
        | {"reward_then": 0.5, "reward": 0.97}
    ],
    "falling_reward": [{"best": 0.8, "now": 0.1, "steps": 15.0}],
    "entropy_collapse": [{"start": 0.31, "now": 0.01, "best": 0.4, "reached": 0.9}],
    "one_reply": [{"share": 0.98, "prompts": 40.0, "reward": 0.5}],
    "exploding_length": [
        {"start": 4.0, "now": 31.0, "cut": 0.9, "cut_start": 0.0},
        {"start": 40.0, "now": 200.0, "reward": 0.4, "reward_start": 0.41},
    ],
    "large_steps": [{"moved": 1.25}],
    "kl_runaway": [{"now": 9.0, "before": 2.0}, {"now": 0.9, "limit": 0.5}, {"now": 99.0, "far": 10.0}],
    "gap_runaway": [{"gap": 0.4, "gap_start": 0.01}, {"drift": 1.2, "ess": 0.2}, {"drift": 1.2}],
    "cut_replies": [
        {"cut": 0.4, "max_tokens": 32.0, "max_episode_tokens": 256.0, "thinks": thinks} for thinks in (0.0, 1.0)
    ],
}


def row(code: str = "large_steps", **values: object) -> FindingRow:
    given = {"policy": "policy", "step": 40, "evidence": EVIDENCE.get(code, [{}])[0], "rollouts": (1, 2, 3)} | values
    return FindingRow(code=code, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", FINDINGS)
def test_each_finding_has_evidence_and_advice(code: str) -> None:
    for shown in EVIDENCE[code]:
        words = told(row(code, evidence=shown))
        assert words.headline.endswith(" at step 40") and words.evidence.endswith(".") and words.advice.endswith(".")
        assert words.evidence == plain(words.evidence) and "nan" not in words.evidence


def test_all_that_detectors_give_is_known_here() -> None:
    """Each set of figures above is one that a detector gives; that they give no others, its own tests say."""
    assert set(EVIDENCE) == set(FINDINGS) and callable(found)


def test_a_finding_of_another_version_is_shown_with_its_figures() -> None:
    words = told(row("a_new_one", evidence={"so_much": 0.25}))
    assert (words.title, words.evidence, words.advice) == ("A new one", "so much 0.25", "")
    assert told(row(evidence={"other": 1.0})).evidence == "other 1"
    safe = told(row(HOSTILE, policy=HOSTILE, evidence={HOSTILE: 1.0}), several=True)
    assert all(letter.isprintable() for text in (safe.headline, safe.evidence) for letter in text)


def test_the_newest_that_holds_is_the_one_to_show() -> None:
    rows = (row("one_reply", step=50, holds=False), row("large_steps", step=40), row("kl_runaway", step=9))
    task = row_of(1, state="running", findings=rows, warning="An older warning.")
    assert [one.code for one in findings(task)] == ["large_steps", "kl_runaway", "one_reply"]
    shown = newest(task)
    assert shown is not None and shown.code == "large_steps"
    said = gone_wrong(task)
    assert said.startswith("Steps too large at step 40: a step changes") and ".." not in said
    assert said.endswith(findings(task)[0].advice)
    assert state_text(task) == "● running !" and len(state_text(task)) <= 11, "the column of states has 11 cells"
    over = row_of(1, state="running", findings=rows[:1], warning="An older warning.")
    assert (gone_wrong(over), state_text(over)) == ("", "● running")
    assert findings(over)[0].headline == "One reply for every prompt at step 50, over by now"
    assert state_text(row_of(1, state="done", findings=rows)) == "✓ done !"
    assert state_text(row_of(1, state="queued", findings=rows)) == "○ queued", "it waits, and learns nothing now"
