"""What may be said of a tenant: also by an app of another version."""

from __future__ import annotations

import pytest

from marlaas.engine.errors import ConfigError
from marlaas.engine.spec.task import tenant_change


def test_what_is_said_is_what_changes() -> None:
    assert tenant_change({"name": "bio", "weight": 2.5, "tasks": 0}) == ("bio", {"weight": 2.5, "tasks": 0})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"weight": 1}, "A tenant's name"),
        ({"name": 7, "weight": 1}, "A tenant's name"),
        ({"name": "bio"}, "Nothing is to change"),
        ({"name": "bio", "colour": "green"}, "knows no 'colour'"),
        ({"name": "bio", "tasks": True}, "cannot be True"),
        ({"name": "bio", "tasks": "2"}, "cannot be 2; it is a whole number"),
        ({"name": "bio", "weight": float("inf")}, "cannot be inf"),
        ({"name": "bio", "tokens_per_day": 10**16}, "from 0 to 1,000,000,000,000,000"),
    ],
)
def test_anything_else_is_refused(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tenant_change(arguments)
    assert sentence in str(caught.value)
