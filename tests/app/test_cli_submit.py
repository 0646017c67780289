"""submit: all files or none, and a sentence for whatever is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from marlaas.engine.paths import Home
from marlaas.engine.store.reader import Reader

from .commanding import Commander, FakeEngine
from .filling import Filling

Write = Callable[..., str]
TASK = """
tenant = "physics-lab"
name = "{name}"
environment = "{environment}"
steps = 5

[environment_config]
{config}
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a task file and gives its path."""

    def write(name: str, environment: str = "arithmetic", config: str = "digits = 2") -> str:
        path = tmp_path / f"{name}.toml"
        path.write_text(TASK.format(name=name, environment=environment, config=config), encoding="utf-8")
        return str(path)

    return write


def queued(home: Home) -> list[str]:
    with Reader(home.database) as reader:
        return [task.name for task in reader.tasks()]


def test_submit(filling: Filling, home: Home, marlaas: Commander, engine: FakeEngine, write: Write) -> None:
    filling.environment()
    engine.living = False
    said = marlaas("submit", write("one"), write("two"))
    assert said.code == 0 and said.out.splitlines()[0] == "task 1: physics-lab/one, 5 steps"
    assert engine.asked == ["start"] and queued(home) == ["one", "two"]
    assert marlaas("submit", write("three"), "--json").json == {"ids": [3]}


@pytest.mark.parametrize(
    ("environment", "config", "sentence"),
    [
        ("arithmetik", "", "There is no environment 'arithmetik'."),
        ("arithmetic", "digit = 2", "has no parameter 'digit'"),
        ("arithmetic", "digits = 'two'", "must be of type int"),
    ],
)
def test_all_or_none(
    filling: Filling,
    home: Home,
    marlaas: Commander,
    engine: FakeEngine,
    write: Write,
    environment: str,
    config: str,
    sentence: str,
) -> None:
    filling.environment()
    said = marlaas("submit", write("good"), write("bad", environment, config))
    assert said.code == 2 and said.out == "" and sentence in said.err
    assert queued(home) == []


def test_a_dependency_must_exist(
    filling: Filling, home: Home, marlaas: Commander, engine: FakeEngine, write: Write
) -> None:
    filling.environment()
    for number, code in ((1, 2), (1, 0)):
        said = marlaas("submit", write("next", config=f"digits = 2\n[queue]\ndepends_on = [{number}]"))
        assert said.code == code and ("'next' depends on task 1, which does not exist" in said.err) == bool(code)
        filling.task()


def test_a_file_that_cannot_be_starts_nothing(marlaas: Commander, engine: FakeEngine, tmp_path: Path) -> None:
    for content in (b"tenant = ", b"\xff\xfe", b"stepps = 3"):
        (tmp_path / "bad.toml").write_bytes(content)
        said = marlaas("submit", str(tmp_path / "bad.toml"))
        assert said.code == 2 and said.err.startswith("marlaas: ") and "bad.toml" in said.err
    said = marlaas("submit", str(tmp_path / "missing.toml"))
    assert said.code == 2 and "missing.toml cannot be read" in said.err
    assert engine.asked == []
