"""Who answers which key, and how others are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.errors import StoreError
from marlaas.engine.gateway import link as module
from marlaas.engine.gateway.keys import new_key
from marlaas.engine.gateway.link import Callers
from marlaas.engine.store.submissions import add_key, revoke_key
from marlaas.engine.wire import Refusal

from .answering import Echo
from .conftest import EchoServing


def refused(callers: Callers, key: str) -> tuple[int, str]:
    with pytest.raises(Refusal) as caught:
        callers.find(key)
    assert caught.value.message.endswith(".") and "\n" not in caught.value.message
    return caught.value.status, caught.value.code


def test_an_episode_is_answered_until_it_is_over(callers: Callers, monkeypatch: pytest.MonkeyPatch) -> None:
    echo = Echo()
    key = callers.admit(echo)
    assert callers.find(key) == (echo, None) and not callers.open
    callers.dismiss(key)
    callers.dismiss(key)
    assert refused(callers, key) == (410, "episode_over") and callers.is_over(key) and callers.episodes == 0
    monkeypatch.setattr(module, "REMEMBERED", 3)
    for _ in range(4):
        callers.dismiss(callers.admit(echo))
    assert refused(callers, key) == (401, "invalid_api_key")


def test_a_client_is_answered_while_the_api_is_open(callers: Callers, key: str, serving: EchoServing) -> None:
    answerer, client = callers.find(key)
    assert answerer is serving.echo and client is not None
    assert (client.tenant, client.scopes) == ("ada", ("chat",))
    callers.open = False
    assert refused(callers, key) == (503, "api_closed")
    callers.open, callers.serving = True, None
    assert refused(callers, key) == (404, "model_not_found")


@pytest.mark.parametrize("open_", [True, False])
def test_a_key_that_nobody_has_is_refused_first(callers: Callers, key: str, tmp_path: Path, open_: bool) -> None:
    callers.open = open_
    for wrong in ("", key + "x", key[:-1], key.upper(), "tml-episode-x", "sk-\ud800'; DROP TABLE api_keys"):
        assert refused(callers, wrong) == (401, "invalid_api_key")
    revoke_key(tmp_path / "marlaas.db", key)
    assert refused(callers, key) == (401, "invalid_api_key")


def test_a_key_is_for_its_scopes(callers: Callers, serving: EchoServing, tmp_path: Path) -> None:
    made = new_key("bob")
    add_key(tmp_path / "marlaas.db", "bob", "", made.digest, made.prefix, ("train",))
    assert refused(callers, made.key) == (403, "scope_missing") and not serving.served


def test_a_database_that_cannot_be_read_is_no_wrong_key() -> None:
    def broken(digest: bytes) -> None:
        raise StoreError("the disk is away.")

    assert refused(Callers(broken), "tml-ada-1") == (503, "engine_busy")
