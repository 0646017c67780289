"""A table that is written as TOML is read back as it was."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given, strategies as st

from marlaas.app.operations.commands import written
from marlaas.engine.errors import ConfigError

SCALARS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
)


def tables(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), values, max_size=4)


VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | tables(inner), max_leaves=12)


@given(tables(VALUES))
def test_it_is_read_back(table: dict[str, Any]) -> None:
    assert tomllib.loads(written(table)) == table


def test_plain_values_come_first_and_none_is_left_out() -> None:
    assert written({"train": {"seed": 1, "kl": None}, "name": "a", "base": None}) == 'name = "a"\n\n[train]\nseed = 1\n'


def test_what_toml_does_not_know() -> None:
    with pytest.raises(ConfigError, match="cannot be written as TOML"):
        written({"a": object()})
