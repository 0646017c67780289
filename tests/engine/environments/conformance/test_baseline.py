"""What can be had without reading the prompt."""

from __future__ import annotations

import pytest

from marlaas.engine.environments.conformance import checks
from marlaas.engine.environments.conformance.subject import CONSTANTS, EMPTY, Pace, Played
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.plugins import Episode

from .scripted import Scripted, only, scored

ZERO = CONSTANTS[1]
COIN = [scored(float(index % 16 != 0), ZERO, index) for index in range(64)]


def test_the_defect_of_coin_flip_is_one_clear_sentence() -> None:
    finding = only(checks.check_baseline([*COIN, *(scored(0.0, EMPTY, index) for index in range(64))]))
    assert finding.level == "error"
    assert finding.message == (
        "The answer '0' scores 0.94 on average over 64 instances: rewards can be had without reading the prompt."
    )


def test_game_of_life_halting_counts_equal_answers() -> None:
    anything = [scored(float(reply != EMPTY), reply, index) for reply in CONSTANTS for index in range(32)]
    finding = only(checks.check_baseline(anything))
    assert finding.level == "error"
    others = len(CONSTANTS) - 1
    assert finding.message.endswith(f"the prompt. {others - 1} of {others} other constant answers do as well.")


@pytest.mark.parametrize(
    ("reward", "instances", "level"),
    [(0.89, 64, "warning"), (0.5, 64, "warning"), (0.49, 64, "note"), (1.0, 15, "note"), (5.0, 64, "warning")],
)
def test_levels(reward: float, instances: int, level: str) -> None:
    assert only(checks.check_baseline([scored(reward, ZERO, index) for index in range(instances)])).level == level


def test_where_nothing_earns_no_answer_is_the_best() -> None:
    nothing = [scored(0.0, reply, index) for reply in CONSTANTS for index in range(16)]
    found = only(checks.check_baseline(nothing))
    assert (found.level, found.message) == (
        "note",
        f"No constant answer earns anything: {len(CONSTANTS)} were tried.",
    )
    assert "The empty reply scores 0.06" in only(checks.check_baseline([*nothing, scored(1.0, EMPTY, 16)])).message


def test_where_a_ranking_trains_it_is_no_error() -> None:
    finding = only(checks.check_baseline(COIN, ranked=True))
    assert finding.level == "warning" and finding.message.endswith("In training the group's ranking counts instead.")


async def test_every_answer_goes_to_every_working_instance() -> None:
    async def play(ep: Episode) -> float:
        return float((await ep.ask(f"{ep.index}")).text == "yes")

    played = await checks.reply_constants(Scripted(play), [4, 9], {ZERO}, Pace(60), 1.0)
    assert {one.index for one in played} == {4, 9} and len(played) == 2 * (len(CONSTANTS) - 1)
    mean, best, instances = checks.constants(played)[0]
    assert (best.text, mean, instances) == ("yes", 1.0, 2)


def rewarded(*rewards: float) -> Played:
    return Played(ZERO, 0, EpisodeOutcome("ok", dict(zip(("first", "second"), rewards, strict=True))))


@pytest.mark.parametrize("draws", [[], [(0.5, 0.5)] * 20])
def test_one_answer_from_all_players_of_a_game_tells_nothing(draws: list[tuple[float, float]]) -> None:
    found = only(checks.check_baseline([rewarded(0.0, 1.0), rewarded(1.0, 0.0), *(rewarded(*pair) for pair in draws)]))
    assert found.level == "note" and "their rewards sum to 1 whatever is said" in found.message


async def test_players_who_would_all_draw_are_set_against_each_other() -> None:
    async def duel(ep: Episode) -> dict[str, float]:
        said = [len((await ep.agent(name).ask("?")).text) for name in ("first", "second")]
        won = 0.5 if said[0] == said[1] else float(said[0] > said[1])
        return {"first": won, "second": 1 - won}

    subject, pace = Scripted(duel), Pace(60)
    played = await checks.reply_constants(subject, range(16), (), pace, 1.0)
    assert only(checks.check_baseline(played)).level == "warning"
    contested = await checks.contests(subject, range(16), pace, 1.0)
    assert {tuple(one.rewards.values()) for one in contested} == {(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)}
    assert "their rewards sum to 1" in only(checks.check_baseline(played, False, contested)).message


@pytest.mark.parametrize("pairs", [[(1.0, 1.0)] * 20, [(0.9, 0.8), (0.8, 1.0)] * 20])
def test_agents_that_work_together_can_be_paid_for_anything(pairs: list[tuple[float, float]]) -> None:
    assert only(checks.check_baseline([rewarded(*pair) for pair in pairs])).level in ("error", "warning")
