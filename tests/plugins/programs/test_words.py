"""Commands, their names and what is filled into them."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, strategies as st

from marlaas.plugins.programs.words import Addresses, filled, name_about, name_of, names, words_of

VALUES: dict[str, object] = {
    "prompt": "1+1=",
    "task": {"question": "how?", "choices": ["a", {"b": None}], "n": 3},
    "index": 7,
    "url": Addresses("http://127.0.0.1:1/v1", {"first": "http://127.0.0.1:1/e/first/v1"}),
}


def test_words_are_split_as_a_shell_splits_them() -> None:
    assert words_of("python 'my agent.py' --x=\"a b\" $HOME|cat") == ("python", "my agent.py", "--x=a b", "$HOME|cat")
    assert words_of(["a b", ""]) == ("a b", "")
    assert words_of("python ~/agent.py") == ("python", os.path.expanduser("~/agent.py"))


@pytest.mark.parametrize(
    ("command", "says"),
    [("", "has no words"), ([], "has no words"), ([""], "has no words"), ("a 'b", "cannot be split into words: No cl")],
)
def test_commands_that_are_none(command: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        words_of(command)


@pytest.mark.parametrize("command", [3, None, [1], print])
def test_commands_of_another_type(command: Any) -> None:
    with pytest.raises(TypeError, match=r'a program is a command, as env.program\("python my_agent.py"\), not'):
        words_of(command)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python my_agent.py --fast", "my_agent"),
        ("bash -e run/agent.v2.sh", "agent_v2"),
        ("python -m my.agent", "my_agent"),
        ("/usr/bin/mini --task {task[question]}", "mini"),
        ("...", "environment"),
    ],
)
def test_names(command: str, name: str) -> None:
    assert name_of(words_of(command)) == name == name_about("program", command)


def test_names_of_what_others_are_about() -> None:
    assert name_about("gymnasium", "A B-v1") == "A_B-v1"
    assert name_about("program", "a 'b") == "a_b"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{prompt}", "1+1="),
        ("--n={task[n]} {index}", "--n=3 7"),
        ("{task[choices][1][b]}", "null"),
        ("{task[choices]}", '["a", {"b": null}]'),
        ('{"a": {}} ${HOME} {unknown} {0} {task.n}', '{"a": {}} ${HOME} {unknown} {0} {task.n}'),
        ("{url}/x {url[first]}", "http://127.0.0.1:1/v1/x http://127.0.0.1:1/e/first/v1"),
    ],
)
def test_what_is_filled_in(template: str, text: str) -> None:
    assert filled(template, VALUES) == text


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{task[answer]}", r"\{task\[answer\]\}: there is no 'answer'; there is question, choices, n"),
        ("{task[choices][2]}", "there is no '2' in a list"),
        ("{task[n][x]}", "there is no 'x' in a int"),
        ("{url[second]}", "there is no 'second'; there is first"),
        ("{index[0]}", "there is no '0' in a int"),
    ],
)
def test_parts_that_are_not_there(template: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        filled(template, VALUES)


def test_which_placeholders_stand_somewhere() -> None:
    assert names(["{task[a]} {url}", "{x}", "{seed}"]) == {"task", "url", "seed"}


@given(st.text(), st.text())
def test_what_is_filled_in_is_not_looked_into(before: str, prompt: str) -> None:
    """A prompt that holds placeholders stays as it is, and no word becomes two."""
    before = before.replace("{", "")
    assert filled(f"{before}{{prompt}}", VALUES | {"prompt": prompt}) == before + prompt
