"""Consent and completeness are files: whoever looks sees the same."""

from __future__ import annotations

from pathlib import Path

from marlaas.engine.environments.dependencies.requirements import Requirements
from marlaas.engine.environments.dependencies.venv import OWN, Venv


def test_an_environment_whose_python_has_gone_is_nothing(tmp_path: Path) -> None:
    venv = Venv.of(Requirements(("a",)), OWN, tmp_path)
    venv.python.parent.mkdir(parents=True)
    venv.python.symlink_to(tmp_path / "gone")
    venv.finish()
    assert not venv.built


def test_nothing_to_install_is_nothing_to_ask(tmp_path: Path) -> None:
    assert Venv.of(Requirements(), OWN, tmp_path).allowed


def test_consent_and_build_are_of_the_very_list(tmp_path: Path) -> None:
    seen = Venv.of(Requirements(("a", "b")), OWN, tmp_path)
    other = Venv(seen.folder, ("a", "evil"))  # a list that was made to have the same key
    seen.allow()
    seen.python.parent.mkdir(parents=True)
    seen.python.symlink_to(OWN.executable)
    seen.finish()
    assert seen.allowed and seen.built
    assert not other.allowed and not other.built
    seen.folder.with_suffix(".allowed").write_text("")
    assert not seen.allowed, "a file alone is no consent"
