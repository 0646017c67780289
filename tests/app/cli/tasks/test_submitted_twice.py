"""The same file twice is a warning with the number; a refused submission starts no engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.home.paths import Home

from ...commanding import Commander, FakeEngine
from ...filling import Filling

TASK = 'tenant = "lab"\nname = "{name}"\nenvironment = "{environment}"\nsteps = 5\n{more}'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where task files lie, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, environment: str = "arithmetic", more: str = "") -> str:
    Path(f"{name}.toml").write_text(TASK.format(name=name, environment=environment, more=more))
    return f"{name}.toml"


@pytest.mark.parametrize("state", ["submitted", "queued", "running"])
def test_the_same_file_is_in_the_queue(filling: Filling, marlaas: Commander, engine: FakeEngine, state: str) -> None:
    filling.environment()
    assert marlaas("submit", write("one")).err == "`marlaas` shows them; they go on when it is closed.\n"
    filling.execute("UPDATE tasks SET state = ?", state)
    said = marlaas("submit", "one.toml")
    assert said.code == 0 and said.out == "task 2: lab/one, 5 steps\n"
    assert said.err.splitlines()[0] == (
        "one.toml: the same file waits or runs already, as task 1. Both are in the queue; `marlaas cancel 2` takes this"
        " one back."
    )
    assert marlaas("submit", "one.toml", "--json").json == {"ids": [3], "submitted_before": {"3": [1, 2]}}


@pytest.mark.parametrize("state", ["done", "failed", "cancelled", "paused"])
def test_one_that_has_ended_is_no_reason_to_warn(
    filling: Filling, marlaas: Commander, engine: FakeEngine, state: str
) -> None:
    filling.environment()
    marlaas("submit", write("one"))
    filling.execute("UPDATE tasks SET state = ?", state)
    assert marlaas("submit", "one.toml", "--json").json == {"ids": [2], "submitted_before": {}}
    write("one", more="[queue]\npriority = 3\n")
    assert "the same file" not in marlaas("submit", "one.toml").err


def test_twice_in_one_command_and_a_sweep(filling: Filling, marlaas: Commander, engine: FakeEngine) -> None:
    filling.environment()
    sweep = write("sums", more="[train]\nseed = [1, 2]\n")
    said = marlaas("submit", sweep, write("one"), sweep)
    assert said.code == 0 and said.err.count("the same file") == 1
    assert "sums.toml: the same file waits or runs already, as tasks 1, 2." in said.err
    assert "`marlaas cancel --family sums` takes this one back" in said.err


@pytest.mark.processes
def test_a_refused_submission_starts_no_engine(
    home: Home, filling: Filling, marlaas: Commander, engine: FakeEngine
) -> None:
    """Neither where no engine has ever looked for environments, nor where the last one saw others than there are."""
    engine.living = False
    for seen in (False, True):
        if seen:
            filling.environment("games/guess")
        said = marlaas("submit", write("typo", "arithmetik"))
        assert said.code == 2 and said.err.startswith("marlaas: typo.toml:3:1: There is no environment 'arithmetik'.")
        assert "Did you mean 'arithmetic'?" in said.err
        wrong = write("wrong", more="[environment_config]\ndigit = 2\ndigits = 'two'\n")
        said = marlaas("submit", write("typo", "arithmetik"), wrong)
        assert said.code == 2 and said.err.count("marlaas: ") == 3
        assert "wrong.toml:6:1: The environment" in said.err and "wrong.toml:7:1: 'digits'" in said.err
    assert engine.asked == []


@pytest.mark.processes
def test_an_environment_that_the_last_engine_did_not_see(
    home: Home, filling: Filling, marlaas: Commander, engine: FakeEngine
) -> None:
    """It was dropped while no engine ran: nothing is refused, and the engine that is started serves it."""
    engine.living = False
    filling.environment("games/guess")
    home.create()
    source = "from marlaas.plugins import Episode, env\n\n\n@env\nasync def echo(ep: Episode, size: int = 2) -> bool:\n"
    (home.plugins / "letters.py").write_text(source + "    return bool((await ep.ask('x')).text)\n")
    refused = marlaas("submit", write("bad", "echo", "[environment_config]\nsiz = 3\n"))
    assert refused.code == 2 and "bad.toml:6:1: The environment 'letters/echo' has no parameter 'siz'." in refused.err
    assert engine.asked == []
    assert not marlaas("submit", "--check", write("good", "echo")).code
    assert engine.asked == []


def test_all_files_are_looked_at(marlaas: Commander, engine: FakeEngine) -> None:
    Path("one.toml").write_text("x = 1\n")
    Path("two.toml").write_text("tenant = \n")
    said = marlaas("submit", "one.toml", "gone.toml", "two.toml")
    assert said.code == 2 and engine.asked == []
    starts = [words.split(" ")[1] for words in said.err.splitlines() if words.startswith("marlaas: ")]
    assert starts == [
        "one.toml:1:1:",
        "one.toml:1:1:",
        "one.toml:1:1:",
        "one.toml:1:1:",
        "gone.toml:",
        "two.toml:1:10:",
    ]
