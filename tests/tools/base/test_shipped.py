"""The shipped model keeps its promises: small, partial on purpose, and described by its own numbers."""

import json
from pathlib import Path
from random import Random

import pytest
from safetensors import safe_open

from tools.base.make import build_tokenizer, load_network, play, write_card
from tools.base.skills import BUNDLED, SKILLS, draw

SHIPPED = Path("engine/models/tiny")
EVALUATION = json.loads((SHIPPED / "evaluation.json").read_text())


def test_at_most_ten_megabytes_of_bfloat16() -> None:
    weights = SHIPPED / "model.safetensors"
    assert weights.stat().st_size <= 10_000_000
    with safe_open(weights, "pt") as tensors:
        assert {tensors.get_slice(name).get_dtype() for name in tensors.keys()} == {"BF16"}  # noqa: SIM118
    assert json.loads((SHIPPED / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize("name", BUNDLED.values())
def test_bundled_skills_are_partial(name: str) -> None:
    scores = EVALUATION["skills"][name]
    assert 0.1 <= scores["greedy"]["strict"] <= 0.6
    assert 0.25 <= scores["sampled"]["strict"] <= 0.6


@pytest.mark.parametrize("name", BUNDLED.values())
def test_the_rest_is_meaning_not_format(name: str) -> None:
    """At least half of what is missing is missing when format is forgiven, too."""
    greedy = EVALUATION["skills"][name]["greedy"]
    assert 1 - greedy["lenient"] >= (1 - greedy["strict"]) / 2


def test_every_skill_is_scored() -> None:
    assert list(EVALUATION["skills"]) == [skill.name for skill in SKILLS]


def test_the_card_is_up_to_date(tmp_path: Path) -> None:
    for path in SHIPPED.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    write_card(tmp_path)
    assert (tmp_path / "README.md").read_text() == (SHIPPED / "README.md").read_text()


@pytest.mark.parametrize("name", BUNDLED.values())
def test_the_weights_do_what_the_evaluation_says(name: str) -> None:
    skill = next(s for s in SKILLS if s.name == name)
    rng = Random(7)
    problems = [draw(skill, rng, evaluation=True) for _ in range(64)]
    verdicts = play(load_network(SHIPPED).eval(), build_tokenizer(), problems, sampled=False)
    right = sum(v.strict for v in verdicts) / len(verdicts)
    # Four standard deviations of a sample of 64.
    assert right == pytest.approx(EVALUATION["skills"][name]["greedy"]["strict"], abs=0.25)
