"""The place of each key in a TOML text, compared with what ``tomllib`` reads there."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

from marlaas.engine.spec.toml_text import Position, key_positions

TASK = """# a task
tenant = "lab"
"name"   = 'two words'

[train]
  seed = [1,
    2,  # the second
    30]
sampling.temperature = 1.0

[[eval.suite]]
name = "far"
config = { size = 3, "deep er" = { x = 1 } }

[[eval.suite]]
name = \"\"\"
[train]
seed = 5\"\"\"
[eval.suite.config]
size = 4
"""


@pytest.mark.parametrize(
    ("path", "line", "column"),
    [
        ("tenant", 2, 1),
        ("name", 3, 1),
        ("train", 5, 2),
        ("train.seed", 6, 3),
        ("train.seed[1]", 7, 5),
        ("train.seed[2]", 8, 5),
        ("train.sampling.temperature", 9, 10),
        ("eval.suite", 11, 8),
        ("eval.suite[0].name", 12, 1),
        ("eval.suite[0].config.size", 13, 12),
        ("eval.suite[0].config.deep er.x", 13, 36),
        ("eval.suite[1]", 15, 8),
        ("eval.suite[1].name", 16, 1),
        ("eval.suite[1].config", 19, 13),
        ("eval.suite[1].config.size", 20, 1),
    ],
)
def test_a_task_file(path: str, line: int, column: int) -> None:
    assert key_positions(TASK)[path] == Position(line, column)


def test_ends_of_lines_may_be_those_of_windows() -> None:
    assert key_positions(TASK.replace("\n", "\r\n")) == key_positions(TASK)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The paths of all values that hold no others."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for place, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{place}]")
    else:
        yield path, value


BARE = st.sampled_from(["a", "b1", "-", "_x", "3"])
QUOTED = st.sampled_from(['"a"', '"two words"', '"x = [1]"', '"#"', "'\"'", "'] = '", '"\\u0041\\""'])
KEY = st.lists(BARE | QUOTED, min_size=1, max_size=3).map(" . ".join)
TOKENS = st.integers(0, 10**6).map(lambda number: f"t{number}t")
TEXTS = st.sampled_from(
    ['"{}"', "'{}'", '"\\"[{} = "', '"""{}"""', '"""\n# {}\n[a]\nb1 = 2"""', "'''\n{}'\n'''", '"""""{}"""""', "'{}#'"]
)
SCALAR = st.tuples(TEXTS, TOKENS).map(lambda both: both[0].format(both[1]))


def containers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Lists with ends of lines and comments in them, and tables in braces."""
    lists = st.tuples(st.lists(inner, max_size=3), st.sampled_from([", ", ",\n  ", " # no, ]\n , "]), st.booleans())
    tables = st.lists(st.tuples(KEY, inner), max_size=3)
    return lists.map(
        lambda made: f"[\n{made[1].join(made[0])}{made[1].rstrip(' ') if made[2] and made[0] else ''}]"
    ) | tables.map(lambda made: "{" + ", ".join(f"{key} = {value}" for key, value in made) + "}")


VALUE = st.recursive(SCALAR, containers, max_leaves=5)
LINE = st.one_of(
    st.tuples(KEY, VALUE).map(lambda pair: f"{pair[0]} = {pair[1]}"),
    KEY.map(lambda key: f"[ {key} ]"),
    KEY.map(lambda key: f"[[{key}]]"),
    st.sampled_from(["# a = 1", "", "  \t# [a]"]),
)
TEXT = st.lists(LINE, max_size=12).map("\n".join)


def parsed(text: str) -> dict[str, Any]:
    """What ``tomllib`` reads; an example that is not TOML is drawn again."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assume(False)
        raise


@given(TEXT)
def test_each_value_stands_behind_its_key_and_before_the_next(text: str) -> None:
    """Every value holds a token, and of all places the last one before the token is that of the value's own key."""
    table = parsed(text)
    found = key_positions(text)
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    at = {path: starts[place.line - 1] + place.column - 1 for path, place in found.items()}
    for path, value in leaves(table):
        assert not path or path in found
        if isinstance(value, str) and text.count(token := f"t{value.split('t')[1]}t") == 1:
            before = max(start for start in at.values() if start <= text.index(token))
            assert at[path] == before


@given(TEXT)
def test_there_are_places_for_keys_and_entries_alone(text: str) -> None:
    table = parsed(text)

    def paths(value: Any, path: str) -> Iterator[str]:
        if path:
            yield path
        pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in pairs:
            below = f"{path}.{key}" if path else str(key)
            yield from paths(inner, f"{path}[{key}]" if isinstance(value, list) else below)

    assert set(key_positions(text)) == set(paths(table, ""))


@given(st.text(alphabet="ab=[]{}\"'#.,\\ \n\r\t1u", max_size=60) | TEXT)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        with suppress(ValueError):
            key_positions(text)
        return
    assert {path for path, _ in leaves(table) if path} <= set(key_positions(text))
