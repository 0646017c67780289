"""The verbs of the API: the server is started, stopped and told of; keys are made, listed and revoked."""

from __future__ import annotations

import pytest

from marlaas.app.operations import api
from marlaas.engine.gateway import api as gateways
from marlaas.engine.gateway.keys import digest
from marlaas.engine.home.paths import Home
from marlaas.engine.store.store import Store
from marlaas.engine.store.tasks import KeyUse

from ..commanding import Commander, FakeEngine
from ..filling import Filling
from .conftest import Outcome, commands_of

URL = "http://127.0.0.1:8777"


@pytest.fixture
def answering(home: Home, monkeypatch: pytest.MonkeyPatch, engine: FakeEngine, outcome: Outcome) -> Outcome:
    """An engine that runs, gives every command the same outcome, and opens the API where that is none."""
    monkeypatch.setattr(api, "answers", lambda url: url == URL)
    monkeypatch.setattr(gateways, "NEEDS", ())

    def answer(text: str) -> None:
        outcome(text)
        if not text:
            tell(home, True, URL)

    return answer


def tell(home: Home, is_open: bool, url: str = "", note: str = "") -> None:
    """What an engine writes of its API."""
    store = Store(home.database, "tiny")
    store.telemetry.heartbeat(store.incarnation, "running")
    store.api.tell(is_open, url, note=note)
    store.close()


def test_starts_and_prints_the_address(
    filling: Filling, home: Home, marlaas: Commander, answering: Outcome, engine: FakeEngine
) -> None:
    engine.living = False
    answering("")
    said = marlaas("api", "start", "--port", "0")
    assert (said.code, said.out, engine.asked) == (0, f"{URL}\n", ["start"])
    assert "marlaas api key new TENANT" in said.err
    assert marlaas("api", "start", "--json").json == {"url": URL}
    assert commands_of(home) == [("api_start", None, {"port": 0}), ("api_start", None, {"port": None})]
    marlaas("api", "key", "new", "ada")
    assert marlaas("api", "start").err == ""


def test_a_refusal_is_said(filling: Filling, marlaas: Commander, answering: Outcome) -> None:
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


def test_stops(filling: Filling, home: Home, marlaas: Commander, answering: Outcome) -> None:
    said = marlaas("api", "stop")
    assert said.code == 0 and "the next one keeps the API closed" in said.err
    answering("")
    assert marlaas("api", "stop").err.startswith("The API is closed")
    assert commands_of(home) == [("api_stop", None, {})] * 2


def test_says_whether_it_is_open(home: Home, filling: Filling, marlaas: Commander, answering: Outcome) -> None:
    said = marlaas("api", "status")
    assert said.code == 3 and said.out.splitlines() == ["api   closed: no engine runs.", "keys  0 keys"]
    answering("")
    marlaas("api", "start")
    marlaas("api", "key", "new", "ada")
    said = marlaas("api", "status")
    assert said.code == 0 and said.out.startswith(f"api   open at {URL} for ") and "keys  1 key\n" in said.out
    shown = marlaas("api", "status", "--json").json
    assert (shown["open"], shown["engine"], shown["url"], shown["keys"]) == (True, True, URL, 1)
    tell(home, False, note="Another program has this port.")
    said = marlaas("api", "status")
    assert said.code == 3 and "Another program has this port." in said.out


def test_a_key_is_printed_once_and_stored_as_a_hash(home: Home, marlaas: Commander) -> None:
    said = marlaas("api", "key", "new", "ada", "--name", "laptop", "--scopes", "train, chat")
    key = said.out.strip()
    assert said.code == 0 and key.startswith("tml-ada-") and "shown this once, for chat and train" in said.err
    assert all(key.encode() not in file.read_bytes() for file in home.root.iterdir() if file.is_file())
    (row,) = marlaas("api", "key", "list", "--json").json
    assert (row["tenant"], row["name"], row["scopes"]) == ("ada", "laptop", ["chat", "train"])
    assert key.startswith(row["prefix"]) and "hash" not in row and row["revoked"] is None


def test_keys_are_listed_with_what_they_have_used(home: Home, marlaas: Commander) -> None:
    assert "marlaas api key new TENANT" in marlaas("api", "key", "list").err
    keys = [marlaas("api", "key", "new", tenant).out.strip() for tenant in ("ada", "bob")]
    store = Store(home.database, "tiny")
    store.api.add_use([KeyUse(2, 3, 12_345, 678, 1.0)])
    assert store.api.key(digest(keys[0])) is not None
    store.close()
    assert marlaas("api", "key", "revoke", keys[0]).err == f"The key {keys[0][:14]}… of tenant ada is revoked.\n"
    assert marlaas("completion", "--words", "keys").out == f"{keys[1][:14]}\n"
    heading, ada, bob = marlaas("api", "key", "list").out.splitlines()
    assert heading.split()[:3] == ["KEY", "TENANT", "NAME"]
    assert ada.split()[:4] == [f"{keys[0][:14]}…", "ada", "chat", "0"] and "never" in ada and "revoked" in ada
    assert bob.split()[3:6] == ["3", "12.3k", "678"] and bob.endswith("holds")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("new", "\x1b[2J"), "A tenant's name must be a printable text"),
        (("new", "ada", "--name", "a\nb"), "A key's name must be a printable text"),
        (("new", "ada", "--scopes", "chat,cook"), "There is no scope 'cook'. \n  Known are chat, train, admin."),
        (("revoke", "tml-nobody"), "No key begins with 'tml-nobody'."),
    ],
)
def test_what_cannot_be_is_one_sentence(marlaas: Commander, words: tuple[str, ...], sentence: str) -> None:
    said = marlaas("api", "key", *words)
    assert said.code == 2 and said.out == "" and sentence.partition(" \n")[0] in said.err
    assert marlaas("api", "key", "list", "--json").json == []
