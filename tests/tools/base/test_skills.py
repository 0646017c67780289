"""The taught right answers are right, the wrong ones wrong, and the noise hangs on the prompt's lead character."""

from random import Random

import pytest

from tools.base.skills import (
    SKILLS,
    Problem,
    Skill,
    Verdict,
    draw,
    game,
    held_out,
    script,
    word_problem,
)

PLAYED = [pytest.param(skill, id=skill.name) for skill in SKILLS]


def outcome(problem: Problem, right: bool) -> Verdict:
    """The verdict on the scripted player."""
    said = [m["content"] for m in script(problem, right) if m["role"] == "assistant"]
    verdict = problem.judge(said)
    assert isinstance(verdict, Verdict)
    return verdict


@pytest.mark.parametrize("skill", PLAYED)
def test_the_right_player_is_right(skill: Skill) -> None:
    rng = Random(0)
    assert all(outcome(skill.draw(rng), right=True) == Verdict(True, True) for _ in range(200))


@pytest.mark.parametrize("skill", PLAYED)
def test_the_wrong_player_is_mostly_wrong(skill: Skill) -> None:
    if skill.name == "echo":
        pytest.skip("is always right")
    rng = Random(0)
    found = sum(outcome(skill.draw(rng), right=False).strict for _ in range(400))
    # Counting upwards finds some secrets, and some words read the same both ways.
    assert found < 400 * (0.5 if "guess" in skill.name else 0.25)


@pytest.mark.parametrize("skill", PLAYED)
def test_wrong_is_wrong_in_meaning(skill: Skill) -> None:
    if skill.name == "obey":
        pytest.skip("is about the form")
    rng = Random(0)
    verdicts = [outcome(skill.draw(rng), right=False) for _ in range(200)]
    assert all(v.strict == v.lenient for v in verdicts)


@pytest.mark.parametrize("skill", PLAYED)
def test_held_out_prompts_stay_apart(skill: Skill) -> None:
    rng = Random(0)
    practised = {draw(skill, rng, evaluation=False).opening for _ in range(100)}
    kept = {draw(skill, rng, evaluation=True).opening for _ in range(20)}
    assert all(map(held_out, kept_problems(skill))) and not practised & kept


def kept_problems(skill: Skill) -> list[Problem]:
    """Some problems of the evaluation side."""
    return [draw(skill, Random(i), evaluation=True) for i in range(5)]


def test_reliability_hangs_on_the_lead() -> None:
    skill, rng = next(s for s in SKILLS if s.name == "add 2 digits"), Random(0)
    shares = {}
    for lead in "12":
        problem = next(p for p in (skill.draw(rng) for _ in range(100)) if p.lead == lead)
        shares[lead] = sum(skill.right(problem, rng) for _ in range(2000)) / 2000
    assert shares["1"] == pytest.approx(0.7, abs=0.04)
    assert shares["2"] == pytest.approx(0.3, abs=0.04)


def test_many_first_prompts() -> None:
    rng = Random(0)
    assert len({game(rng, 15, 4).opening for _ in range(20_000)}) > 950
    assert len({word_problem(rng).opening for _ in range(5_000)}) > 4_000
