"""Keys and the state of the API: what other processes write, and what the engine finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.errors import ConfigError, StoreError
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import ApiRow
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import add_key, revoke_key


def test_a_key_is_found_by_its_hash_alone(store: Store, database: Path) -> None:
    assert not store.api.any_key()
    number = add_key(database, "ada", "laptop", b"1" * 32, "tml-ada-abc", ("chat", "train"))
    row = store.api.key(b"1" * 32)
    assert row is not None and (row.id, row.tenant, row.name) == (number, "ada", "laptop")
    assert (row.scopes, row.last_use, row.revoked, row.requests) == (("chat", "train"), None, None, 0)
    assert store.api.key(b"2" * 32) is None and store.api.any_key()
    with Reader(database) as reader:
        assert reader.api_keys() == [row]
    with pytest.raises(StoreError):
        add_key(database, "bob", "", b"1" * 32, "tml-bob-abc", ("chat",))


def test_a_key_is_revoked_by_how_it_begins(store: Store, database: Path) -> None:
    for number, prefix in enumerate(("tml-ada-abc", "tml-ada-abd", "tml-bob-x%_")):
        add_key(database, prefix[4:7], "", bytes([number]) * 32, prefix, ("chat",))
    for wrong, sentence in (
        ("tml-ada-ab", "2 keys begin"),
        ("tml-eve", "No key begins"),
        ("", "No key begins"),
        ("%", "No"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            revoke_key(database, wrong)
    assert revoke_key(database, "tml-ada-abc and all the rest") == ("tml-ada-abc", "ada")
    row = store.api.key(bytes([0]) * 32)
    assert row is not None and row.revoked is not None
    with pytest.raises(ConfigError, match="was revoked before"):
        revoke_key(database, "tml-ada-abc")
    assert revoke_key(database, "tml-ada-ab") == ("tml-ada-abd", "ada"), "the one that holds"
    assert revoke_key(database, "tml-bob-x%_") == ("tml-bob-x%_", "bob") and not store.api.any_key()


def test_the_state_outlives_the_engine(store: Store, database: Path) -> None:
    assert store.api.state() == ApiRow()
    with Reader(database) as reader:
        assert reader.api_state() is None
    store.api.tell(False, note="why")
    store.api.switch(True, 99)
    store.api.tell(True, "http://127.0.0.1:99")
    with Reader(database) as reader:
        state = reader.api_state()
    assert state is not None and state.since is not None
    assert (state.switched, state.port, state.open, state.url, state.note) == (
        True,
        99,
        True,
        "http://127.0.0.1:99",
        "",
    )
    store.api.switch(False)
    assert (store.api.state().switched, store.api.state().port, store.api.state().open) == (False, None, True)
