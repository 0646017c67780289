"""env allow: the list, the question, and what is left for the engine to find; stand-ins install nothing."""

from __future__ import annotations

import builtins
from pathlib import Path

import pytest

from marlaas.app.cli import terminal
from marlaas.engine.environments.dependencies.requirements import Requirements
from marlaas.engine.environments.dependencies.venv import OWN, Venv
from marlaas.engine.home.paths import Home

from ...commanding import Commander

pytestmark = pytest.mark.processes
PLUGIN = '# /// script\n# dependencies = ["b", "A==1"]\n# ///\n'


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One which says something, makes the folder, and installs nothing."""
    uv = tmp_path / "uv"
    _script(
        uv,
        "for last; do :; done\n"
        f"[ $1 = venv ] && mkdir -p $last/bin && ln -s {OWN.executable} $last/bin/python\n"
        r"printf 'working \033[2J on it\n'",
    )
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(uv))
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://me:secret@wheels.example/simple")
    return uv


def _script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def venv(home: Home) -> Venv:
    """The environment of the plugin ``chain``, which is in the home's folder."""
    home.create()
    (home.plugins / "chain.py").write_text(PLUGIN)
    return Venv.of(Requirements(("a==1", "b")), OWN, home.venvs)


def answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(terminal, "has_terminal", lambda: True)
    monkeypatch.setattr(builtins, "input", lambda prompt: text)


def test_shows_the_list_asks_and_installs(
    uv: Path, venv: Venv, marlaas: Commander, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, "y")
    said = marlaas("env", "allow", "chain/some_environment")
    assert said.code == 0 and venv.built and venv.allowed
    assert [text.strip() for text in said.out.splitlines()] == [
        f"chain needs, on Python {OWN.version}:",
        "a==1",
        "b",
        "with what they need themselves, from the index https://wheels.example/simple.",
        f"Place: {venv.folder}",
    ]
    assert "working on it" in said.err and "\x1b" not in said.err and "serves chain at once" in said.err

    again = marlaas("env", "allow", "chain")
    assert again.code == 0 and "nothing is to be done" in again.err


def test_a_no_is_a_no(uv: Path, venv: Venv, marlaas: Commander, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, "")
    said = marlaas("env", "allow", "chain")
    assert said.code == 1 and "Nothing was installed." in said.err and not venv.allowed and not venv.built


def test_without_a_terminal_yes_has_to_be_said(uv: Path, venv: Venv, marlaas: Commander) -> None:
    said = marlaas("env", "allow", "chain")
    assert said.code == 2 and "--yes" in said.err and "a==1" in said.out and not venv.allowed
    assert marlaas("env", "allow", "chain", "--yes").code == 0 and venv.built and venv.allowed


def test_a_build_that_fails_says_why_and_where(uv: Path, venv: Venv, marlaas: Commander) -> None:
    _script(uv, 'echo "error: no luck"; exit 1')
    said = marlaas("env", "allow", "chain", "--yes")
    assert said.code == 1 and f"cannot be installed: no luck (log: {venv.log})" in said.err
    assert venv.allowed and not venv.built


def test_never_is_said_before_anybody_is_asked(uv: Path, venv: Venv, home: Home, marlaas: Commander) -> None:
    home.config.write_text('[environments]\nallow = "never"\n')
    said = marlaas("env", "allow", "chain", "--yes")
    assert said.code == 2 and 'allow = "never"' in said.err and not venv.allowed


def test_a_plugin_that_needs_nothing(home: Home, marlaas: Commander) -> None:
    said = marlaas("env", "allow", "arithmetic")
    assert said.code == 0 and "arithmetic needs no libraries" in said.err and not home.venvs.exists()


def test_what_cannot_be(venv: Venv, home: Home, marlaas: Commander) -> None:
    said = marlaas("env", "allow", "chian")
    assert said.code == 2 and "Did you mean 'chain'?" in said.err
    (home.plugins / "chain.py").write_text(PLUGIN.replace("==1", "=1"))
    said = marlaas("env", "allow", "chain")
    assert said.code == 2 and "chain.py:2: 'A=1' is no requirement" in said.err
