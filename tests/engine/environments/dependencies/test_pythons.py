"""Which Python of this machine a plugin runs on; the others are stand-ins that know their version."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from marlaas.engine.environments.dependencies.venv import OWN, NoPython, suitable

pytestmark = pytest.mark.processes


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with Pythons 3.40.1 (out of sight), 3.28.3, 3.27.9 and one that does not run."""
    for name, script in {"3.40": "echo 3.40.1", "3.28": "echo 3.28.3", "3.27": "echo 3.27.9", "3.26": "exit 1"}.items():
        executable = tmp_path / f"python{name}"
        executable.write_text(f"#!/bin/sh\n{script}\n")
        executable.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("requires", ["", ">=3.11", f"=={platform.python_version()}"])
def test_marlaas_s_own_comes_first(path: Path, requires: str) -> None:
    assert suitable(requires) == OWN


def test_else_the_oldest_that_will_do(path: Path) -> None:
    assert suitable(">=3.26").executable == path / "python3.27"
    assert suitable(">=3.27.10").version == "3.28"


@pytest.mark.parametrize("requires", [">=3.29", "<3.11", "==3.28.4"])
def test_none_is_made_up(path: Path, requires: str) -> None:
    with pytest.raises(NoPython, match=f"needs Python {requires}, but marlaas runs on 3"):
        suitable(requires)
