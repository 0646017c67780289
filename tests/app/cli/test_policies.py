"""Tasks of several policies on the command line: all are listed, and what was learned is shown of each."""

from __future__ import annotations

import csv
import io
import unicodedata
from pathlib import Path

import pytest

from marlaas.app.cli import adapters
from marlaas.engine.home.paths import Home

from ..commanding import Commander, FakeEngine
from ..filling import Filling
from ..filling_policies import fill_duel


@pytest.fixture
def filled(home: Home) -> Home:
    """Task 2 trains a player and a judge."""
    fill_duel(home.database)
    return home


def test_list_has_a_line_for_each(filled: Home, marlaas: Commander) -> None:
    lines = [text.split() for text in marlaas("list").out.splitlines()]
    assert lines[2][:3] == ["2", "lab", "duel"] and len(lines) == 7
    assert [row[:3] for row in lines[3:5]] == [["player", "first", "trained"], ["judge", "referee", "trained"]]
    assert lines[3][-5:] == ["1/20", "0.60", "0.75", "±", "0.10"] and lines[5][2:] == ["pool", "of", "player"]
    (first, second) = marlaas("list", "--json").json
    assert first["policies"] == [] and [policy["name"] for policy in second["policies"]][1] == "judge"
    assert second["policies"][1]["reward"] == 0.5 and second["policies"][2]["pool"] == "player"


def test_a_policy_that_is_not_trained_is_refused(filled: Home, marlaas: Commander) -> None:
    said = marlaas("metrics", "2", "--policy", "jugde")
    assert (said.code, said.err) == (2, "marlaas: Task 2 trains no policy 'jugde'.\n  Did you mean 'judge'?\n")
    assert marlaas("show", "2", "--policy", "rivals").code == 2
    assert marlaas("show", "1", "--policy", "policy").code == 0, "what the only one is called"


def test_metrics_are_of_one(filled: Home, marlaas: Commander, tmp_path: Path) -> None:
    said = marlaas("metrics", "1", "2")
    assert "Of task 2 this is player; --policy shows judge." in said.err
    rows = list(csv.DictReader(io.StringIO(marlaas("metrics", "2", "--policy", "judge", "--csv").out)))
    assert [(row["policy"], row["kind"]) for row in rows] == [("judge", "step"), ("judge", "eval")]
    assert marlaas("metrics", "1", "--json").json[0]["policy"] == "policy"
    written = marlaas("metrics", "2", "--policy", "judge", "--tensorboard", str(tmp_path)).out
    assert Path(written.strip()).parent.name == "2-duel-judge"


def test_compare_sets_policies_beside_each_other(filled: Home, marlaas: Commander) -> None:
    head, *rows = marlaas("compare", "2").out.splitlines()
    assert head.split() == ["TASK", "2", "player", "2", "judge"]
    assert ["reward", "0.60", "0.50"] in [row.split() for row in rows]
    assert [task["policy"] for task in marlaas("compare", "1", "2", "--json").json["tasks"]] == ["", "player", "judge"]
    assert marlaas("compare", "2", "--policy", "judge").code == 2


def test_watch_speaks_of_each(filled: Home, marlaas: Commander, engine: FakeEngine) -> None:
    Filling(filled.database).execute("UPDATE tasks SET state = 'done'")
    out = marlaas("watch", "2", "--plain").out
    player = "player at step 1 of 20, reward 0.60, held-out score 0.75 plus or minus 0.10 (4 prompts), judge at step 1"
    assert player in out
    assert "judge: step   1/20  reward 0.50  held-out 0.62" in marlaas("watch", "2").out


def test_matrix_says_who_beat_whom(filled: Home, marlaas: Commander) -> None:
    rows = [row.split() for row in marlaas("matrix", "2").out.splitlines()]
    assert rows[:5] == [
        [
            "player",
            "against",
            "player:",
            "mean",
            "reward",
            "of",
            "the",
            "row,",
            "its",
            "standard",
            "error,",
            "n",
            "episodes",
        ],
        ["v0", "v1", "v3"],
        ["v3", "·", "0.50±0.50", "n2", "·"],
        ["v1", "0.75±0.25", "n2", "·", "0.50±0.50", "n2"],
        ["v0", "·", "0.25±0.25", "n2", "·"],
    ]
    assert rows[6][:3] == ["player", "against", "judge:"]
    judge = marlaas("matrix", "2", "--policy", "judge", "--json").json
    assert [(table["against"], len(table["cells"])) for table in judge] == [("player", 2)]
    assert judge[0]["cells"][0] == {"version": 2, "against_version": 1, "games": 2, "mean": 0.625, "stderr": 0.125}
    assert "has met another one" in marlaas("matrix", "1").err


@pytest.mark.parametrize("verb", [("list",), ("show", "2"), ("watch", "2"), ("matrix", "2"), ("rollouts", "2")])
def test_agents_of_any_name_are_harmless(
    home: Home, marlaas: Commander, engine: FakeEngine, verb: tuple[str, ...]
) -> None:
    filling = fill_duel(home.database, hostile=True)
    filling.execute("UPDATE tasks SET state = 'done'")
    said = marlaas(*verb)
    assert said.code == 0
    assert all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cs", "Cf") for c in said.out + said.err)


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("rollback", "2/judge", "--version", "1"), ("rollback", {"version": 1, "policy": "judge"})),
        (("rollback", "2/judge@1"), ("rollback", {"version": 1, "policy": "judge"})),
        (("delete", "2/judge"), ("delete", {"policy": "judge"})),
        (("delete", "2/player", "--version", "1"), ("delete", {"version": 1, "policy": "player"})),
        (("delete", "2"), ("delete", {})),
    ],
)
def test_the_engine_is_told_whose_version_it_is(
    filled: Home,
    marlaas: Commander,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    asked: tuple[str, dict[str, object]],
) -> None:
    told: list[tuple[str, dict[str, object]]] = []

    def ask(home: Home, kind: str, task: int, **arguments: object) -> None:
        told.append((kind, arguments))

    monkeypatch.setattr(adapters, "ask", ask)
    assert marlaas("adapters", *words).code == 0 and told == [asked]


def test_check_says_who_speaks_for_whom(home: Home, marlaas: Commander, tmp_path: Path) -> None:
    file = tmp_path / "race.toml"
    file.write_text(
        'tenant = "lab"\nname = "race"\nenvironment = "race"\n[policies.player]\n[agents]\nfirst = "player"\n'
        'second = "player"\n[eval]\nrotate = true\nagents = { second = "player@0" }\n'
    )
    out = marlaas("submit", "--check", str(file)).out
    assert "policies of race\n  player acts as first, second: trained, rank 16\n" in out
    assert "  held-out: player@0 for second; the agents change places from prompt to prompt\n" in out


def test_which_version_is_said_once(filled: Home, marlaas: Commander, tmp_path: Path) -> None:
    said = marlaas("adapters", "export", "2/judge@1", "--version", "1", "--out", str(tmp_path / "out"))
    assert said.code == 2 and "says which version, and so does --version" in said.err
    assert "No version is given to go on from." in marlaas("adapters", "rollback", "2/judge").err
