"""Which environments are made again, and what those of clients may not bring."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import environments
from tools.environments import CLIENTS, client, main
from tools.steps import StepFailed


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The commands that would be run, in a folder of the test's own."""
    ran: list[list[str]] = []

    def step(title: str, command: list[str]) -> None:
        ran.append(command)
        client("openai").mkdir(exist_ok=True, parents=True)

    monkeypatch.setattr(environments, "ROOT", tmp_path)
    monkeypatch.setattr(environments, "step", step)
    (tmp_path / "pyproject.toml").touch()
    return ran


def test_every_package_has_the_version_that_was_tested() -> None:
    assert all("==" in each for packages in CLIENTS.values() for each in packages)


def test_none_brings_torch(steps: list[list[str]]) -> None:
    brought = client("openai") / "lib/python3/site-packages/torch/__init__.py"
    brought.parent.mkdir(parents=True)
    brought.touch()
    with pytest.raises(StepFailed, match="would bring torch"):
        environments.clients(["openai"])
    assert not (client("openai") / ".installed").exists()


def test_an_unknown_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("clients", "opena") == 1 and "there is no client 'opena'." in capsys.readouterr().err
