"""The command that hides homes and the network; and bwrap itself, where this machine lets it work."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.environments.process.confinement import Confinement, inner, obstacle, readable_for


def binds(words: list[str], kind: str) -> list[str]:
    return [words[place + 1] for place, word in enumerate(words) if word == kind]


def test_only_the_scratch_folder_can_be_written_and_homes_are_empty(tmp_path: Path) -> None:
    home, snapshot, scratch, python = (tmp_path / name for name in ("home", "home/s/1", "home/work", "home/venvs/k"))
    for folder in (home, snapshot, scratch, python):
        folder.mkdir(parents=True, exist_ok=True)
    words = Confinement((home,), (python, Path("/usr"), tmp_path / "gone")).command(snapshot, scratch)
    assert {"--die-with-parent", "--unshare-all"} <= set(words) and words[-1] == "--"
    assert binds(words, "--bind") == [str(scratch)] == binds(words, "--chdir")
    assert binds(words, "--ro-bind") == ["/", str(python), str(snapshot)], "what is hidden and needed, nothing more"
    hidden = binds(words, "--tmpfs")
    assert str(Path("/tmp").resolve()) in hidden and str(Path.home().resolve()) in hidden
    assert any(home.is_relative_to(folder) for folder in hidden)
    assert all(words.index(folder) < words.index(str(snapshot)) for folder in hidden), "bound after it was hidden"


def test_a_home_elsewhere_is_hidden_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlaas.engine.environments.process.confinement._HIDDEN", (tmp_path / "none",))
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    for name in ("me", "marlaas", "link"):
        (tmp_path / name).mkdir()
    (tmp_path / "to").symlink_to(tmp_path / "marlaas")
    words = Confinement((tmp_path / "to",), ()).command(tmp_path / "me", tmp_path / "marlaas")
    assert binds(words, "--tmpfs") == [str(tmp_path / "marlaas"), str(tmp_path / "me")]


def test_what_a_python_reads(tmp_path: Path) -> None:
    real, venv = tmp_path / "pythons" / "3.12", tmp_path / "venv"
    for folder in (real / "bin", venv / "bin"):
        folder.mkdir(parents=True)
    (real / "bin" / "python3.12").touch()
    (venv / "bin" / "python").symlink_to(real / "bin" / "python3.12")
    assert readable_for(venv / "bin" / "python") == (venv, real / "bin", real / "lib")


def test_no_process_is_inside_of_one_that_has_no_children() -> None:
    assert inner(1 << 30) is None


@pytest.mark.processes
def test_why_nothing_can_be_confined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert obstacle() == "bwrap (bubblewrap) is not installed"
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new\nnamespace' >&2\nexit 1\n")
    bwrap.chmod(0o755)
    assert obstacle() == "bwrap: No permissions to create a new namespace"
    bwrap.write_text("#!/bin/sh\nexit 0\n")
    assert obstacle() == ""
