"""Blocked tasks, and tasks without an engine, as `list`, `show` and the Python client tell of them."""

from __future__ import annotations

import pytest

from marlaas.app.client.home import Home as Client
from marlaas.engine.home.paths import Home

from ...commanding import Commander, FakeEngine
from ...filling import Filling

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
