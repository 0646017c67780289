"""``--plain`` in a pseudo-terminal on a real home: only lines of text come out, and no more than can be heard."""

from __future__ import annotations

import re

import pytest

from ..conftest import Lab
from ..terminal import terminal

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

SIZES = ((80, 24), (200, 50))


def heard(lab: Lab, *words: str, code: int = 0, keys: str = "", columns: int = 80) -> list[str]:
    """The lines that a command line prints for somebody at a terminal. ``keys``: what they type."""
    with terminal(lab.home, "--plain", *words, columns=columns) as screen:
        screen.press(keys)
        assert screen.end() == code, screen.text()
        drawn = screen.drawn.decode()
    echoed = keys.replace("\n", "\r\n").encode().decode()
    text = drawn.removeprefix(echoed)
    assert text.endswith("\r\n") and not re.search(r"[^ -~\r\n]|\r(?!\n)|(?<!\r)\n", text), text
    lines = text.splitlines()
    assert [line for line in lines if "  " in line] == []
    return lines


def test_a_home_is_heard_from_the_task_to_the_error(lab: Lab) -> None:
    task = lab.submit("by ear", steps=3)
    number = str(task)
    said = heard(lab, "wait", number)
    assert said[-1].startswith(f"Task {task}, lab, by ear: done, step 3 of 3, reward ")
    assert len(said) <= 5, "first, running, a score, done: what comes between waits"
    (row,) = [line for line in heard(lab) if line.startswith(f"ID {task}: ")]
    assert "task by ear; environment arithmetic; state done; step 3 of 3; reward " in row
    assert {"tenant: lab", "state: done", "step: 3 of 3"} <= set(heard(lab, "show", "by ear"))
    assert heard(lab, "rollouts", number)[1].startswith("step 1: kind training; reward ")
    (group, *_) = heard(lab, "rollouts", number, "--step", "1")
    assert re.match(r"group \d+: prompt \S+; reward \d\.\d\d plus or minus \d\.\d\d; replies (right|wrong): ", group)
    read = heard(lab, "rollouts", number, "--group", re.findall(r"\d+", group)[0])
    assert "assistant" in read and "user" in read
    assert heard(lab, "metrics", number)[0].startswith("step 0: held-out ")
    for columns, _ in SIZES:
        assert heard(lab, "show", "77", code=2, columns=columns)[0] == "marlaas: There is no task 77."
    asked = heard(lab, "eval", f"{number}@2", number, "--environment", "arithmetic", "--prompts", "8", "--wait")
    assert any(re.match(r"Task \d+, .*: done, ", line) for line in asked)
    scores = [line for line in asked if line.startswith("version ")]
    assert len(scores) == 2 and all("; standard error " in line for line in scores)
    assert any(line.startswith("python: ok, ") for line in heard(lab, "doctor"))
    assert "checks: " in " ".join(heard(lab, "env", "show", "arithmetic"))


def test_prompts_are_typed_without_drawing(lab: Lab) -> None:
    with terminal(lab.home, "--plain", "env", "play", "arithmetic") as screen:
        screen.until("you>")
        screen.press("12\n")
        screen.until("reward")
        screen.press("/quit\n")
        screen.end()
        drawn = screen.drawn.decode()
    assert "\x1b" not in drawn and not re.search(r"\r(?!\n)", drawn), drawn


def test_the_demo_is_told_in_sentences(lab: Lab) -> None:
    with terminal(lab.home, "--plain", "demo", columns=200, rows=50) as screen:
        screen.until_like(r"Task \d+, [^:]*: running, step [1-9]\d* of 60, reward ")
        screen.press("\x03")
        assert screen.end() == 130
        drawn = screen.drawn.decode().replace("^C", "")
    assert not re.search(r"[^ -~\r\n]|\r(?!\n)", drawn), drawn
    assert "goes on from the last steps" in drawn
