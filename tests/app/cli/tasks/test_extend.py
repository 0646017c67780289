"""extend: the engine is asked for so many steps all told, and its answer decides."""

from __future__ import annotations

import json

import pytest

from marlaas.app.operations import commands
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.reader import Reader

from ...commanding import Commander, FakeEngine
from ...filling import Filling


def answering(filling: Filling, monkeypatch: pytest.MonkeyPatch, outcome: str) -> None:
    """The pretended engine carries out whatever was asked."""

    def wait(reader: Reader, commands: list[int]) -> dict[int, str]:
        filling.execute("UPDATE commands SET done = 1, outcome = ?", outcome)
        return reader.command_outcomes(commands)

    monkeypatch.setattr(commands, "wait_for_outcomes", wait)


def test_asks_for_steps_all_told(
    filling: Filling, home: Home, marlaas: Commander, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    filling.task(steps=60)
    filling.task(steps=1000)
    engine.living = False
    answering(filling, monkeypatch, "")
    said = marlaas("extend", "1", "2", "--steps", "40")
    assert (said.code, said.err) == (0, "Task 1 has 100 steps.\nTask 2 has 1,040 steps.\n")
    assert engine.asked[0] == "start"
    with Reader(home.database) as reader:
        rows = reader.all("SELECT kind, task, arguments FROM commands")
    assert [(row["kind"], row["task"], json.loads(row["arguments"])) for row in rows] == [
        ("extend", 1, {"steps": 100}),
        ("extend", 2, {"steps": 1040}),
    ]


def test_a_refusal_is_said(
    filling: Filling, marlaas: Commander, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    filling.task(state="failed")
    answering(filling, monkeypatch, "A task that is failed cannot be extended.\x1b[31m")
    said = marlaas("extend", "1", "--steps", "4")
    assert (said.code, said.err) == (2, "marlaas: Task 1: A task that is failed cannot be extended.\n")


def test_another_priority(
    filling: Filling, home: Home, marlaas: Commander, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    filling.task(steps=60)
    answering(filling, monkeypatch, "")
    said = marlaas("extend", "1", "--priority", "-3")
    assert (said.code, said.err) == (0, "Task 1 has priority -3.\n")
    with Reader(home.database) as reader:
        (row,) = reader.all("SELECT kind, task, arguments FROM commands")
    assert (row["kind"], row["task"], json.loads(row["arguments"])) == ("priority", 1, {"priority": -3})
    assert marlaas("extend", "1").code == 2
