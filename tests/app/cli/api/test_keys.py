"""`api key`: made and revoked without an engine, shown once, listed with what they have used."""

from __future__ import annotations

import pytest

from marlaas.engine.gateway.keys import digest
from marlaas.engine.home.paths import Home
from marlaas.engine.store.store import Store
from marlaas.engine.store.tasks import KeyUse

from ...commanding import Commander
from ...filling import Filling


def test_a_key_is_printed_once_and_stored_as_a_hash(home: Home, marlaas: Commander) -> None:
    said = marlaas("api", "key", "new", "ada", "--name", "laptop", "--scopes", "train, chat")
    key = said.out.strip()
    assert said.code == 0 and key.startswith("tml-ada-") and "shown this once, for chat and train" in said.err
    assert all(key.encode() not in file.read_bytes() for file in home.root.iterdir() if file.is_file())
    (row,) = marlaas("api", "key", "list", "--json").json
    assert (row["tenant"], row["name"], row["scopes"]) == ("ada", "laptop", ["chat", "train"])
    assert key.startswith(row["prefix"]) and "hash" not in row and row["revoked"] is None


def test_a_key_for_programs(marlaas: Commander) -> None:
    made = marlaas("api", "key", "new", "two words", "--json").json
    assert made["key"].startswith(made["prefix"]) and made["prefix"].startswith("tml-two-words-")
    assert (made["id"], made["tenant"], made["name"], made["scopes"]) == (1, "two words", "", ["chat"])


def test_keys_are_listed_with_what_they_have_used(home: Home, marlaas: Commander) -> None:
    assert "marlaas api key new TENANT" in marlaas("api", "key", "list").err
    keys = [marlaas("api", "key", "new", tenant).out.strip() for tenant in ("ada", "bob")]
    store = Store(home.database, "tiny")
    store.api.add_use([KeyUse(2, 3, 12_345, 678, 1.0)])
    assert store.api.key(digest(keys[0])) is not None
    store.close()
    assert marlaas("api", "key", "revoke", keys[0]).err == f"The key {keys[0][:14]}… of tenant ada is revoked.\n"
    heading, ada, bob = marlaas("api", "key", "list").out.splitlines()
    assert heading.split()[:3] == ["KEY", "TENANT", "NAME"]
    assert ada.split()[:4] == [f"{keys[0][:14]}…", "ada", "chat", "0"] and "never" in ada and "revoked" in ada
    assert bob.split()[3:6] == ["3", "12.3k", "678"] and bob.endswith("holds")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("new", ""), "A tenant's name must be a printable text of 1 to 200 characters."),
        (("new", "\x1b[2J"), "A tenant's name must be a printable text"),
        (("new", "ada", "--name", "a\nb"), "A key's name must be a printable text"),
        (("new", "ada", "--scopes", "chat,cook"), "There is no scope 'cook'. \n  Known are chat, train, admin."),
        (("new", "ada", "--scopes", ","), "A key needs a scope."),
        (("revoke", "tml-nobody"), "No key begins with 'tml-nobody'."),
        (("revoke", ""), "No key begins with ''."),
    ],
)
def test_what_cannot_be_is_one_sentence(marlaas: Commander, words: tuple[str, ...], sentence: str) -> None:
    said = marlaas("api", "key", *words)
    assert said.code == 2 and said.out == "" and sentence.partition(" \n")[0] in said.err
    assert marlaas("api", "key", "list", "--json").json == []


def test_several_keys_that_begin_alike(marlaas: Commander) -> None:
    for _ in range(2):
        marlaas("api", "key", "new", "ada")
    said = marlaas("api", "key", "revoke", "tml-ada")
    assert said.code == 2 and "2 keys begin with 'tml-ada'." in said.err


def test_keys_are_completed(filling: Filling, marlaas: Commander) -> None:
    keys = [marlaas("api", "key", "new", "ada").out.strip() for _ in range(2)]
    marlaas("api", "key", "revoke", keys[0])
    assert marlaas("completion", "--words", "keys").out == f"{keys[1][:14]}\n"
