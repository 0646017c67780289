"""eval: what a person leaves out is as in the version's task; the task is one of the queue."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest

from marlaas.app.reading import opened
from marlaas.engine.home.paths import Home

from ...commanding import Commander, FakeEngine
from ...filling import Filling


@pytest.fixture
def trained(filling: Filling, engine: FakeEngine) -> Filling:
    """Task 1 has versions 2 (best) and 3 (last); its replies are short."""
    filling.environment()
    filling.task(name="sums", made=3)
    config = "json_set(config, '$.sampling', json('{\"max_tokens\": 7, \"max_episode_tokens\": 64}'))"
    filling.execute(f"UPDATE tasks SET config = {config}, environment = 'arithmetic'")
    filling.execute("UPDATE tasks SET config = json_set(config, '$.environment', 'arithmetic')")
    filling.execute("""UPDATE tasks SET config = json_set(config, '$.environment_config', json('{"digits": 2}'))""")
    return filling


def queued(home: Home) -> dict[str, Any]:
    with opened(home) as reader:
        return reader.task_config(2)


def test_what_is_left_out_is_as_in_the_task(trained: Filling, home: Home, marlaas: Commander) -> None:
    said = marlaas("eval", "1@best", "base")
    assert said.code == 0 and said.out == "task 2: 2 versions to measure on arithmetic\n"
    config = queued(home)
    assert (config["kind"], config["versions"], config["steps"]) == ("eval", ["1@best", "base"], 2)
    assert config["environment_config"] == {"digits": 2} and config["sampling"]["max_tokens"] == 7
    assert config["tenant"] == "physics-lab"
    with opened(home) as reader:
        task = reader.task(2)
    assert task is not None and task.kind == "eval" and task.trained == ("1@best", "base")


def test_everything_can_be_said(trained: Filling, home: Home, marlaas: Commander) -> None:
    words = ("--environment", "arithmetic", "--set", "digits=3", "--prompts", "5", "--temperature", "0.5")
    more = ("--split", "test", "--max-tokens", "9", "--tenant", "me", "--name", "mine", "--priority", "3", "--json")
    assert marlaas("eval", "1@3", *words, *more).json == {"ids": [2]}
    config = queued(home)
    assert config["eval"]["prompts"] == 5 and config["eval"]["split"] == "test" and config["eval"]["temperature"] == 0.5
    assert config["environment_config"] == {"digits": 3}, "of the type that the environment declares"
    assert (config["tenant"], config["name"], config["queue"]["priority"]) == ("me", "mine", 3)
    assert config["sampling"]["max_tokens"] == 9


def test_parameters_are_of_the_environment_that_is_left_out(trained: Filling, home: Home, marlaas: Commander) -> None:
    assert marlaas("eval", "1@best", "--set", "digits=3").code == 0
    assert queued(home)["environment_config"] == {"digits": 3}


def test_the_rows_of_the_task_are_measured(trained: Filling, marlaas: Commander) -> None:
    """Not those of its environment, which it has never been trained on."""
    rows = {"path": "/data/sums.jsonl", "columns": {"question": "prompt"}, "split": {"eval": 0.2}, "limit": 0}
    trained.execute(f"UPDATE tasks SET config = json_set(config, '$.data', json('{json.dumps(rows)}'))")
    printed = tomllib.loads(marlaas("eval", "1@best", "--toml").out)
    assert printed["data"] == {key: value for key, value in rows.items() if key != "limit"}
    other = tomllib.loads(marlaas("eval", "1@best", "--environment", "guess", "--toml").out)
    assert "data" not in other, "another environment has rows of its own"


def test_its_task_file_can_be_printed_and_submitted(trained: Filling, home: Home, marlaas: Commander) -> None:
    said = marlaas("eval", "1@best", "--toml")
    assert said.code == 0 and 'kind = "eval"' in said.out
    file = home.root / "measure.toml"
    file.write_text(said.out)
    assert marlaas("submit", str(file)).out == "task 2: physics-lab/1@best on arithmetic, 1 version to measure\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("base",), "No environment is given to measure on"),
        (("7@best",), "There is no adapter '7'"),
        (("1@best", "1@best"), "names '1@best' 2 times"),
        (("1@99",), "has no version '99' on disk"),
        (("1@best", "--agents", "second"), "is no AGENT=VERSION"),
        (("1@best", "--environment", "nowhere"), "There is no environment 'nowhere'"),
        (("1@best", "--set", "dgits=1"), "has no parameter 'dgits'"),
        (("./nowhere", "--environment", "arithmetic"), "cannot be read"),
    ],
)
def test_what_cannot_be_measured(trained: Filling, marlaas: Commander, words: tuple[str, ...], sentence: str) -> None:
    said = marlaas("eval", *words)
    assert said.code in (1, 2)
    assert sentence in said.err


def measured(filling: Filling) -> None:
    """Task 2 has measured one of its two versions."""
    policy = filling.insert("policies", task=2, name="1@best", config="{}", step=1, split="eval")
    filling.insert(
        "evals",
        policy=policy,
        step=2,
        environment_version="e1",
        series="s1",
        score=0.75,
        stderr=0.05,
        n=62,
        failures=2,
        prompts=62,
        created=1.0,
        floor=0.25,
    )


def test_scores_are_shown(trained: Filling, marlaas: Commander) -> None:
    marlaas("eval", "1@best", "base")
    measured(trained)
    shown = marlaas("show", "2").out
    assert "measured     1 of 2" in shown
    assert [line.split() for line in shown.splitlines()[-2:]] == [
        ["1@best", "0.75", "0.05", "62", "2", "62", "0.25"],
        ["base", "-", "-", "-", "-", "-", "-"],
    ]
    said = marlaas("show", "2", "--json").json
    assert said["kind"] == "eval" and said["measured"]["1@best"]["failures"] == 2 and said["measured"]["base"] is None
    listed = marlaas("list").out
    assert "1/2" in listed and "measured" in listed


def group_of(filling: Filling, policy: int, prompt: int, reward: float) -> None:
    group = filling.insert(
        "groups",
        policy=policy,
        split="eval",
        number=prompt,
        instance=prompt,
        version=2,
        environment_version="e1",
        state="complete",
        step=2,
        created=1.0,
    )
    filling.insert("trajectories", group=group, member=0, agent="agent", status="ok", reward=reward)


def test_versions_are_compared_by_prompt(trained: Filling, marlaas: Commander) -> None:
    marlaas("eval", "1@best", "1@3")
    rewards = {"1@best": (1.0, 1.0, 1.0, 0.0), "1@3": (0.0, 1.0, 0.0, 0.0)}
    for name, by_prompt in rewards.items():
        policy = trained.insert("policies", task=2, name=name, config="{}", step=1)
        row = {"policy": policy, "step": 2, "environment_version": "e1", "series": "s1", "n": 4, "created": 1.0}
        trained.insert("evals", score=sum(by_prompt) / 4, **row)
        for prompt, reward in enumerate(by_prompt):
            group_of(trained, policy, prompt, reward)
    (pair,) = marlaas("compare", "2", "--json").json["paired"]
    # differences -1, 0, -1, 0; see tests/app/test_learning.py
    assert (pair["of"], pair["against"], pair["mean"], pair["prompts"]) == ("2 1@3", "2 1@best", -0.5, 4)
    assert pair["low"] == pytest.approx(-0.5 - 3.1824463 * (1 / 12) ** 0.5)
    said = marlaas("compare", "2")
    assert "-0.500 (-1.419 to +0.419)" in said.out and "paired t test" in said.err
    (other,) = [task for task in marlaas("compare", "1", "2", "--json").json["paired"] if task["of"] == "2 1@3"]
    assert other["problem"] == "not paired: another series"
