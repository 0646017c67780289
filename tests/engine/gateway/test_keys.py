"""Keys: what they look like, and what is kept of them."""

from __future__ import annotations

import string

import pytest

from marlaas.engine.errors import ConfigError
from marlaas.engine.gateway.keys import check_scopes, digest, new_episode_key, new_key

SAFE = set(string.ascii_letters + string.digits + "-_.")


@pytest.mark.parametrize("tenant", ["ada", "physics-lab", "zwei Wörter", "💡", "x" * 200, "a\tb"])
def test_any_tenants_key_can_stand_in_a_header(tenant: str) -> None:
    made = new_key(tenant)
    assert made.key.startswith("tml-") and set(made.key) <= SAFE and len(made.key) < 90
    assert made.key.startswith(made.prefix) and len(made.key) - len(made.prefix) >= 32
    assert made.digest == digest(made.key) and len(made.digest) == 32


def test_a_key_names_its_tenant_and_is_new() -> None:
    assert new_key("ada").key.startswith("tml-ada-") and new_key("two words").prefix.startswith("tml-two-words-")
    keys = {new_key("ada").key for _ in range(100)} | {new_episode_key() for _ in range(100)}
    assert len(keys) == 200 and all(key.startswith(("tml-ada-", "tml-episode-")) for key in keys)


def test_scopes_are_known_words() -> None:
    assert check_scopes(["train", "chat", "chat"]) == ("chat", "train")
    for wrong in (["chart"], []):
        with pytest.raises(ConfigError, match="Known are chat, train, admin"):
            check_scopes(wrong)
