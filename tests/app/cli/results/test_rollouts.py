"""rollouts: from the steps of a task down to what was said in a group, for eyes and for other programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ...commanding import Commander
from ...filling import HOSTILE, Filling, fill_hostile
from ...filling_policies import fill_duel
from ...filling_rollouts import fill_rollouts


@pytest.fixture
def played(filling: Filling) -> Filling:
    fill_rollouts(filling, 10)
    return filling


def test_steps_and_evaluations(played: Filling, marlaas: Commander) -> None:
    lines = marlaas("rollouts", "1").out.splitlines()
    assert lines[0].split() == ["STEP", "KIND", "REWARD", "GROUPS", "FAILED"] and len(lines) == 12
    assert lines[1].split() == ["1", "training", "0.05", "8", "1"] and lines[-1].split()[:2] == ["10", "held-out"]
    rows = marlaas("rollouts", "1", "--json").json
    row = {"split": "train", "step": 1, "groups": 8, "reward": rows[0]["reward"], "failed": 1, "failures": 1}
    assert rows[0] == row
    assert len(marlaas("rollouts", "1", "--eval", "--json").json) == 1


def test_the_groups_of_a_step(played: Filling, marlaas: Commander) -> None:
    played.execute("UPDATE groups SET number = 999 WHERE number = 17")  # stored before those of lower numbers
    lines = marlaas("rollouts", "1", "--step", "3").out.splitlines()
    assert [row.split()[0] for row in lines[1:]] == ["16", *map(str, range(18, 24)), "999"]
    assert lines[0].split() == [
        "GROUP", "PROMPT", "MEMBERS", "REWARD", "REPLIES", "STALENESS", "INSTANCE", "ENVIRONMENT"
    ]  # fmt: skip
    assert lines[1].split()[0] == "16" and "1 old" in lines[1] and "What is 16 + 0?" in lines[1]
    assert "✗ 16, …kes room, ✗ 17, …" in lines[1] and ", +5 others" in lines[1]
    assert "!" in lines[3] and "!" not in lines[1], "failures have a sign of their own"
    groups = marlaas("rollouts", "1", "--step", "3", "--json").json
    assert groups[0]["number"] == 16 and groups[0]["staleness"] == 1 and len(groups[0]["members"]) == 8
    assert groups[0]["prompt"] == "What is 16 + 0?" and groups[0]["members"][1]["reply"].startswith("17, so that")
    assert "has no groups of an evaluation at step 3" in marlaas("rollouts", "1", "--step", "3", "--eval").err


def test_what_was_said_in_a_group(played: Filling, marlaas: Commander) -> None:
    said = marlaas("rollouts", "1", "--group", "16").out
    assert said.count("What is 16 +") == 8 and "step 3" in said
    records = marlaas("rollouts", "1", "--group", "16", "--json").json
    assert [record["member"] for record in records] == list(range(8)) and len(records[0]["trajectories"]) == 1
    (failed,) = marlaas("rollouts", "1", "--group", "19", "--failures", "--json").json
    assert failed["failure"]["line"] == 12
    assert marlaas("rollouts", "1", "--search", "IS 16 +").out.count("What is 16 +") == 8
    assert marlaas("rollouts", "1", "--search", "IS 16 +", "--step", "4").out == ""
    assert len(marlaas("rollouts", "1", "--eval", "--step", "10", "--group", "2", "--json").json) == 1


def test_agents_of_an_episode_stand_in_their_order(filling: Filling, marlaas: Commander, tmp_path: Path) -> None:
    """Also across the groups of several policies, in every form."""
    fill_duel(filling.path)
    for agent, places in {"first": [0, 5], "second": [1, 2], "referee": [3, 4]}.items():
        filling.execute("UPDATE trajectories SET places = ? WHERE agent = ?", json.dumps(places), agent)
    file = tmp_path / "all.txt"
    assert marlaas("rollouts", "2", "--out", str(file)).code == 0
    for text in (marlaas("rollouts", "2", "--group", "0").out, file.read_text()):
        order = [line for line in text.split("\n") if line in ("second 0", "referee 0", "first 0", "user → first")]
        assert order[:4] == ["user → first", "second 0", "referee 0", "first 0"]
    assert marlaas("rollouts", "2", "--group", "0").out.count("first 0") == 1, "nobody is told twice"
    records = marlaas("rollouts", "2", "--group", "0", "--json").json
    told = sorted((turn["at"], turn["text"]) for record in records if not record["member"] for turn in record["turns"])
    assert [text for _, text in told] == ["go", "go", "second 0", "go", "referee 0", "first 0"]
    assert all(record["order_known"] for record in records)
    filling.execute("UPDATE trajectories SET places = NULL")
    assert "who spoke when is a guess" in marlaas("rollouts", "2", "--group", "0").out


def test_taking_away(played: Filling, marlaas: Commander, tmp_path: Path) -> None:
    def count(*arguments: str) -> int:
        return len([json.loads(line) for line in marlaas("rollouts", "1", "--jsonl", *arguments).out.splitlines()])

    assert [count(), count("--failures"), count("--step", "3"), count("--eval")] == [648, 10, 64, 8]
    file = tmp_path / "group.jsonl"
    said = marlaas("rollouts", "1", "--group", "16", "--out", str(file))
    assert said.out == f"{file}\n" and "8 conversations written" in said.err and len(file.read_text().splitlines()) == 8
    again = marlaas("rollouts", "1", "--out", str(file))
    assert again.code == 2 and "is there already" in again.err
    assert marlaas("rollouts", "1", "--step", "3", "--failures", "--out", str(tmp_path / "a.txt")).code == 0
    assert "the sum was no number" in (tmp_path / "a.txt").read_text()
    nowhere = marlaas("rollouts", "1", "--out", str(tmp_path / "no" / "where"))
    assert nowhere.code == 2 and "cannot be written" in nowhere.err


def test_what_is_not_there(played: Filling, marlaas: Commander) -> None:
    assert "There is no task 7" in marlaas("rollouts", "7").err
    missing = marlaas("rollouts", "1", "--group", "999")
    assert missing.code == 2 and "has no group 999" in missing.err
    assert marlaas("rollouts", "1", "--step", "9" * 30).code == 2
    played.task()
    assert marlaas("rollouts", "2").err == "There are no episodes yet.\n"


def test_foreign_words_are_safe(filling: Filling, marlaas: Commander) -> None:
    fill_hostile(filling.path)
    for arguments in (("1",), ("1", "--step", "12"), ("1", "--group", "96")):
        said = marlaas("rollouts", *arguments).out
        assert not {"\x1b", "\x00", "\x07", "\u202e", "\ud800"} & set(said)
    assert marlaas("rollouts", "1", "--jsonl").out.isascii()
    assert marlaas("rollouts", "1", "--group", "96", "--json").json[0]["turns"][0]["text"] == HOSTILE
