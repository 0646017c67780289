"""submit: all files or none, and a sentence for whatever is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from marlaas.app.reading import opened
from marlaas.engine.home.paths import Home

from ...commanding import Commander, FakeEngine
from ...filling import Filling

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
    with opened(home) as reader:
        return [task.name for task in reader.tasks()]


def test_submit(filling: Filling, home: Home, marlaas: Commander, engine: FakeEngine, write: Write) -> None:
    filling.environment()
    engine.living = False
    said = marlaas("submit", write("one"), write("two"))
    assert said.code == 0 and said.out.splitlines()[0] == "task 1: physics-lab/one, 5 steps"
    assert engine.asked == ["start"] and queued(home) == ["one", "two"]
    assert marlaas("submit", write("three"), "--json").json == {"ids": [3], "submitted_before": {}}


def test_submit_says_that_tasks_wait_while_yielded(
    filling: Filling, marlaas: Commander, engine: FakeEngine, write: Write
) -> None:
    filling.environment()
    filling.engine()
    filling.execute("UPDATE engines SET rest = 'yielded'")
    said = marlaas("submit", write("one"))
    assert said.code == 0 and "tasks wait; `marlaas engine resume` takes it back" in said.err


@pytest.mark.parametrize(
    ("environment", "config", "sentence"),
    [
        ("arithmetik", "", "There is no environment 'arithmetik'."),
        ("arithmetic", "digit = 2", "has no parameter 'digit'"),
        ("arithmetic", "digits = 'two'", "must be a whole number, not 'two'"),
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


def test_all_that_is_wrong_with_a_file_is_told_at_once(
    filling: Filling, marlaas: Commander, engine: FakeEngine, write: Write
) -> None:
    """Also what only the home can know: that there is no such environment, or that it has no such parameter."""
    filling.environment()
    first = write("first", "arithmetik", "digits = 2\n[train]\nlerning_rate = 1e-4")
    second = write("second", "arithmetic", "digit = 2\n[train]\nrank = 4")
    said = marlaas("submit", first, second)
    told = [line for line in said.err.splitlines() if line.startswith("marlaas: ")]
    assert said.code == 2 and engine.asked == []
    assert [[word for word in ("arithmetik", "lerning_rate", "'digit'", "rank") if word in line] for line in told] == [
        ["arithmetik"], ["lerning_rate"], ["'digit'"], ["rank"]
    ]  # fmt: skip
    assert "first.toml:4:1" in told[0] and "second.toml:8:1" in told[2], "each at its place, in the order of the files"


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
    assert said.code == 2 and "missing.toml: cannot be read" in said.err
    assert engine.asked == []


def test_a_sweep_is_one_line_and_many_tasks(
    filling: Filling, home: Home, marlaas: Commander, engine: FakeEngine, write: Write
) -> None:
    filling.environment()
    said = marlaas("submit", write("alone"), write("sums", config="[train]\nseed = [1, 2, 3]"))
    assert said.out.splitlines() == [
        "task 1: physics-lab/alone, 5 steps",
        "tasks 2 to 4: physics-lab/sums, a sweep of 3 tasks",
    ]
    assert queued(home)[1:] == ["sums [seed=1]", "sums [seed=2]", "sums [seed=3]"]


def test_names_link_the_files_of_one_submission(
    filling: Filling, home: Home, marlaas: Commander, engine: FakeEngine, write: Write
) -> None:
    filling.environment()
    after = "digits = 2\n[queue]\ndepends_on = ['{}']"
    assert marlaas("submit", write("next", config=after.format("first")), write("first")).code == 0
    with opened(home) as reader:
        assert [task.id for task in reader.needs(1)] == [2] and reader.needs(2) == []
    said = marlaas("submit", write("a", config=after.format("b")), write("b", config=after.format("a")))
    assert said.code == 2 and "These tasks wait for each other: 'a' -> 'b' -> 'a'." in said.err
    assert queued(home) == ["next", "first"]


@pytest.mark.processes
def test_check_shows_and_changes_nothing(home: Home, marlaas: Commander, engine: FakeEngine, write: Write) -> None:
    engine.living = False
    files = write("sums", config="[train]\nseed = [1, 2]"), write("x", config="[queue]\ndepends_on = ['sums']")
    said = marlaas("submit", "--check", *files)
    assert said.code == 0 and said.err == "3 tasks would be queued; nothing was changed.\n"
    assert said.out.splitlines()[3].split(None, 6)[5:] == ["?", "sums [seed=1], sums [seed=2]"]
    assert "time     unknown: no task here has trained on arithmetic yet" in said.out
    assert "prompt 3 of arithmetic" in said.out and "user       " in said.out
    shown = marlaas("submit", "--check", *files, "--json").json
    assert [task["after"] for task in shown["tasks"]] == [[], [], ["sums [seed=1]", "sums [seed=2]"]]
    assert shown["tasks"][0]["estimate"]["seconds"] is None and shown["estimate"]["disk"] > 0
    assert len(shown["prompts"]) == 1 and len(shown["prompts"][0]["prompts"]) == 3
    assert not home.root.exists() and engine.asked == []
    said = marlaas("submit", "--check", write("bad", config="digit = 2"))
    assert said.code == 2 and "has no parameter 'digit'" in said.err
    Filling(home.database).environment()
    said = marlaas("submit", "--check", write("bad", config="digit = 2"))
    assert said.code == 2 and "has no parameter 'digit'" in said.err


@pytest.mark.processes
def test_check_estimates_from_tasks_before(
    home: Home, filling: Filling, marlaas: Commander, engine: FakeEngine, write: Write
) -> None:
    filling.environment()
    filling.task(made=12)
    config = '{"train": {"groups_per_step": 8, "group_size": 8}, "sampling": {"max_tokens": 32}}'
    filling.execute("UPDATE tasks SET started = created, config = ?", config)
    said = marlaas("submit", "--check", write("sums"))
    assert "time     about 2 s, from 1 earlier task on arithmetic\n" in said.out
    assert marlaas("submit", "--check", write("sums"), "--json").json["tasks"][0]["estimate"]["runs"] == 1


COMPARED = """
from marlaas.plugins import Skip, env

@env
async def sums(ep):
    if "skip" in "{says}":
        raise Skip("an unusable draw")
    reply = await ep.ask("2 + 2?")
    return {says} == "4"
"""


@pytest.mark.parametrize(
    ("says", "checked", "warned"),
    [
        ("reply", None, True),
        ("reply.text", None, False),
        ("reply.skip", None, False),
        ("reply", "[]", False),
        ("reply.text", "told", True),
    ],
)
def test_a_grader_that_no_reply_satisfies_is_named(
    filling: Filling,
    home: Home,
    marlaas: Commander,
    engine: FakeEngine,
    write: Write,
    says: str,
    checked: str | None,
    warned: bool,
) -> None:
    """What the engine's checks found is said; an environment that they have not reached is played for it."""
    home.plugins.mkdir(parents=True, exist_ok=True)
    plugin = home.plugins / "mine.py"
    plugin.write_text(COMPARED.format(says=says))
    filling.environment("mine/sums")
    filling.execute(f"UPDATE environments SET path = '{plugin}'")
    if checked:
        message = "a Reply is compared with a str: compare reply.text"
        findings = json.dumps([{"check": "junk", "level": "error", "message": message}]) if checked == "told" else "[]"
        row = {"environment": "mine/sums", "version": "9f2c41aa", "base": "", "findings": findings, "created": 1.0}
        filling.insert("conformance", **row)
    said = marlaas("submit", write("one", environment="sums", config=""))
    assert said.code == 0 and queued(home) == ["one"]
    assert ("error: mine/sums: " in said.err) is warned and ("compare reply.text" in said.err) is warned
