"""Which environments are made again, and what those of clients may not bring."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import environments
from tools.environments import CLIENTS, client, headers, main
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


def test_one_that_stands_is_left_as_it_is(steps: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main("clients", "openai") == 0 and (client("openai") / ".installed").exists()
    made, pip = steps
    assert "--without-pip" in made and pip[-1] == CLIENTS["openai"][0]
    assert main("clients", "openai") == 0 and len(steps) == 2
    monkeypatch.setitem(CLIENTS, "openai", ("openai==0.0.1",))
    assert main("clients", "openai") == 0 and len(steps) == 4, "another version was asked for"


def test_none_brings_torch(steps: list[list[str]]) -> None:
    brought = client("openai") / "lib/python3/site-packages/torch/__init__.py"
    brought.parent.mkdir(parents=True)
    brought.touch()
    with pytest.raises(StepFailed, match="would bring torch"):
        environments.clients(["openai"])
    assert not (client("openai") / ".installed").exists()


def test_an_unknown_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("clients", "opena") == 1 and "there is no client 'opena'." in capsys.readouterr().err


def test_the_version_of_vulkans_headers_is_read(tmp_path: Path) -> None:
    file = tmp_path / "vulkan_core.h"
    assert headers([str(file)]) is None
    file.write_text("#define VK_HEADER_VERSION 239\n")
    assert headers([str(file)]) == 239
