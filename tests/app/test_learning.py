"""Verdicts, findings and scores in words."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from marlaas.app.text.format import plain
from marlaas.app.text.learning import Evidence, Score, Verdict, held_out_trend, reward_trend, told, verdict
from marlaas.app.text.scores import Meeting, held_out, matrices, paired, t_quantile, with_error
from marlaas.engine.spec.task import FINDINGS
from marlaas.engine.store.queries.learning import Matchup
from marlaas.engine.store.rows import FindingRow, PolicyRow, ScoreBasis

STEPS = 40

RISING = [0.2 + 0.015 * step + 0.02 * (step % 3) for step in range(STEPS)]

FLAT = [0.3 + 0.05 * (-1) ** step for step in range(STEPS)]

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


FAILED = replace(seen(RISING), unmeasured=(9, 64))
ALL_EQUAL = seen([0.0] * STEPS, 0.0, 0.0, no_signal=1.0, reward_max=0.0)
MEASURED = [("1@best", Score(2, 0.75, 0.1)), ("1@3", Score(3, 0.25, 0.1)), ("base", None)]


@pytest.mark.parametrize(
    ("known", "tone", "words"),
    [
        (Evidence("running"), "none", ["No step yet"]),
        (Evidence("queued"), "none", ["Not begun"]),
        (Evidence("blocked"), "bad", ["Blocked"]),
        (Evidence("paused"), "fair", ["Paused before"]),
        (Evidence("failed"), "bad", ["Failed before"]),
        (Evidence("cancelled"), "none", ["It ended before"]),
        (Evidence("?"), "none", ["It ended before"]),
        (seen(RISING[:2], 0.44), "none", ["Too early to tell: 2 steps of 60, reward 0.22."]),
        (replace(seen(RISING[:3]), state="cancelled"), "none", ["Too short to tell"]),
        # scores tell it sooner than rewards
        (seen(RISING[:3], 0.1, 0.9), "good", ["Learning: held-out 0.10 → 0.90"]),
        (replace(seen(RISING, 0.1, 0.5), baseline=0.48), "fair", ["", "no better yet than one answer for all", "0.48"]),
        (seen(RISING, 0.3, 0.9, 0.6), "fair", ["", "0.30 → 0.90", "at step 20, now 0.60"]),
        (seen(RISING, 0.6, 0.4), "bad", ["It learns something else: reward ", "held-out 0.60 → 0.40", "Read rollouts"]),
        (seen(RISING, 0.44, 0.46), "fair", ["Only the reward rises: ", "held-out stays at 0.46 ± 0.03"]),
        (seen(RISING), "good", ["Learning: reward 0.27 → 0.75 in 40 steps; held-out is not measured."]),
        (seen(RISING, 0.44), "good", ["Learning: reward 0.27 → 0.75 in 40 steps; held-out 0.44 so far."]),
        (seen(FLAT, 0.3, 0.31, errors=32.0), "bad", ["Flat", "50 % of the episodes fail. Mend the environment."]),
        (seen(FLAT, 0.3, 0.31, no_signal=0.9), "bad", ["Flat", "in 90 % of the groups", "which teaches nothing."]),
        (seen(FLAT, 0.3, 0.31, cut=0.45), "bad", ["Flat", "ends 45 % of the replies. Raise `max_tokens`."]),
        (seen(FLAT, 0.3, 0.31, entropy=0.01), "bad", ["Flat", "the policy tries nothing new (entropy 0.010)."]),
        (seen(FLAT, 0.3, 0.31, weight_ess=0.12), "bad", ["Flat", "12 % of them count. Lower `max_staleness`."]),
        (seen(FLAT, 0.3, 0.31, moved=0.002), "bad", ["Flat", "hardly moves the policy. Raise `learning_rate`."]),
        (seen(FLAT, 0.3, 0.31, no_signal=0.6), "fair", ["Flat", "in 60 % of the groups all rewards are equal."]),
        (seen(FLAT, 0.3, 0.31), "fair", ["Flat", "0.3", "which is within its noise."]),
        (ALL_EQUAL, "bad", ["Flat at 0.00: in 100 % of the groups", "easier prompts"]),
        (seen([1.0] * STEPS, 0.99, 1.0, no_signal=1.0), "fair", ["Solved: the reward stays at 1.00."]),
        # nobody knows how much can be reached
        (seen([5.0] * STEPS, no_signal=1.0, reward_max=5.0), "bad", ["Flat"]),
        (FAILED, "bad", ["Held-out cannot be measured: 9 of 64 episodes failed."]),
        (Evidence(measured=MEASURED), "good", ["Measured 2 of 3 versions; the best so far: 1@best, 0.75."]),
        (Evidence("done", measured=MEASURED[:1]), "good", ["Measured 1 of 1 version; the best: "]),
        (Evidence(measured=[("base", None)]), "none", ["Nothing measured yet: 0 of 1 version."]),
    ],
)
def test_a_verdict_says_how_it_stands_and_why(known: Evidence, tone: str, words: list[str]) -> None:
    """How it begins, and what else it has."""
    found = verdict(known)
    assert found.words.startswith(words[0]) and all(each in found.words for each in words[1:]), found
    assert found.tone == tone


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
        len(rewards),
        60,
        range(len(rewards)),
        rewards,
        sorted(scores, key=lambda one: one.step),
        recent=recent,
    )
    assert verdict(known).words.endswith(".")


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


def test_each_finding_has_evidence_and_advice() -> None:
    assert set(EVIDENCE) == set(FINDINGS), "each set of figures is one that a detector gives"
    for code, figures in ((name, each) for name in FINDINGS for each in EVIDENCE[name]):
        words = told(row(code, evidence=figures))
        assert words.headline.endswith(" at step 40") and words.evidence.endswith(".") and words.advice.endswith(".")
        assert words.evidence == plain(words.evidence) and "nan" not in words.evidence


PLAIN = ScoreBasis(0.03, 64, prompts=64)

SAMPLED = ScoreBasis(0.05, 510, failures=2, prompts=64, samples=8, best_of=0.9, pass_at=0.8)

LOST = ScoreBasis(0.0, 12, failures=52, prompts=12)


@pytest.mark.parametrize(
    ("value", "basis", "short", "whole"),
    [
        (None, None, "-", "-"),
        (0.5, None, "0.50", "0.50"),
        (0.5, PLAIN, "0.50 ± 0.03", "0.50 ± 0.03 (64 prompts)"),
        (1.0, ScoreBasis(0.0, 1, prompts=1), "1.00 ± 0.00", "1.00 ± 0.00 (1 prompt)"),
        (
            0.5,
            SAMPLED,
            "0.50 ± 0.05",
            "0.50 ± 0.05 (64 prompts, 8 samples of each, pass@8 0.80, best@8 0.90, 2 of 512 episodes failed)",
        ),
        (None, LOST, "no score", "no score: 52 of 64 episodes failed"),
    ],
)
def test_a_score_in_few_words_and_in_all(value: float | None, basis: ScoreBasis | None, short: str, whole: str) -> None:
    assert (with_error(value, basis), held_out(value, basis)) == (short, whole)


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    # two-sided 95 %, from scipy.stats.t.ppf(0.975, freedom)
    [
        (1, 12.706204736),
        (2, 4.302652730),
        (3, 3.182446305),
        (10, 2.228138852),
        (63, 1.998340543),
        (1000, 1.962339081),
    ],
)
def test_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(quantile, rel=1e-9)


def test_a_difference_by_hand() -> None:
    # differences 1, 0, 1, 0: mean 1/2, deviation sqrt(1/3), error sqrt(1/12), t(3) = 3.1824
    found = paired({0: 1, 1: 1, 2: 1, 3: 0, 9: 1}, {0: 0, 1: 1, 2: 0, 3: 0, 7: 1})
    assert found is not None and (found.mean, found.prompts, found.differing) == (0.5, 4, 2)
    half = pytest.approx(3.1824463 * math.sqrt(1 / 12))
    assert found.high - found.mean == half and found.mean - found.low == half
    assert found.low < 0 < found.high


POLICIES = (
    PolicyRow("player", ("first",)),
    PolicyRow("rivals", ("second",), pool="player"),
    PolicyRow("old", ("third",), frozen="player@0"),
    PolicyRow("base_line", ("fourth",), frozen="base"),
)


def pair(version: int, against: str, against_version: int, *rewards: float) -> Matchup:
    squares = math.fsum(reward * reward for reward in rewards)
    return Matchup("player", version, against, against_version, len(rewards), math.fsum(rewards), squares)


def test_pools_and_beginnings_count_as_what_they_are() -> None:
    pairs = [
        pair(5, "player@0", 0, 1, 0),
        pair(5, "rivals", 0, 1, 1),
        pair(5, "old", 0, 1, 1),
        pair(6, "rivals", 5, 0.5),
        pair(6, "rivals", 6, 0.5),
        pair(6, "base_line", 0, 1.0),
        Matchup("rivals", 5, "player", 6, 1, 0.5, 0.25),
        Matchup("judge", 1, "player", 6, 1, 0.5, 0.25),
    ]
    itself, base = matrices(pairs, POLICIES, "player")
    assert (itself.against, itself.rows, itself.columns) == ("player", (6, 5), (0, 5, 6))
    assert itself.cells[5, 0].games == 6 and itself.cells[5, 0].mean == 5 / 6
    assert itself.cells[6, 5].games == 1 and (6, 6) not in itself.cells, "against itself nothing is learned"
    assert itself.cells[5, 6] == Meeting(1, 0.5, 0.0), "the pool's side is the player's, too"
    assert (base.against, base.cells) == ("base", {(6, 0): Meeting(1, 1.0, 0.0)})
    assert matrices(pairs, POLICIES, "nobody") == [] and itself.title == "player against player"


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=40))
def test_means_have_the_standard_error_of_the_sample(rewards: list[float]) -> None:
    (matrix,) = matrices([pair(3, "judge", 1, *rewards)], POLICIES, "player")
    cell = matrix.cells[3, 1]
    assert cell.games == len(rewards) and math.isclose(cell.mean, statistics.fmean(rewards), abs_tol=1e-9)
    assert math.isclose(cell.stderr, statistics.stdev(rewards) / math.sqrt(len(rewards)), abs_tol=1e-6)
