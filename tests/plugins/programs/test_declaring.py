"""What authors may say of a program, and that mistakes are told when the file is imported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest

from marlaas.plugins import Environment, Episode, Range, env
from marlaas.plugins.host.loading import load
from marlaas.plugins.programs import ProgramRun


def test_an_assigned_program_is_an_environment() -> None:
    solve = env.program("bash agent.sh", reward="exit", timeout=5)
    assert isinstance(solve, Environment) and not solve.blocking
    assert (solve.name, solve.timeout, solve.takes_task, solve.rows) == ("agent", 5.0, False, "")
    assert solve.description == "Plays bash agent.sh"
    assert env.program("a", reward="exit", name="b", agents=("x", "y")).agents == ("x", "y")


@pytest.mark.parametrize("command", ["a {prompt}", "a {task[x]}"])
def test_a_program_that_names_its_task_gets_rows(command: str) -> None:
    assert env.program(command, reward="exit").rows == "task"
    assert env.program("a", reward="exit", stdin="{task}").rows == "task"
    assert env.program("a", reward="exit", data="rows.jsonl").rows == "own"


def test_a_function_gives_name_parameters_and_description() -> None:
    @env.program("a", on_error=0.5, score_timeout=3)
    def solve(ep: Any, run: ProgramRun, task: Any, digits: Annotated[int, Range(1, 4)] = 2) -> float:
        """Solves it."""
        return 0.0

    assert isinstance(solve, Environment)
    assert (solve.name, solve.description, solve.takes_task, solve.on_error) == ("solve", "Solves it.", True, 0.5)
    (digits,) = solve.parameters
    assert (digits.name, digits.type, digits.default, digits.high) == ("digits", "int", 2, 4)
    assert solve.score_timeout == 3.0


def test_a_function_that_prepares_takes_no_end() -> None:
    @env.program("a {prompt}", reward="exit", name="named")
    async def solve(ep: Episode, words: int = 3) -> str:
        return "x"

    assert isinstance(solve, Environment)
    assert (solve.name, [one.name for one in solve.parameters], solve.rows) == ("named", ["words"], "")


def judged(ep: Any, run: Any) -> float:
    return 0.0


@pytest.mark.parametrize(
    ("declare", "error", "says"),
    [
        (lambda: env.program(judged), TypeError, "a program is a command"),  # type: ignore[arg-type]
        (lambda: env.program("a", reward=3), TypeError, 'reward is "exit", the name of a file'),  # type: ignore[arg-type]
        (lambda: env.program("a", reward="../r"), ValueError, "'../r' does not lie in the program's folder"),
        (lambda: env.program("a", reward=lambda: 0), TypeError, r"def scorer\(run\), or \(ep, run\)"),
        (lambda: env.program("a", reward="exit")(judged), TypeError, r"judged\(ep, run\) says the reward, and so does"),
        (lambda: env.program("a")(lambda run: 0), TypeError, "must take ep, run"),
        (lambda: env.program("a", reward="exit")(lambda: 0), TypeError, "must take ep, …"),
        (lambda: env.program("a")(int), TypeError, "stands over a function"),
        (lambda: env.program("a", env={"A": 1}), TypeError, "a variable is a text by its name"),  # type: ignore[dict-item]
        (lambda: env.program("a", env={"A=": ""}), TypeError, "a variable is a text by its name"),
        (lambda: env.program("a", stdin=b""), TypeError, "stdin is a text"),  # type: ignore[arg-type]
        (lambda: env.program("a", exit_codes=()), TypeError, "exit_codes are the whole numbers"),
        (lambda: env.program("a", exit_codes=(True,)), TypeError, "exit_codes are the whole numbers"),
        (lambda: env.program("a", files="x.py"), TypeError, "files must be names beside the plugin"),
        (lambda: env.program("a", files=[3]), TypeError, "the name of a file is a text"),  # type: ignore[list-item]
        (lambda: env.program("a", files={"x": 3}), TypeError, "'x' must be a text or a path"),  # type: ignore[dict-item]
        (lambda: env.program("a", files={"../x": "text here"}), ValueError, "'../x' does not lie in the program's"),
        (lambda: env.program("a", files={"/x": "text here"}), ValueError, "'/x' does not lie in the program's"),
        (lambda: env.program("a", files=["none.py"]), ValueError, "there is no none.py beside the plugin"),
        (lambda: env.program("a", files={"x": "none.py"}), ValueError, "there is no none.py beside the plugin"),
        (lambda: env.program("a", timeout=0), ValueError, "the timeout of a must be a number of seconds"),
        (lambda: env.program("a", on_error="x"), (TypeError, ValueError), "on_error of a must be a number"),  # type: ignore[arg-type]
    ],
)
def test_mistakes(declare: Callable[[], Any], error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        declare()


PLUGIN = """
from marlaas.plugins import env

one = env.program("python agent.py", reward="exit")

@env.program("python agent.py")
def two(ep, run):
    return 1.0
"""


def test_a_plugin_of_two(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text(PLUGIN)
    (tmp_path / "mine" / "agent.py").write_text("")
    assert sorted(load(tmp_path / "mine")) == ["agent", "two"]
