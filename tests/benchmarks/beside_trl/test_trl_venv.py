from __future__ import annotations

import ast
import os
import subprocess
from pathlib import Path

import pytest

from benchmarks import ROOT
from benchmarks.beside_trl import trl_venv
from benchmarks.machinery.cores import all_cores, pinned

INSIDE = ("beside_trl/trl_grpo.py", "plugins/sums/grading.py", "plugins/real/grading.py")
"""What runs in TRL's environment, where marlaas is not installed."""


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Every command that would have run; the folder of the environment exists."""
    ran: list[list[str]] = []

    def run(command: list[str], **unused: object) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        failed = "install" in command and "TORCH_INDEX" not in os.environ
        words = "ERROR: No matching distribution found for torch\n\n" if failed else ""
        return subprocess.CompletedProcess(command, int(failed), "", words)

    monkeypatch.setattr(trl_venv, "VENV", tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    return ran


def test_the_environment_is_made_once(commands: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_INDEX", "file:///wheels")
    python = trl_venv.ensure_trl()
    install = next(command for command in commands if "install" in command)
    assert install[0] == str(python) and f"trl=={trl_venv.TRL}" in install and "file:///wheels" in install
    made = len(commands)
    assert trl_venv.ensure_trl() == python and len(commands) == made


def test_packages_that_cannot_be_had_are_one_sentence(commands: list[list[str]]) -> None:
    with pytest.raises(trl_venv.TrlUnavailable, match="cannot be made: ERROR: No matching distribution"):
        trl_venv.ensure_trl()
    with pytest.raises(trl_venv.TrlUnavailable):
        trl_venv.ensure_trl()


@pytest.mark.parametrize("name", INSIDE)
def test_what_runs_beside_trl_imports_nothing_of_marlaas(name: str) -> None:
    tree = ast.parse((ROOT / "benchmarks" / name).read_text(encoding="utf-8"))
    modules = [node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert not [module for module in modules if module.startswith(("marlaas", "benchmarks", "."))]


def test_pinning_ends_with_its_block() -> None:
    before = all_cores()
    with pinned(before[-1:]):
        assert all_cores() == before[-1:]
    assert all_cores() == before
