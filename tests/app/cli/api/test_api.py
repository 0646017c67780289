"""`api start | stop | status`: what the engine is asked, and what is said with one that runs and without."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from marlaas.app.operations import api, commands as commands_module
from marlaas.engine.gateway import processes as gateways
from marlaas.engine.home.paths import Home
from marlaas.engine.store.store import Store

from ...commanding import Commander, FakeEngine
from ...filling import Filling

URL = "http://127.0.0.1:8777"
Answering = Callable[[str], None]


@pytest.fixture
def answering(home: Home, monkeypatch: pytest.MonkeyPatch, engine: FakeEngine) -> Answering:
    """An engine that runs, gives every command the same outcome, and opens the API where that is none."""

    def answer(outcome: str) -> None:
        def wait(reader: object, commands: list[int]) -> dict[int, str]:
            if outcome == "silence":
                return {}
            if not outcome:
                store = Store(home.database, "tiny")
                store.telemetry.heartbeat(store.incarnation, "running")
                store.api.tell(True, URL)
                store.close()
            return dict.fromkeys(commands, outcome)

        monkeypatch.setattr(commands_module, "holder", lambda path: 1)
        monkeypatch.setattr(commands_module, "wait_for_outcomes", wait)
        monkeypatch.setattr(api, "answers", lambda url: url == URL)
        monkeypatch.setattr(gateways, "NEEDS", ())

    return answer


def asked(home: Home) -> list[tuple[str, dict[str, object]]]:
    store = Store(home.database, "tiny")
    commands = [(command.kind, command.arguments) for command in store.tasks.new_commands()]
    store.close()
    return commands


def test_starts_and_prints_the_address(
    filling: Filling, home: Home, marlaas: Commander, answering: Answering, engine: FakeEngine
) -> None:
    engine.living = False
    answering("")
    said = marlaas("api", "start", "--port", "0")
    assert (said.code, said.out, engine.asked) == (0, f"{URL}\n", ["start"])
    assert "marlaas api key new TENANT" in said.err
    assert marlaas("api", "start", "--json").json == {"url": URL}
    assert asked(home) == [("api_start", {"port": 0}), ("api_start", {"port": None})]
    marlaas("api", "key", "new", "ada")
    assert marlaas("api", "start").err == ""


def test_a_refusal_is_said(filling: Filling, marlaas: Commander, answering: Answering) -> None:
    answering("The API cannot listen at 127.0.0.1, port 80: Permission denied.")
    said = marlaas("api", "start", "--port", "80")
    assert said.code == 2 and said.out == "" and "port 80: Permission denied." in said.err
    answering("silence")
    said = marlaas("api", "start")
    assert said.code == 3 and "has not answered" in said.err


def test_without_the_extra_it_says_how_to_install_it(
    marlaas: Commander, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateways, "NEEDS", ("no_such_library",))
    said = marlaas("api", "start")
    assert said.code == 2 and "pip install 'marlaas[api]'" in said.err and engine.asked == []


@pytest.mark.parametrize("port", ["70000", "-1", "http", "8.5"])
def test_a_port_that_is_none(marlaas: Commander, engine: FakeEngine, port: str) -> None:
    said = marlaas("api", "start", f"--port={port}")
    assert said.code == 2 and "is no whole number from 0 to 65,535" in said.err and engine.asked == []


def test_stops(filling: Filling, home: Home, marlaas: Commander, answering: Answering) -> None:
    said = marlaas("api", "stop")
    assert said.code == 0 and "the next one keeps the API closed" in said.err
    answering("")
    assert marlaas("api", "stop").err.startswith("The API is closed")
    assert asked(home) == [("api_stop", {}), ("api_stop", {})]


def test_says_whether_it_is_open(home: Home, filling: Filling, marlaas: Commander, answering: Answering) -> None:
    said = marlaas("api", "status")
    assert said.code == 3 and said.out.splitlines() == ["api   closed: no engine runs", "keys  0 keys"]
    answering("")
    marlaas("api", "start")
    marlaas("api", "key", "new", "ada")
    said = marlaas("api", "status")
    assert said.code == 0 and said.out.startswith(f"api   open at {URL}, ") and "keys  1 key\n" in said.out
    shown = marlaas("api", "status", "--json").json
    assert (shown["open"], shown["engine"], shown["url"], shown["keys"]) == (True, True, URL, 1)
    store = Store(home.database, "tiny")
    store.telemetry.heartbeat(store.incarnation, "running")
    store.api.tell(False, note="Another program has this port.")
    store.close()
    said = marlaas("api", "status")
    assert said.code == 3 and "Another program has this port." in said.out
