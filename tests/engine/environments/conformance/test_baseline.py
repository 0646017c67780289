"""What can be had without reading the prompt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marlaas.engine.environments.conformance import checks
from marlaas.engine.environments.conformance.subject import CONSTANTS, EMPTY

from .scripted import judged, only, scored

ZERO = CONSTANTS[1]
COIN = [scored(float(index % 16 != 0), ZERO, index) for index in range(64)]


def test_the_defect_of_coin_flip_is_one_clear_sentence() -> None:
    finding = only(judged(checks.check_baseline, constant=[*COIN, *(scored(0.0, EMPTY, index) for index in range(64))]))
    assert finding.level == "error"
    assert finding.message == (
        "The answer '0' scores 0.94 on average over 64 instances: rewards can be had without reading the prompt."
    )


def test_game_of_life_halting_counts_equal_answers() -> None:
    anything = [scored(float(reply != EMPTY), reply, index) for reply in CONSTANTS for index in range(32)]
    finding = only(judged(checks.check_baseline, constant=anything))
    assert finding.level == "error"
    others = len(CONSTANTS) - 1
    assert finding.message.endswith(f"the prompt. {others - 1} of {others} other constant answers do as well.")


@pytest.mark.parametrize(
    ("reward", "instances", "level"),
    [(0.89, 64, "warning"), (0.5, 64, "warning"), (0.49, 64, "note"), (1.0, 15, "note"), (5.0, 64, "warning")],
)
def test_levels(reward: float, instances: int, level: str) -> None:
    assert (
        only(judged(checks.check_baseline, constant=[scored(reward, ZERO, index) for index in range(instances)])).level
        == level
    )


def test_where_nothing_earns_no_answer_is_the_best() -> None:
    nothing = [scored(0.0, reply, index) for reply in CONSTANTS for index in range(16)]
    found = only(judged(checks.check_baseline, constant=nothing))
    assert (found.level, found.message) == (
        "note",
        f"No constant answer earns anything: {len(CONSTANTS)} were tried.",
    )
    assert (
        "The empty reply scores 0.06"
        in only(judged(checks.check_baseline, constant=[*nothing, scored(1.0, EMPTY, 16)])).message
    )


def test_where_a_ranking_trains_it_is_no_error() -> None:
    finding = only(judged(checks.check_baseline, constant=COIN, ranked=True))
    assert finding.level == "warning" and finding.message.endswith("In training the group's ranking counts instead.")


def test_several_agents_are_not_asked() -> None:
    """If they play against each other, one of them always wins."""
    pairs = [replace(scored(1.0, ZERO, index), agents=frozenset(("first", "second"))) for index in range(20)]
    assert judged(checks.check_baseline, constant=pairs) == []
