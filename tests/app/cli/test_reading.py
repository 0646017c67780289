"""The reading verbs: text for people, JSON for programs, and nothing that a terminal would obey."""

from __future__ import annotations

import json
import sqlite3
import time
import tomllib
import unicodedata
from contextlib import closing

import pytest

from marlaas.app.cli.tasks import scores_in_words
from marlaas.app.text import tasks
from marlaas.engine.home.paths import Home
from marlaas.engine.spec.task import TaskSpec, parse
from marlaas.engine.store.rows import EvalRow

from ..commanding import Commander
from ..filling import Filling, fill_full, fill_hostile

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


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_hostile_text_is_harmless(home: Home, marlaas: Commander, verb: tuple[str, ...]) -> None:
    fill_hostile(home.database, time.time())
    said = marlaas(*verb)
    assert said.code in (0, 3)
    assert all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cs", "Cf") for c in said.out + said.err)


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_json_is_one_document(home: Home, marlaas: Commander, verb: tuple[str, ...]) -> None:
    fill_hostile(home.database, time.time())
    said = marlaas(*verb, "--json")
    assert said.code in (0, 3) and said.json and said.out.isascii()


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


def test_a_reason_of_pages_is_cut_in_the_list_and_whole_in_show(filling: Filling, marlaas: Commander) -> None:
    filling.task(state="paused", reason="z" * 4000)
    assert len(marlaas("list").out.splitlines()[1]) < 300
    assert "z" * 4000 in marlaas("show", "1").out and "z" * 4000 in marlaas("list", "--json").out


def test_show_has_what_is_promised(home: Home, marlaas: Commander) -> None:
    fill_full(home.database, tasks=3)
    shown = marlaas("show", "2", "--json").json
    promised = "id tenant name environment state reason step steps reward eval adapter_version staleness tokens seconds"
    assert set(promised.split()) <= set(shown)
    assert [(row["step"], round(row["score"], 2)) for row in shown["eval"]] == [(0, 0.15), (8, 0.38)]
    assert shown["metrics"]["entropy"] == 0.74 and shown["adapter_version"] == "t2-v8-i1"
    assert "held-out 0.15 ± 0.03 at step 0, 0.38 ± 0.03 at step 8" in " ".join(marlaas("show", "2").out.split())


@pytest.mark.parametrize("verb", ["show", "pause", "resume", "cancel", "wait", "logs"])
def test_unknown_tasks(home: Home, marlaas: Commander, verb: str, engine: object) -> None:
    said = marlaas(verb, "7")
    assert (said.code, said.out) == (2, "")
    assert said.err == "marlaas: There is no task 7.\n  `marlaas list` shows the tasks.\n"


def test_numbers_that_json_lacks(filling: Filling, marlaas: Commander) -> None:
    filling.task(made=1)
    filling.execute("UPDATE metrics SET value = 9e999 WHERE name = 'loss'")
    assert marlaas("show", "1", "--json").json["metrics"]["loss"] is None
    assert marlaas("show", "1").code == 0


def test_environment_errors_name_the_place(filling: Filling, marlaas: Commander) -> None:
    filling.environment("broken", "broken", "SyntaxError: invalid syntax")
    said = marlaas("env", "list")
    assert "broken: SyntaxError: invalid syntax (arithmetic.py:7)" in said.err
    assert said.out.splitlines()[1].split()[:4] == ["broken", "broken", "9f2c41aa", "digits=2"]


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


def test_engine_status_lists_a_worker_that_is_started_again(home: Home, marlaas: Commander) -> None:
    filling = Filling(home.database, time.time())
    filling.engine()
    with closing(sqlite3.connect(home.database)) as connection, connection:
        connection.execute(
            "UPDATE workers SET state = 'starting', pid = NULL, started = 0, rss = 0, busy = 0 WHERE name = 'rollout'"
        )
    (told,) = [words.split() for words in marlaas("engine", "status").out.splitlines() if words.startswith("rollout")]
    assert told[:2] == ["rollout", "starting"] and "%" not in "".join(told), "it has no process to tell of"
    assert marlaas("engine", "status", "--plain").code == 0
    workers = {worker["name"]: worker for worker in marlaas("engine", "status", "--json").json["workers"]}
    assert workers["rollout"]["pid"] is None and workers["training"]["pid"]


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


def test_show_compares_scores_of_one_series(marlaas: Commander, filling: Filling) -> None:
    filling.task(made=20)
    filling.execute("UPDATE evals SET series = 'e0' WHERE step < 20")
    (shown,) = [text for text in marlaas("show", "1").out.splitlines() if text.strip().startswith("held-out")]
    assert "at step 20; 2 of earlier series" in shown and "at step 0" not in shown


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


def evaluated(*scores: float | None) -> list[EvalRow]:
    return [EvalRow(10 * place, "v", score, 0.04, 64, None, {}) for place, score in enumerate(scores)]


def test_of_many_scores_the_first_the_best_and_the_last_are_told() -> None:
    few = scores_in_words(evaluated(0.1, 0.2, None, 0.3, 0.4, 0.5))
    assert few.count(" at step ") == 6 and "in all" not in few
    assert scores_in_words(evaluated(0.1, 0.2, 0.9, None, 0.4, 0.5, 0.6)) == (
        "0.10 ± 0.04 at step 0, best 0.90 ± 0.04 at step 20, last 0.60 ± 0.04 at step 60; 7 in all"
    )
    rising = scores_in_words(evaluated(*(place / 10 for place in range(8))))
    assert rising == "0.00 ± 0.04 at step 0, best and last 0.70 ± 0.04 at step 70; 8 in all"
    flat = scores_in_words(evaluated(None, *[0.5] * 6, None))
    assert flat.startswith("no score at step 0, best 0.50 ± 0.04 at step 10, last no score at step 70")
    assert scores_in_words(evaluated(0.9, *[0.5] * 6)).startswith("best 0.90 ± 0.04 at step 0, last 0.50")
