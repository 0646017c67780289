"""Every verb that takes a task takes its name as well as its number."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from marlaas.app.cli.main import build_parser
from marlaas.app.cli.parser import task_word

from ...commanding import Commander, FakeEngine
from ...filling import Filling

ONE = ["show", "logs", "rollouts", "matrix", "adapters list"]
SEVERAL = ["pause", "watch", "metrics", "compare", "wait"]


def of_tasks(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.Action]]:
    """All arguments of all verbs that hold tasks, each with its verb."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, own in action.choices.items():
                yield from of_tasks(own, f"{name} {verb}".strip())
        elif action.dest in ("task", "tasks") and not action.option_strings:
            yield name, action


def test_all_verbs_read_tasks_alike() -> None:
    found = dict(of_tasks(build_parser()))
    assert set(found) >= {*ONE, *SEVERAL, "resume", "retry", "cancel", "extend", "env replay"}
    assert {action.type for action in found.values()} == {task_word}


@pytest.fixture
def named(filling: Filling) -> None:
    """Tasks 1 to 5: one has a name of its own, two share one, one is called like another one's number."""
    for name in ("first run", "again", "again", "1", "last"):
        filling.task(name=name, state="done", made=2)


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize("verb", ONE)
def test_a_name_does_what_the_number_does(marlaas: Commander, verb: str) -> None:
    by_number, by_name = marlaas(*verb.split(), "1"), marlaas(*verb.split(), "first run")
    assert (by_name.code, by_name.out, by_name.err) == (by_number.code, by_number.out, by_number.err)
    assert by_name.code == 0


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize("verb", [*ONE, *SEVERAL])
def test_a_name_of_several_tasks_is_refused(marlaas: Commander, verb: str) -> None:
    said = marlaas(*verb.split(), "again")
    assert (said.code, said.out) == (2, "")
    assert said.err == "marlaas: Several tasks are named 'again': 2, 3.\n  Give a number: 3 is the newest.\n"


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize("verb", [*ONE, *SEVERAL])
def test_a_name_that_there_is_not(marlaas: Commander, verb: str) -> None:
    said = marlaas(*verb.split(), "fist run")
    assert said.code == 2 and "There is no task 'fist run'.\n  Did you mean 'first run'?" in said.err


def test_a_paused_task_is_waited_for_by_name(filling: Filling, marlaas: Commander, engine: FakeEngine) -> None:
    filling.task(name="first run", state="paused", reason="paused by you", made=2)
    filling.execute("UPDATE tasks SET reason_code = 'person'")
    said = marlaas("wait", "first run", "--timeout", "0")
    assert said.code == 1 and said.err.count("`marlaas resume 1` goes on with it.") == 1
