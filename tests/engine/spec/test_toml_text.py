"""TOML of strangers, the places of keys and tables in it, and lists that become sweeps."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.errors import ConfigError
from marlaas.engine.queue.submission.taskfile import load
from marlaas.engine.spec.sweep import members
from marlaas.engine.spec.toml_text import DEEPEST, Position, key_positions, read_toml


@pytest.mark.parametrize("text", ["a.b.c = 1", "[a.'b.c'.d]\ne = '" + "x." * 100 + "'", "# " + "a." * 100 + "\nb = 2"])
def test_ordinary_texts(text: str) -> None:
    assert read_toml(text)


@pytest.mark.parametrize("form", ["{} = 1", "[{}]", "x = {{ {} = 1 }}", "[[{}]]", "x = {{y = 1, {} = 2}}"])
@pytest.mark.parametrize("part", ["a", "'a'", '"a b"'])
def test_keys_of_thousands_of_parts_are_refused_unread(form: str, part: str) -> None:
    with pytest.raises(ValueError, match="more than 32 parts"):
        read_toml("first = 0\n" + form.format(" . ".join([part] * 100_000)))
    assert read_toml(form.format(".".join([part] * (DEEPEST - 3))))


def test_what_is_not_toml() -> None:
    deep = "x = " + "{a = " * 40 + "1" + "}" * 40
    for text in (
        deep,
        f"[{'.'.join('b' * 20)}]\n{'.'.join('c' * 20)} = 1",
        "a =",
        "x = " + "[" * 100_000,
        "x = 1" + "0" * 10_000,
    ):
        with pytest.raises(ValueError):
            read_toml(text)


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
        ("train.sampling.temperature", 9, 10),
        ("eval.suite", 11, 8),
        ("eval.suite[0].name", 12, 1),
        ("eval.suite[0].config", 13, 1),
        ("eval.suite[1]", 15, 8),
        ("eval.suite[1].name", 16, 1),
        ("eval.suite[1].config", 19, 13),
        ("eval.suite[1].config.size", 20, 1),
    ],
)
def test_a_task_file(path: str, line: int, column: int) -> None:
    assert key_positions(TASK)[path] == Position(line, column)
    assert key_positions(TASK.replace("\n", "\r\n"))[path] == Position(line, column)


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


def paths(value: Any, path: str = "") -> Iterator[str]:
    """Of all keys, and of the entries of lists."""
    if path:
        yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        below = f"{path}.{key}" if path else str(key)
        yield from paths(inner, f"{path}[{key}]" if isinstance(value, list) else below)


@given(st.text(alphabet="ab=[]{}\"'#.,\\ \n\r\t1u", max_size=60) | TEXT)
def test_keys_have_places_in_any_text(text: str) -> None:
    """Those of all tables in brackets; each place is that of its key, and no other text has one."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        with suppress(ValueError):
            key_positions(text)
        return
    found, lines = key_positions(text), text.replace("\r\n", "\n").split("\n")
    assert set(table) <= set(found) <= set(paths(table))
    for path, place in found.items():
        rest = lines[place.line - 1][place.column - 1 :]
        written = re.match(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""", rest)
        assert written and next(iter(tomllib.loads(f"{written[0]} = 0"))) in path


MINIMAL = 'tenant = "lab"\nname = "sums"\nenvironment = "arithmetic"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "task.toml"
    path.write_text(MINIMAL + text, encoding="utf-8")
    return path


def test_a_list_makes_a_family(tmp_path: Path) -> None:
    tasks = load(write(tmp_path, "[train]\nlearning_rate = [1e-4, 3e-4, 0.01]\n"))
    assert [task.spec.name for task in tasks] == [
        "sums [learning_rate=1e-4]",
        "sums [learning_rate=3e-4]",
        "sums [learning_rate=0.01]",
    ]
    assert {task.family for task in tasks} == {"sums"}
    assert [task.spec.to_json()["train"]["learning_rate"] for task in tasks] == [1e-4, 3e-4, 0.01]
    assert len({task.source for task in tasks}) == 1


def test_one_of_several_policies_is_swept(tmp_path: Path) -> None:
    two = "[policies.solver]\n[policies.critic]\n[agents]\na = 'solver'\nb = 'critic'\n"
    tasks = load(write(tmp_path, f'{two}[sweep]\n"policies.solver.rank" = [4, 8]\n'))
    assert [task.spec.name for task in tasks] == ["sums [rank=4]", "sums [rank=8]"]
    ranks = [[task.spec.to_json()["policies"][name]["rank"] for name in ("solver", "critic")] for task in tasks]
    assert ranks == [[4, 16], [8, 16]]


def test_several_lists_make_a_grid_in_the_order_of_the_file(tmp_path: Path) -> None:
    tasks = load(write(tmp_path, 'steps = [5, 9]\n[sweep]\n"environment_config.digits" = [2, 3]\ntrain.seed = [0]\n'))
    assert [task.spec.name for task in tasks] == [
        "sums [steps=5, digits=2, seed=0]",
        "sums [steps=5, digits=3, seed=0]",
        "sums [steps=9, digits=2, seed=0]",
        "sums [steps=9, digits=3, seed=0]",
    ]
    assert [(task.spec.steps, task.spec.to_json()["environment_config"]) for task in tasks[1:3]] == [
        (5, {"digits": 3}),
        (9, {"digits": 2}),
    ]


def test_ambiguous_keys_and_long_values_are_told_apart(tmp_path: Path) -> None:
    long = f'[sweep]\nenvironment_config.text = ["{"x" * 99}"]\n'
    (task,) = load(write(tmp_path, f"[sampling]\ntemperature = [1.0]\n[eval]\ntemperature = [0]\n{long}"))
    assert task.spec.name == "sums [sampling.temperature=1.0, eval.temperature=0, text=#1]"


def test_a_list_of_the_environment_is_a_value(tmp_path: Path) -> None:
    (task,) = load(write(tmp_path, "[environment_config]\nsizes = [1, 2]\n[queue]\ndepends_on = [1, 2]\n"))
    assert (task.spec.name, task.family) == ("sums", "") and task.spec.environment_config == {"sizes": [1, 2]}


def test_a_value_of_the_environment_may_be_a_list_in_a_sweep(tmp_path: Path) -> None:
    tasks = load(write(tmp_path, '[sweep]\n"environment_config.sizes" = [[1], [1, 2]]\n'))
    assert [task.spec.name for task in tasks] == ["sums [sizes=[1]]", "sums [sizes=[1, 2]]"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[train]\nlearning_rate = []\n", "'train.learning_rate' is an empty list"),
        ("[train]\nlearning_rate = [1e-4, 2]\n", "'train.learning_rate' is 2; it must lie between 0 and 1"),
        ("[train]\nlearning_rat = [1e-4, 2]\n", "Did you mean 'learning_rate'"),
        ("[train]\nseed = [1, 1]\n", "'train.seed' lists 1 2 times"),
        ("[train]\nseed = [1]\n[sweep]\ntrain.seed = [2]\n", "'train.seed' stands in [sweep] and outside of it"),
        ("[sweep]\ntrain.seed = 3\n", "'train.seed' in [sweep] must be a list"),
        ("[sweep]\nname = ['a', 'b']\n", "[sweep] cannot change 'name'"),
        ("[sweep]\n'train.seed' = [1]\ntrain.seed = [2]\n", "'train.seed' has values in two places"),
        ("[train]\nseed = 3\n[sweep]\n'train.seed.x' = [1]\n", "'train.seed' is {'x': 1}"),
        ("sweep = 3\n", "Write [sweep]"),
        (f"steps = {list(range(1, 102))}\n[train]\nseed = {list(range(10))}\n", "the sweep has 1,010 tasks"),
    ],
)
def test_refuses_in_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=r"task\.toml") as caught:
        load(write(tmp_path, text))
    assert says in str(caught.value) and caught.value.path and caught.value.code


@given(st.lists(st.lists(st.one_of(st.integers(), st.floats(), st.booleans()), min_size=1, max_size=4), max_size=4))
def test_members_are_as_many_as_the_grid_and_all_differ(grid: list[list[object]]) -> None:
    table = {"name": "n", "train": {f"key{place}": values for place, values in enumerate(grid)}}
    try:
        found = members(table, "file")
    except ConfigError as error:
        assert "times" in str(error)
        return
    size = 1
    for values in grid:
        size *= len(values)
    assert len(found) == size and len({member.table["name"] for member in found}) == size
