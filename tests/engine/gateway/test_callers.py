"""Who answers which key, and how others are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.errors import StoreError
from marlaas.engine.gateway.keys import new_key
from marlaas.engine.gateway.link import Desk
from marlaas.engine.store.submissions import add_key, revoke_key
from marlaas.engine.wire import Refusal

from .answering import Echo
from .conftest import EchoServing


def refused(desk: Desk, key: str) -> tuple[int, str]:
    with pytest.raises(Refusal) as caught:
        desk.find(key)
    assert caught.value.message.endswith(".") and "\n" not in caught.value.message
    return caught.value.status, caught.value.code


def test_an_episode_is_answered_until_it_is_over(desk: Desk) -> None:
    echo = Echo()
    key = desk.admit(echo)
    assert desk.find(key) == (echo, None) and not desk.open
    desk.dismiss(key)
    desk.dismiss(key)
    assert refused(desk, key) == (410, "episode_over") and desk.is_over(key)
    assert refused(desk, "tml-episode-of-the-engine-before") == (410, "episode_over")


@pytest.mark.parametrize("tenant", ["episode", "episode lab"])
def test_a_tenant_named_like_an_episode_is_answered(
    desk: Desk, serving: EchoServing, tmp_path: Path, tenant: str
) -> None:
    made = new_key(tenant)
    add_key(tmp_path / "marlaas.db", tenant, "", made.digest, made.prefix, ("chat",))
    answerer, client = desk.find(made.key)
    assert answerer is serving.echo and client is not None and client.tenant == tenant
    revoke_key(tmp_path / "marlaas.db", made.key)
    assert refused(desk, made.key) == (401, "invalid_api_key")


def test_a_client_is_answered_while_the_api_is_open(desk: Desk, key: str, serving: EchoServing) -> None:
    answerer, client = desk.find(key)
    assert answerer is serving.echo and client is not None
    assert (client.tenant, client.scopes) == ("ada", ("chat",))
    desk.open = False
    assert refused(desk, key) == (503, "api_closed")
    desk.open, desk.serving = True, None
    assert refused(desk, key) == (404, "model_not_found")


@pytest.mark.parametrize("open_", [True, False])
def test_a_key_that_nobody_has_is_refused_first(desk: Desk, key: str, tmp_path: Path, open_: bool) -> None:
    desk.open = open_
    for wrong in ("", key + "x", key[:-1], key.upper(), "sk-\ud800'; DROP TABLE api_keys"):
        assert refused(desk, wrong) == (401, "invalid_api_key")
    revoke_key(tmp_path / "marlaas.db", key)
    assert refused(desk, key) == (401, "invalid_api_key")


def test_a_key_is_for_its_scopes(desk: Desk, serving: EchoServing, tmp_path: Path) -> None:
    made = new_key("bob")
    add_key(tmp_path / "marlaas.db", "bob", "", made.digest, made.prefix, ("train",))
    assert refused(desk, made.key) == (403, "scope_missing") and not serving.served


def test_a_database_that_cannot_be_read_is_no_wrong_key() -> None:
    def broken(digest: bytes) -> None:
        raise StoreError("the disk is away.")

    assert refused(Desk(broken, lambda uses: None, lambda *line: None), "tml-ada-1") == (503, "engine_busy")
