"""`engine yield` and `engine resume`: what the engine is told, with one that runs and without, and what is said."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from marlaas.app.operations import commands
from marlaas.engine.daemon import control
from marlaas.engine.errors import EngineUnreachable
from marlaas.engine.home.paths import Home
from marlaas.engine.store.store import Store

from ...commanding import Commander
from ...filling import Filling

Answering = Callable[[str], None]


@pytest.fixture
def answering(home: Home, monkeypatch: pytest.MonkeyPatch) -> Answering:
    """An engine that runs and gives every command the same outcome; None of it where the outcome is "silence"."""

    def answer(outcome: str) -> None:
        def wait(reader: object, sent: list[int]) -> dict[int, str]:
            return {} if outcome == "silence" else dict.fromkeys(sent, outcome)

        monkeypatch.setattr(commands, "holder", lambda path: 1)
        monkeypatch.setattr(commands, "wait_for_outcomes", wait)

    return answer


def told(home: Home) -> list[tuple[str, dict[str, float | None]]]:
    """Commands that wait for an engine."""
    store = Store(home.database, "tiny")
    commands = [(command.kind, command.arguments) for command in store.tasks.new_commands()]
    store.close()
    return commands


def test_an_engine_that_runs_yields_at_once(home: Home, marlaas: Commander, answering: Answering) -> None:
    answering("")
    said = marlaas("engine", "yield", "--for", "1h30m")
    assert said.code == 0 and "has yielded the machine until" in said.err and "`marlaas engine resume`" in said.err
    ((kind, arguments),) = told(home)
    assert kind == "yield" and abs((arguments["until"] or 0) - time.time() - 5400) < 60
    assert marlaas("engine", "yield").code == 0 and told(home)[-1] == ("yield", {"until": None})
    said = marlaas("engine", "resume")
    assert said.code == 0 and "tasks go on" in said.err and told(home)[-1] == ("resume_engine", {})
    Filling(home.database, time.time()).engine()
    Filling(home.database).execute("UPDATE engines SET rest = 'hours', rest_until = 7.5")
    assert "outside of active hours until" in marlaas("engine", "resume").err


def test_what_the_engine_refuses_is_said(marlaas: Commander, answering: Answering) -> None:
    answering("It is outside of its active hours.")
    for verb in ("yield", "resume"):
        said = marlaas("engine", verb)
        assert said.code == 2 and "outside of its active hours" in said.err
    answering("silence")
    said = marlaas("engine", "yield")
    assert said.code == EngineUnreachable.exit_code and "has not answered within 30 s" in said.err


def test_the_next_engine_hears_of_it_where_none_runs(home: Home, marlaas: Commander) -> None:
    said = marlaas("engine", "yield", "--for", "2h")
    assert said.code == 0 and "No engine serves" in said.err and "The next one begins yielded until" in said.err
    said = marlaas("engine", "resume")
    assert said.code == 0 and "the next one yields nothing" in said.err
    assert [kind for kind, _ in told(home)] == ["yield", "resume_engine"]


def test_a_span_that_is_none_is_said(marlaas: Commander) -> None:
    said = marlaas("engine", "yield", "--for", "long")
    assert said.code == 2 and "'long' is no span of time" in said.err and "1h30m" in said.err


@pytest.mark.parametrize(
    ("rest", "word", "sentence"),
    [
        ("yielded", "yielded until", "cards and memory are free, and tasks wait"),
        ("hours", "outside of active hours until", ", and tasks wait."),
        ("idle", "alive", "the next task starts the workers"),
    ],
)
def test_the_state_of_the_engine_tells_of_yielding(
    home: Home, marlaas: Commander, monkeypatch: pytest.MonkeyPatch, rest: str, word: str, sentence: str
) -> None:
    filling, until = Filling(home.database, time.time()), time.time() + 3600
    filling.engine()
    filling.execute("UPDATE engines SET rest = ?, rest_until = ?", rest, until)
    said = marlaas("engine", "status")
    assert said.code == 0 and f"engine  {word}" in said.out and sentence in said.out
    shown = json.loads(marlaas("engine", "status", "--json").out)
    assert shown["rest"] == {"kind": rest, "until": until} and shown["alive"]
    monkeypatch.setattr(control, "ensure_running", lambda *_, **__: None)
    assert (sentence in marlaas("engine", "start").err) == (rest != "idle")
