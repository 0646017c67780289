"""``--plain``: what every verb prints can be heard line by line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from marlaas.engine.home.paths import Home

from ..commanding import Commander, FakeEngine
from ..filling import Filling, fill_full
from ..filling_environments import fill_environments
from ..filling_evaluation import fill_evaluation
from ..filling_policies import fill_duel
from ..filling_task import fill_task

HOMES: dict[str, tuple[Callable[[Path], Filling], tuple[str, ...]]] = {
    "full": (
        fill_full,
        ("", "list", "show 1", "show 999", "stats", "tenants", "logs", "adapters list", "compare 1 2", "wait 999"),
    ),
    "task": (fill_task, ("show 1", "metrics 1", "rollouts 1", "rollouts 1 --step 1", "rollouts 1 --group 0")),
    "duel": (fill_duel, ("list", "show 2", "matrix 2", "rollouts 2", "rollouts 2 --step 1", "watch 1")),
    "evaluation": (fill_evaluation, ("list", "show 1", "metrics 1", "compare 1 2")),
    "environments": (fill_environments, ("env list", "env show arithmetic", "env", "engine status", "base list")),
}
LINES = [(name, verb) for name, (_, verbs) in HOMES.items() for verb in verbs]
ANYWHERE = ("explain", "explain drift", "keys", "--help", "submit --help", "submitt", "list --state odd", "show")


def hear(marlaas: Commander, verb: str) -> list[str]:
    """What a command line prints with ``--plain``; nothing in it needs an eye."""
    said = marlaas("--plain", *verb.split())
    lines = (said.out + said.err).splitlines()
    assert lines and [text for text in lines if re.search(r"[^\w -~]|  |^ | $", text)] == []
    return lines


@pytest.mark.parametrize(("name", "verb"), LINES)
def test_what_is_known_of_a_home_can_be_heard(
    home: Home, marlaas: Commander, engine: FakeEngine, name: str, verb: str
) -> None:
    HOMES[name][0](home.database).execute("UPDATE tasks SET state = 'done' WHERE state = 'running' AND id = 1")
    hear(marlaas, verb)


@pytest.mark.parametrize("verb", ANYWHERE)
def test_what_needs_no_home_can_be_heard(home: Home, marlaas: Commander, verb: str) -> None:
    hear(marlaas, verb)


def test_a_row_is_a_line_in_which_values_have_names(home: Home, marlaas: Commander, engine: FakeEngine) -> None:
    Filling(home.database).task(name="sums", state="failed", made=3, reason="the disk is full")
    (line,) = hear(marlaas, "list")
    assert re.match(r"ID 1: tenant physics-lab; task sums; environment arithmetic; state failed; step 3 of \d+; ", line)
    assert "plus or minus" in line and line.endswith("reason the disk is full")
    shown = hear(marlaas, "show 1")
    assert {"state: failed", "tenant: physics-lab", "reason: the disk is full"} <= set(shown)


def test_a_policy_says_whose_it_is(home: Home, marlaas: Commander, engine: FakeEngine) -> None:
    fill_duel(home.database)
    assert any("task policy judge of task 2: " in line for line in hear(marlaas, "list"))


def test_commands_in_messages_are_plain_too(home: Home, marlaas: Commander) -> None:
    assert "`marlaas --plain list` shows the tasks." in hear(marlaas, "show 7")


def test_json_stays_what_it_is(home: Home, marlaas: Commander, engine: FakeEngine) -> None:
    Filling(home.database).task(state="done")
    assert marlaas("list", "--plain", "--json").json == marlaas("list", "--json").json
    assert marlaas("watch", "--json", "--plain", "1").out.startswith("{")
