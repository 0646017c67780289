"""The shipped model keeps its promises: small, partial on purpose, and described by its own numbers."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import PreTrainedTokenizerBase

from tools.base.make import build_network, build_tokenizer, render
from tools.base.skills import BUNDLED, SKILLS, Message, Problem, Verdict, draw, start

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


def replies(model: Any, tokenizer: PreTrainedTokenizerBase, dialogues: list[list[Message]], tools: Any) -> list[str]:
    """The greedy next turn of each dialogue, without the end token, by transformers."""
    texts = [render(tokenizer, dialogue, tools, prompting=True) for dialogue in dialogues]
    batch = tokenizer(texts, padding=True, padding_side="left", return_tensors="pt")
    out = model.generate(**batch, max_new_tokens=96, do_sample=False)
    return [
        str(text) for text in tokenizer.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    ]


def verdicts_of(problems: list[Problem]) -> list[Verdict]:
    """How the shipped model fares on problems of one skill."""
    model, tokenizer = build_network(build_tokenizer()).from_pretrained(SHIPPED, dtype=torch.float32), build_tokenizer()
    dialogues = [start(problem) for problem in problems]
    said: list[list[str]] = [[] for _ in problems]
    verdicts: dict[int, Verdict] = {}
    while live := [place for place in range(len(problems)) if place not in verdicts]:
        texts = replies(model.eval(), tokenizer, [dialogues[place] for place in live], problems[0].tools)
        for place, text in zip(live, texts, strict=True):
            said[place].append(text)
            answer = problems[place].judge(said[place])
            if isinstance(answer, Verdict):
                verdicts[place] = answer
            else:
                dialogues[place] += [{"role": "assistant", "content": text}, answer]
    return list(verdicts.values())


@pytest.mark.parametrize("name", BUNDLED.values())
def test_the_weights_do_what_the_evaluation_says(name: str) -> None:
    skill = next(s for s in SKILLS if s.name == name)
    rng = Random(7)
    problems = [draw(skill, rng, evaluation=True) for _ in range(64)]
    verdicts = verdicts_of(problems)
    right = sum(v.strict for v in verdicts) / len(verdicts)
    # Four standard deviations of a sample of 64.
    assert right == pytest.approx(EVALUATION["skills"][name]["greedy"]["strict"], abs=0.25)
