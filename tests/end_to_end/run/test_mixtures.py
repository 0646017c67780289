"""A real engine trains one policy on two environments and measures both; in ``make test-slow``, killed meanwhile."""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from ...seldom import seldom
from ..conftest import Lab

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

BOTH = """
tenant = "lab"
name = "both"
steps = 4
[[mixture]]
environment = "arithmetic"
share = 2
config = { digits = 1 }
[[mixture]]
environment = "guess"
name = "game"
[train]
groups_per_step = 3
group_size = 4
[sampling]
max_tokens = 8
[eval]
prompts = 8
every = 2
test_prompts = 4
"""


@pytest.mark.parametrize("killed", [False, seldom(True)])
def test_one_policy_learns_on_both(lab: Lab, killed: bool) -> None:
    path = lab.home.root / "both.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(BOTH)
    (number,) = json.loads(lab.marlaas("submit", str(path), "--json"))["ids"]
    if killed:
        lab.until(number, 1)
        lab.kill_engine()
        lab.marlaas("engine", "start")
    lab.marlaas("wait", str(number))

    rows = lab.show(number)["eval"]
    places = {(row["suite"], row["split"]) for row in rows}
    assert places == {(suite, split) for suite in ("", "arithmetic", "game") for split in ("eval", "test")}
    for whole in (row for row in rows if not row["suite"]):
        like = [row for row in rows if (row["split"], row["step"]) == (whole["split"], whole["step"])]
        sums, game = ([row for row in like if row["suite"] == name][-1] for name in ("arithmetic", "game"))
        # the same few operations on the same numbers, in another order
        assert whole["score"] == pytest.approx((2 * sums["score"] + game["score"]) / 3, rel=1e-9)
        error = math.hypot(2 * sums["stderr"], game["stderr"]) / 3
        assert whole["stderr"] == pytest.approx(error, rel=1e-9)
        assert whole["n"] == sums["n"] + game["n"] and whole["prompts"] == sums["prompts"] + game["prompts"]
    shown = " ".join(lab.marlaas("show", str(number)).split())
    assert "component arithmetic 67%, held-out " in shown and "component game 33%, held-out " in shown

    groups = {}
    for component in ("arithmetic", "game"):
        found = json.loads(lab.marlaas("env", "replay", str(number), "--component", component, "--json"))
        assert found["rewards"] == found["unchanged"]
        groups[component] = found["rewards"]
    assert groups == {"arithmetic": 8 * 4, "game": 4 * 4}
    lab.sound(number)


PLUGIN = """
from marlaas.plugins import env


@env
async def repeats(ep, task):
    return (await ep.ask(task["say"], max_tokens=4)).text == task["say"]
"""
FILES = """
tenant = "lab"
name = "two files"
steps = 4
[[mixture]]
environment = "repeats"
name = "letters"
share = 3
[mixture.data]
path = "letters.jsonl"
columns = { say = "letter" }
[[mixture]]
environment = "repeats"
name = "digits"
data = { path = "digits.{split}.jsonl" }
[train]
groups_per_step = 4
group_size = 4
[sampling]
max_tokens = 4
[eval]
prompts = 4
every = 0
[[eval.suite]]
name = "words"
environment = "repeats"
data = { path = "words.jsonl", split = { eval = 0.5 } }
prompts = 3
"""
"""The environment has no rows of its own: each table names some."""


def test_one_environment_learns_from_two_files(lab: Lab, tmp_path: Path) -> None:
    lab.home.plugins.joinpath("repeats.py").write_text(PLUGIN)
    said = {
        "letters.jsonl": [{"letter": letter} for letter in "abcdefghijklmnopqrst"],
        "digits.train.jsonl": [{"say": digit} for digit in "012345"],
        "digits.eval.jsonl": [{"say": digit} for digit in "6789"],
        "words.jsonl": [{"say": f"word{number}"} for number in range(6)],
    }
    for name, rows in said.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "files.toml"
    path.write_text(FILES)
    (number,) = json.loads(lab.marlaas("submit", str(path), "--json"))["ids"]
    lab.marlaas("wait", str(number))
    with closing(sqlite3.connect(f"file:{lab.home.database}?mode=ro", uri=True)) as connection:
        groups = connection.execute(
            "SELECT DISTINCT g.split, g.suite, g.component, g.number, t.turns FROM groups g"
            ' JOIN trajectories t ON t."group" = g.id JOIN policies p ON p.id = g.policy WHERE p.task = ?',
            [number],
        ).fetchall()
    heard: dict[tuple[str, str], Counter[str]] = {}
    for split, suite, component, _, turns in groups:
        asked = json.loads(turns)[0]["text"]
        heard.setdefault((split, suite or component), Counter())[asked] += 1
    kinds = {place: {"letter" if one.isalpha() else "word" if len(one) > 1 else "digit" for one in texts}
             for place, texts in heard.items()}  # fmt: skip
    assert kinds == {
        ("train", "letters"): {"letter"},
        ("train", "digits"): {"digit"},
        ("eval", "letters"): {"letter"},
        ("eval", "digits"): {"digit"},
        ("eval", "words"): {"word"},
    }
    assert set(heard["eval", "digits"]) == set("6789") and set(heard["train", "digits"]) <= set("012345")
    assert not set(heard["train", "letters"]) & set(heard["eval", "letters"])
    shares = Counter(component for split, _, component, *_ in {row[:4] for row in groups} if split == "train")
    assert shares == {"letters": 12, "digits": 4}
    assert "component letters 75%, held-out " in " ".join(lab.marlaas("show", str(number)).split())
    found = json.loads(lab.marlaas("env", "replay", str(number), "--component", "digits", "--json"))
    assert found["rewards"] == found["unchanged"] == 4 * 4
    lab.sound(number)
