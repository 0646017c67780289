"""A held-out score in words: its error, what it rests on, and why there is none."""

from __future__ import annotations

import pytest

from marlaas.app.words.held_out import held_out, scored_at, with_error
from marlaas.engine.store.rows import ScoreBasis

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


def test_in_a_list_failures_are_never_left_out() -> None:
    assert scored_at(0.5, PLAIN, 1200) == "0.50 ± 0.03 at 1,200"
    assert scored_at(None, LOST, 20, "step") == "no score at step 20 (52 of 64 episodes failed)"
