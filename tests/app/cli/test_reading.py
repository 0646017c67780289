"""The reading verbs: text for people, JSON for programs, and nothing that a terminal would obey."""

from __future__ import annotations

import json
import sqlite3
import time
import tomllib
import unicodedata
from contextlib import closing
from pathlib import Path

import pytest

from marlaas.app.cli import adapters
from marlaas.app.client.home import Home as Client
from marlaas.app.text import tasks
from marlaas.engine.home.paths import Home
from marlaas.engine.spec.task import TaskSpec, parse

from ..commanding import Commander, FakeEngine, Said
from ..filling import HOSTILE, Filling, fill_full, fill_hostile
from ..filling_policies import fill_duel
from ..filling_rollouts import fill_rollouts

VERBS = [
    ("list",),
    ("show", "1"),
    ("logs",),
    ("logs", "1"),
    ("env", "list"),
    ("adapters", "list"),
    ("adapters", "list", "1"),
    ("engine", "status"),
]


def harmless(said: Said) -> bool:
    """Nothing that a terminal would obey."""
    return all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cs", "Cf") for c in said.out + said.err)


def test_hostile_text_is_harmless_and_json_one_document(home: Home, marlaas: Commander) -> None:
    fill_hostile(home.database, time.time())
    for verb in VERBS:
        said = marlaas(*verb)
        assert said.code in (0, 3) and harmless(said), verb
        told = marlaas(*verb, "--json")
        assert told.code in (0, 3) and told.json and told.out.isascii(), verb


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb[-1] != "1"], ids=" ".join)
def test_an_empty_home_says_what_to_do(home: Home, marlaas: Commander, verb: tuple[str, ...]) -> None:
    said = marlaas(*verb)
    assert said.code == (3 if verb == ("engine", "status") else 0)
    assert said.err or "never started" in said.out
    assert json.loads(marlaas(*verb, "--json").out) in ([], marlaas(*verb, "--json").json)


def test_list(home: Home, marlaas: Commander, engine: object) -> None:
    fill_full(home.database, tasks=3)
    lines = marlaas("list").out.splitlines()
    assert lines[0].split() == ["ID", "TENANT", "TASK", "ENVIRONMENT", "STATE", "STEP", "REWARD", "HELD-OUT", "REASON"]
    assert lines[1].split()[:4] == ["1", "physics-lab", "task", "number"]
    assert "waits for a free place" in lines[3]
    assert [task["id"] for task in marlaas("list", "--json").json] == [1, 2, 3]


def test_of_many_scores_first_best_and_last_are_shown(marlaas: Commander, filling: Filling) -> None:
    filling.task(made=80)
    filling.execute("UPDATE evals SET score = 0.9 WHERE step = 20")
    shown = " ".join(marlaas("show", "1").out.split())
    assert "at step 0, best 0.90 ± 0.03 at step 20, " in shown and "at step 80; 9 in all" in shown
    filling.execute("UPDATE evals SET series = 'e0' WHERE step < 80")
    assert "at step 80; 8 of earlier series" in " ".join(marlaas("show", "1").out.split())


def test_list_by_a_query_and_in_an_order(home: Home, marlaas: Commander) -> None:
    fill_full(home.database, tasks=8)
    assert [task["id"] for task in marlaas("list", "--json", "--filter", "state:running tenant:bio").json] == [2]
    assert [task["id"] for task in marlaas("list", "--json", "--sort", "id", "--filter", "step>9").json] == [7, 6, 5, 4]
    assert marlaas("list", "--sort", "step", "--reverse").out.splitlines()[1].split()[0] in ("3", "8")
    said = marlaas("list", "--filter", "reward>high")
    assert (said.code, said.out) == (2, "") and "compared with a number" in said.err
    assert marlaas("list", "--filter", "nobody").err.endswith("None of the 8 tasks matches.\n")


def test_a_task_is_shown_as_the_file_that_would_make_it(filling: Filling, marlaas: Commander) -> None:
    config = TaskSpec("bio", 'sums "quoted" [/INST]', "arithmetic", steps=7).to_json()
    filling.task()
    filling.execute("UPDATE tasks SET config = ?", json.dumps(config))
    said = marlaas("show", "1", "--toml")
    assert said.code == 0 and parse(tomllib.loads(said.out), "again").to_json() == parse(config, "once").to_json()


def test_show_has_what_is_promised(home: Home, marlaas: Commander) -> None:
    fill_full(home.database, tasks=3)
    shown = marlaas("show", "2", "--json").json
    promised = "id tenant name environment state reason step steps reward eval adapter_version staleness tokens seconds"
    assert set(promised.split()) <= set(shown)
    assert [(row["step"], round(row["score"], 2)) for row in shown["eval"]] == [(0, 0.15), (8, 0.38)]
    assert shown["metrics"]["entropy"] == 0.74 and shown["adapter_version"] == "t2-v8-i1"
    assert "held-out 0.15 ± 0.03 at step 0, 0.38 ± 0.03 at step 8" in " ".join(marlaas("show", "2").out.split())


def test_engine_status(home: Home, marlaas: Commander, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "process_exists", lambda pid, heard: True)
    filling = Filling(home.database, time.time())
    filling.engine()
    said = marlaas("engine", "status")
    assert said.code == 0 and "alive 1 s ago" in said.out and "812 MB" in said.out
    with closing(sqlite3.connect(home.database)) as connection, connection:
        connection.execute("UPDATE engines SET placement = ?", ["torch samples on core 0.\nIt\x1b[2J trains, too."])
    placed = marlaas("engine", "status").out
    assert "placed  torch samples on core 0.\n        It" in placed and "\x1b" not in placed
    filling.engine(age=60)
    assert marlaas("engine", "status", "--json").json["state"] == "silent"
    filling.engine(state="stopped")
    said = marlaas("engine", "status")
    assert said.code == 3 and "stopped " in said.out


def test_home_may_stand_before_or_after_the_verb(
    home: Home, marlaas: Commander, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_full(home.database, tasks=2)
    monkeypatch.setenv("MARLAAS_HOME", "/nowhere")
    root = str(home.root)
    assert len(marlaas("--home", root, "list", "--json").json) == 2
    assert len(marlaas("list", "--json", "--home", root).json) == 2
    assert len(marlaas("--home", root).out.splitlines()) == 3


def test_list_shows_what_fits_and_how_sweeps_stand(filling: Filling, marlaas: Commander) -> None:
    for number, state in enumerate(("done", "running", "queued"), 1):
        filling.task(name=f"sums [seed={number}]", state=state, made=30 * (state != "queued"))
    filling.execute("UPDATE tasks SET family = 'sums'")
    filling.task(tenant="bio", state="queued")
    said = marlaas("list")
    assert len(said.out.splitlines()) == 5
    summary = "sweep physics-lab/sums, 3 tasks: 1 queued, 1 running, 1 done; best held-out 0.77: task 1, seed=1"
    assert summary in said.err
    shown = {words: [task["id"] for task in marlaas("list", "--json", *words).json] for words in (
        ("--tenant", "bio"), ("--family", "sums"), ("--state", "queued"), ("--state", "queued", "--family", "sums"),
    )}  # fmt: skip
    assert list(shown.values()) == [[4], [1, 2, 3], [3, 4], [3]]
    assert "None of the 4 tasks matches." in marlaas("list", "--tenant", "nobody").err


def test_show_says_what_a_score_rests_on_and_why_there_is_none(marlaas: Commander, filling: Filling) -> None:
    filling.task(made=20)
    filling.execute("UPDATE evals SET n = 62, failures = 2, prompts = 62, samples = 4, pass_at = 0.9, best_of = 0.95")
    shown = " ".join(marlaas("show", "1").out.split())
    assert "0.58 ± 0.03 at step 20 (2 of 64 episodes failed)" in shown
    assert "measured on 62 prompts, 4 samples of each, pass@4 0.90, best@4 0.95, 2 of 64 episodes failed" in shown
    filling.execute("UPDATE evals SET score = NULL, n = 12, failures = 52 WHERE step = 20")
    assert "0.37 ± 0.03 at step 10 (2 of 64 episodes failed), no score at step 20 (52 of 64 episodes failed)" in (
        marlaas("show", "1").out
    )
    assert "no score" in marlaas("list").out and "no score: 52 of 64 episodes failed" in marlaas("metrics", "1").out
    row = json.loads(marlaas("show", "1", "--json").out)
    assert row["score"] is None and row["basis"]["failures"] == 52 and row["eval"][-1]["prompts"] == 62
    filling.task(made=20)
    assert "no score" in marlaas("compare", "1", "2").out
    exported = marlaas("metrics", "1", "--csv").out.splitlines()
    assert {"failures", "prompts", "samples", "pass_at", "best_of", "series"} <= set(exported[0].split(","))


REASON = "sums.py:12: NameError: name 'x' is not defined."


@pytest.fixture
def filled(filling: Filling) -> Filling:
    filling.task(state="running", made=3)
    filling.task(state="blocked", reason=REASON)
    filling.task(state="queued", reason="the only slot is busy; it is next")
    return filling


def test_blocked_tasks_are_found_and_told_apart(
    filled: Filling, marlaas: Commander, engine: FakeEngine, home: Home
) -> None:
    for words in (("--filter", "state:blocked"), ("--state", "blocked")):
        assert [(row["id"], row["state"]) for row in marlaas("list", *words, "--json").json] == [(2, "blocked")]
    assert [row["id"] for row in marlaas("list", "--state", "queued", "--json").json] == [3]
    first = marlaas("list").out.splitlines()[1]
    assert first.split()[0] == "2" and "■ blocked" in first and REASON in first, "it comes first"
    shown = marlaas("show", "2").out
    assert "■ blocked" in shown and REASON in shown and "goes on by itself" in shown
    assert marlaas("show", "2", "--json").json["state"] == "blocked"
    assert [task.id for task in Client(home.root).tasks(state="blocked")] == [2]


def test_without_an_engine_nothing_is_said_to_run(filled: Filling, marlaas: Commander, engine: FakeEngine) -> None:
    engine.living = False
    said = marlaas("list")
    assert said.out.count("○ waiting") == said.out.count("waiting for the engine") == 2
    assert "running" not in said.out and "it is next" not in said.out and "■ blocked" in said.out
    assert "○ waiting" in marlaas("show", "1").out and "waiting for the engine" in marlaas("show", "3").out
    assert [row["state"] for row in marlaas("list", "--json").json] == ["running", "blocked", "queued"]


@pytest.fixture
def wrong(filling: Filling, engine: FakeEngine) -> int:
    """A task with a finding that holds, shown by two rollouts, and one that is over."""
    task = fill_rollouts(filling, 10)
    common = {"policy": 1, "pending": 0, "created": 1.0}
    moved, shown = json.dumps({"moved": 1.5}), json.dumps([3, 1])
    filling.insert("findings", code="large_steps", step=8, evidence=moved, rollouts=shown, holds=1, **common)
    filling.insert("findings", code="one_reply", step=9, evidence=moved, rollouts="[]", holds=0, **common)
    return task


def test_show_has_what_was_found(wrong: int, marlaas: Commander) -> None:
    lines = [" ".join(text.split()) for text in marlaas("show", str(wrong)).out.splitlines()]
    first = lines.index("finding Steps too large at step 8")
    assert lines[first + 1].startswith("evidence a step changes the log-probability")
    assert lines[first + 2].startswith("what to do Begin a new task")
    assert lines[first + 3] == f"rollouts 3, 1: `marlaas rollouts {wrong} --finding large_steps`"
    assert lines[first + 4] == "finding One reply for every prompt at step 9, over by now"
    shown = marlaas("show", str(wrong), "--json").json["findings"]
    assert [(one["code"], one["holds"], one["step"]) for one in shown] == [
        ("one_reply", False, 9),
        ("large_steps", True, 8),
    ]
    assert shown[1]["evidence"] == {"moved": 1.5} and shown[1]["rollouts"] == [3, 1] and shown[1]["advice"]


def test_list_marks_the_task(wrong: int, marlaas: Commander) -> None:
    listed = marlaas("list").out
    assert "● running !" in listed and "Steps too large at step 8" in listed
    assert marlaas("list", "--json").json[0]["findings"][1]["code"] == "large_steps"


def test_the_rollouts_that_show_it(wrong: int, marlaas: Commander) -> None:
    records = marlaas("rollouts", str(wrong), "--finding", "large_steps", "--json").json
    assert [record["id"] for record in records] == [3, 1]
    assert marlaas("rollouts", str(wrong), "--finding", "large_steps").out.count("What is") == 2
    said = marlaas("rollouts", str(wrong), "--finding", "large")
    assert said.code == 2 and said.err.endswith("no finding 'large'.\n  It has one_reply, large_steps.\n")


WORDS = f"Some replies make the environment fail at grader.py, line 31 ({HOSTILE}).".replace("\ud800", "")


def test_every_warning_is_shown_made_safe(filling: Filling, marlaas: Commander) -> None:
    task = filling.task("sums")
    for about, words in (("a", WORDS), ("b", "Another.")):
        filling.insert("warnings", task=task, about=about, message=words, created=1.0)
    said = marlaas("show", str(task))
    shown = [text for text in said.out.splitlines() if text.startswith("  warning ")]
    assert len(shown) == 2 and shown[1].endswith(" Another.") and "line 31" in shown[0]
    assert all(letter.isprintable() for text in shown for letter in text)
    listed = marlaas("show", str(task), "--json").json
    assert listed["warnings"] == [WORDS, "Another."] and listed["warning"] == WORDS


@pytest.fixture
def told(filling: Filling) -> Filling:
    """A home in which something happened to two tenants."""
    filling.task("bio", "sums")
    filling.task("physics", "more")
    filling.event("The task is done.", 1)
    filling.event("The task is blocked: 100% broken", 2, "warning")
    filling.event("A worker died.", None, "error")
    return filling


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ((), [1, 2, 3]),
        (("2",), [2]),
        (("--level", "warning"), [2, 3]),
        (("--grep", "TASK", "--grep", "100%"), [2]),
        (("--kind", "test", "-n", "1"), [3]),
        (("--since", "2999-01-01"), []),
    ],
)
def test_only_what_fits(told: Filling, marlaas: Commander, options: tuple[str, ...], ids: list[int]) -> None:
    assert [event["id"] for event in marlaas("logs", "--json", *options).json] == ids
    said = marlaas("logs", *options)
    assert len(said.out.splitlines()) == len(ids)
    assert ids or said.err == "No event matches yet.\n"


def test_following_as_json_lines(told: Filling, marlaas: Commander, monkeypatch: pytest.MonkeyPatch) -> None:
    more = iter(["It goes on."])

    def sleep(seconds: float) -> None:
        message = next(more, "")
        if not message:
            raise KeyboardInterrupt
        told.event(message)

    monkeypatch.setattr(time, "sleep", sleep)
    said = marlaas("logs", "-f", "--json", "-n", "1")
    assert said.code == 130
    assert [json.loads(text)["message"] for text in said.out.splitlines()] == ["A worker died.", "It goes on."]


@pytest.fixture
def duel(home: Home) -> Home:
    """Task 2 trains a player and a judge."""
    fill_duel(home.database)
    return home


def test_list_has_a_line_for_each(duel: Home, marlaas: Commander) -> None:
    lines = [text.split() for text in marlaas("list").out.splitlines()]
    assert lines[2][:3] == ["2", "lab", "duel"] and len(lines) == 7
    assert [row[:3] for row in lines[3:5]] == [["player", "first", "trained"], ["judge", "referee", "trained"]]
    assert lines[3][-5:] == ["1/20", "0.60", "0.75", "±", "0.10"] and lines[5][2:] == ["pool", "of", "player"]
    (first, second) = marlaas("list", "--json").json
    assert first["policies"] == [] and [policy["name"] for policy in second["policies"]][1] == "judge"
    assert second["policies"][1]["reward"] == 0.5 and second["policies"][2]["pool"] == "player"


def test_a_policy_that_is_not_trained_is_refused(duel: Home, marlaas: Commander) -> None:
    said = marlaas("metrics", "2", "--policy", "jugde")
    assert (said.code, said.err) == (2, "marlaas: Task 2 trains no policy 'jugde'.\n  Did you mean 'judge'?\n")
    assert marlaas("show", "2", "--policy", "rivals").code == 2
    assert marlaas("show", "1", "--policy", "policy").code == 0, "what the only one is called"


def test_compare_sets_policies_beside_each_other(duel: Home, marlaas: Commander) -> None:
    head, *rows = marlaas("compare", "2").out.splitlines()
    assert head.split() == ["TASK", "2", "player", "2", "judge"]
    assert ["reward", "0.60", "0.50"] in [row.split() for row in rows]
    assert "Of task 2 this is player; --policy shows judge." in marlaas("metrics", "1", "2").err
    assert [task["policy"] for task in marlaas("compare", "1", "2", "--json").json["tasks"]] == ["", "player", "judge"]
    assert marlaas("compare", "2", "--policy", "judge").code == 2


def test_matrix_says_who_beat_whom(duel: Home, marlaas: Commander) -> None:
    rows = [row.split() for row in marlaas("matrix", "2").out.splitlines()]
    assert " ".join(rows[0]).startswith("player against player: mean reward of the row, its standard error,")
    assert rows[1:5] == [
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


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("rollback", "2/judge@1"), ("rollback", {"version": 1, "policy": "judge"})),
        (("delete", "2/player", "--version", "1"), ("delete", {"version": 1, "policy": "player"})),
        (("delete", "2"), ("delete", {})),
    ],
)
def test_the_engine_is_told_whose_version_it_is(
    duel: Home,
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
