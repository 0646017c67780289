"""Which environments of clients are made anew, and what they may not bring."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import clients
from tools.clients import LIBRARIES, main, stands, venv_of
from tools.steps import StepFailed, python_of


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The commands that would be run, in a folder of the test's own."""
    ran: list[list[str]] = []
    monkeypatch.setattr(clients, "FOLDER", tmp_path)

    def step(title: str, command: list[str]) -> None:
        ran.append(command)
        venv_of("openai").mkdir(exist_ok=True)

    monkeypatch.setattr(clients, "step", step)
    return ran


def test_every_package_has_the_version_that_was_tested() -> None:
    assert all("==" in each for library in LIBRARIES.values() for each in (*library.requirements, *library.alone))


def test_one_that_stands_is_left_as_it_is(steps: list[list[str]]) -> None:
    assert main(["openai"]) == 0 and stands("openai")
    made, pip = steps
    assert "--without-pip" in made and pip[-1] == LIBRARIES["openai"].requirements[0]
    assert main(["openai"]) == 0 and len(steps) == 2


def test_none_brings_torch(steps: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    brought = python_of(venv_of("openai")).parent.parent / "lib/python3/site-packages/torch/__init__.py"
    brought.parent.mkdir(parents=True)
    brought.touch()
    with pytest.raises(StepFailed, match="would bring torch"):
        clients.make("openai")
    assert not stands("openai")


def test_an_unknown_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opena"]) == 1 and "There is no client 'opena'." in capsys.readouterr().err
