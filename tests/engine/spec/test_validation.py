"""Bad task files get one sentence that names the key and what is allowed."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings, strategies as st

from marlaas.engine.errors import ConfigError
from marlaas.engine.spec.validation import between, build, one_of

from ...examples import examples


@dataclass(frozen=True)
class Inner:
    share: float = between(0.5, 0, 1)


@dataclass(frozen=True)
class Outer:
    name: str
    count: int = between(3, 1, 10)
    many: int = between(1, 1, 10_000_000)
    colour: str = one_of("red", "red", "green")
    flag: bool = False
    parts: tuple[int, ...] = ()
    inner: Inner = field(default_factory=Inner)
    target: float | None = None


def test_builds_nested_tables_with_defaults() -> None:
    made = build(Outer, {"name": "a", "inner": {"share": 1}, "parts": [1, 2], "target": 1}, "f")
    assert made == Outer("a", inner=Inner(1.0), parts=(1, 2), target=1.0)
    assert isinstance(made.inner.share, float)


@pytest.mark.parametrize(
    ("table", "says", "path", "code"),
    [
        ({}, "'name' is missing", "name", "missing"),
        ({"name": "a", "cuont": 1}, "Did you mean 'count'", "cuont", "unknown_key"),
        ({"name": 3}, "a text in quotes", "name", "wrong_type"),
        ({"name": "a", "count": True}, "a whole number", "count", "wrong_type"),
        ({"name": "a", "count": 2.5}, "a whole number. Allowed: 1 to 10", "count", "wrong_type"),
        ({"name": "a", "count": 11}, "between 1 and 10", "count", "out_of_range"),
        ({"name": "a", "many": 0}, "between 1 and 10000000", "many", "out_of_range"),
        ({"name": "a", "colour": "grene"}, "Did you mean 'green'", "colour", "no_choice"),
        ({"name": "a", "flag": 1}, "true or false", "flag", "wrong_type"),
        ({"name": "a", "parts": [1, "b"]}, "each entry a whole number", "parts", "wrong_type"),
        ({"name": "a", "inner": 3}, "must be a table", "inner", "wrong_type"),
        (
            {"name": "a", "inner": {"shrae": 1}},
            "unknown key 'inner.shrae'. Did you mean 'share'",
            "inner.shrae",
            "unknown_key",
        ),
        ({"name": "a", "share": 1.0}, "unknown key 'share'. Did you mean 'inner.share'?", "share", "unknown_key"),
        ({"name": "a", "inner": {"share": float("nan")}}, "'inner.share'", "inner.share", "wrong_type"),
        ({"name": "a", "target": "high"}, "'target'", "target", "wrong_type"),
    ],
)
def test_says_what_is_wrong(table: dict[str, object], says: str, path: str, code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(Outer, table, "task.toml")
    assert str(caught.value).startswith("task.toml: ")
    assert says in str(caught.value)
    assert (caught.value.path, caught.value.code) == (path, code)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.path, again.code, str(again)) == (path, code, str(caught.value))


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda x: st.lists(x) | st.dictionaries(st.text(), x),
)


@settings(max_examples=examples(10))
@given(st.dictionaries(st.sampled_from(["name", "count", "inner", "parts", "x"]) | st.text(), _json))
def test_any_table_is_built_or_refused_in_words(table: dict[str, object]) -> None:
    try:
        assert isinstance(build(Outer, table, "f"), Outer)
    except ConfigError as error:
        assert error.message
