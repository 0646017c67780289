"""A set-up whose steps are only written down; nothing is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tools import install, llama, steps

Steps = list[tuple[str, list[str], dict[str, str]]]
"""Title, command and variables of each step that ran."""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Steps:
    """What ran, in a new environment on a machine without compilers for cards, with a PyTorch for processors."""
    found: Steps = []
    venv = tmp_path / ".venv"
    venv.mkdir()

    def step(title: str, command: list[str], variables: dict[str, str] | None = None) -> None:
        found.append((title, command, variables or {}))
        if "wheel" in command:
            out = Path(command[command.index("-w") + 1])
            out.mkdir(parents=True)
            (out / "llama.whl").write_text(" ".join(command))

    monkeypatch.setattr(steps, "step", step)
    monkeypatch.setattr(install, "step", step)
    monkeypatch.setattr(steps, "VENV", venv)
    monkeypatch.setattr(steps, "LOG", tmp_path / "log")
    monkeypatch.setattr(steps, "runs", lambda program: program not in (install.NEEDS_CUDA, llama.IS_THERE))
    monkeypatch.setattr(llama, "check_compilers", lambda: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("TORCH_INDEX", "LLAMA_INDEX", "CMAKE_ARGS"):
        monkeypatch.delenv(name, raising=False)
    return found


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts the disk into another machine."""

    def put(name: str) -> None:
        for module in (install, llama):
            monkeypatch.setattr(module, "instruction_sets", lambda: name)

    return put


def compiled(ran: Steps) -> list[str]:
    """What CMake was told, each time that llama.cpp was compiled."""
    told = [variables["CMAKE_ARGS"] for title, _, variables in ran if title.startswith("compiling")]
    return [words.removeprefix("-DLLAVA_BUILD=OFF").strip() for words in told]


def command(ran: Steps, title: str) -> str:
    """The one command of that title."""
    (found,) = [" ".join(words) for said, words, _ in ran if said == title]
    return found
