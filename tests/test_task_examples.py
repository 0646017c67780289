"""The task files under ``examples/tasks`` are valid, and name the agents that their environments declare."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from marlaas.engine.home.paths import BUNDLED_PLUGINS
from marlaas.engine.spec.rules import check_declared
from marlaas.engine.spec.task import parse
from marlaas.plugins.host.loading import load

TASKS = sorted((Path(__file__).parent.parent / "examples" / "tasks").glob("*.toml"))


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.stem)
def test_a_task_file_fits_its_environment(path: Path) -> None:
    spec = parse(tomllib.loads(path.read_text(encoding="utf-8")), path.name)
    declared = load(BUNDLED_PLUGINS / f"{spec.environment}.py")[spec.environment].agents
    assert declared and set(spec.agents) == set(declared)
    check_declared(spec, declared)


def test_there_is_one_for_each_way_to_train() -> None:
    assert {path.stem for path in TASKS} == {"race_self_play", "race_pool", "relay_two_policies"}
