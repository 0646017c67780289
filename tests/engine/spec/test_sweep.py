"""Sweeps: lists in a task file become a family of tasks, each with a name that tells it apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.errors import ConfigError
from marlaas.engine.queue.submission.taskfile import load
from marlaas.engine.spec.sweep import members

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
