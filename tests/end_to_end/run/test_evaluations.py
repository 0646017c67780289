"""Versions, the base and an exported folder are measured by a real engine, as tasks of the queue."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from marlaas.app.client import Home

from ..conftest import Lab

pytestmark = pytest.mark.processes


def train(lab: Lab) -> int:
    """A short task that keeps all of its versions."""
    text = """
tenant = "lab"
name = "sums"
environment = "arithmetic"
steps = 2
[train]
groups_per_step = 2
group_size = 4
[sampling]
max_tokens = 8
[eval]
prompts = 8
every = 0
test_prompts = 4
[[eval.suite]]
name = "game"
environment = "guess"
prompts = 2
[keep]
every = 1
"""
    path = lab.home.root / "train.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    (number,) = json.loads(lab.marlaas("submit", str(path), "--json"))["ids"]
    lab.marlaas("wait", str(number))
    return int(number)


def test_everything_is_measured(lab: Lab, tmp_path: Path) -> None:
    task = train(lab)
    measured = {(row["suite"], row["split"], row["step"]) for row in lab.show(task)["eval"]}
    assert {("", "eval", 0), ("", "eval", 2), ("game", "eval", 0), ("game", "eval", 2), ("", "test", 2)} <= measured
    shown = lab.marlaas("show", str(task))
    assert "\n  game " in shown and "\n  test " in shown
    folder = tmp_path / "adapter"
    lab.marlaas("adapters", "export", f"{task}@2", "--out", str(folder))

    names = [f"{task}@0", "base", f"{task}@2", str(folder)]
    said = json.loads(lab.marlaas("eval", *names, "--prompts", "8", "--wait", "--json"))
    rows = said["measured"]
    assert said["state"] == "done" and list(rows) == names
    assert {row["prompts"] for row in rows.values()} == {8} and len({row["series"] for row in rows.values()}) == 1
    own = rows[f"{task}@2"]
    assert own["score"] == next(
        row["score"] for row in lab.show(task)["eval"] if (row["step"], row["suite"]) == (2, "")
    )
    pairs = {pair["of"].partition(" ")[2]: pair for pair in Home(lab.home.root).compare(said["ids"][0])}
    assert pairs["base"]["differing"] == 0, "an untrained adapter adds nothing to the base"
    assert rows[str(folder)]["score"] == own["score"]
    beside_training = Home(lab.home.root).compare(task, said["ids"][0])
    assert all(pair["problem"] == "" and pair["prompts"] == 8 for pair in beside_training)
    with pytest.raises(AssertionError, match="makes no steps"):
        lab.marlaas("extend", str(said["ids"][0]), "--steps", "9")
    against = ("--environment", "race", "--agents", "second=base", "--rotate", "--prompts", "4", "--wait", "--json")
    played = json.loads(lab.marlaas("eval", f"{task}@2", "base", *against))
    assert {row["prompts"] + row["n"] > 0 for row in played["measured"].values()} == {True}
    speakers = {row.speaker for row in Home(lab.home.root).rollouts(played["ids"][0])}
    assert "base" in speakers and "" in speakers, "the measured version spoke, and the base against it"
    lab.sound(task, *said["ids"], *played["ids"])


@pytest.mark.slow
def test_a_killed_engine_measures_nothing_twice(lab: Lab) -> None:
    """Every day, evaluations go on in ``tests/engine/train``, and a killed engine in ``daemon/test_kills``."""
    task = train(lab)
    names = (f"{task}@0", f"{task}@1", f"{task}@2", "base")
    words = ("--prompts", "16", "--samples", "4", "--environment", "guess", "--json")
    (number,) = json.loads(lab.marlaas("eval", *names, *words))["ids"]
    lab.until(number, 1)
    lab.kill_engine()
    home = Home(lab.home.root)
    before = {name: home.evals(number, name) for name in names}
    assert any(before.values())
    lab.marlaas("engine", "start")
    lab.marlaas("wait", str(number))
    after = {name: home.evals(number, name) for name in names}
    assert all(len(rows) == 1 for rows in after.values())
    assert all(after[name] == rows for name, rows in before.items() if rows), "down to the time of its making"


def test_pass_at_8_is_what_a_script_computes_from_replies(lab: Lab) -> None:
    task = train(lab)
    words = (f"{task}@2", "--set", "digits=1", "--prompts", "12", "--samples", "8", "--temperature", "1.0")
    said = json.loads(lab.marlaas("eval", *words, "--wait", "--json"))
    row = said["measured"][f"{task}@2"]
    rewards: defaultdict[int, list[float]] = defaultdict(list)
    for one in Home(lab.home.root).rollouts(said["ids"][0], limit=1000):
        # not the stored reward: what was asked and what was replied, graded here
        question, reply = one.turns[0].text, one.turns[-1].text
        first, second = map(int, question.rstrip("=").split("+"))
        assert one.reward == float(reply == str(first + second)), (question, reply)
        rewards[one.group].append(one.reward)
    prompts = [sorted(found) for found in rewards.values()]
    assert [len(found) for found in prompts] == [8] * row["prompts"]
    # of 8 samples, 1 - C(8 - c, 8) / C(8, 8) is 1 where any passes, else 0
    assert row["pass_at"] == sum(any(found) for found in prompts) / len(prompts)
    assert 0 < row["score"] < row["pass_at"], (row, prompts)
    assert row["best_of"] == sum(max(found) for found in prompts) / len(prompts)
    assert row["score"] == pytest.approx(
        sum(map(sum, prompts)) / 8 / len(prompts), rel=1e-12
    )  # the order of the sum is another
