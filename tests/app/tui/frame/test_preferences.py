"""A person's settings file: read, or refused with the place of what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.app.tui.frame.preferences import Preferences, read_preferences
from marlaas.engine.errors import ConfigError


def test_no_file_is_the_defaults(tmp_path: Path) -> None:
    assert read_preferences(tmp_path / "none.toml") == Preferences()


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "app.toml"
    path.write_text("theme = 'marlaas-light'\nascii = true\n[keys]\n'task.pause' = 'P'\n")
    assert read_preferences(path) == Preferences("marlaas-light", True, {"task.pause": "P"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("theme = 3", "theme must be a name"),
        ("theme = 'marlas'", "There is no theme 'marlas'"),
        ("ascii = 'yes'", "ascii must be true or false"),
        ("colour = 1", "no setting 'colour'"),
        ("keys = 3", "[keys]"),
        ("[keys]\na = 3", "[keys]"),
        ("theme", "is not valid TOML"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "app.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_preferences(path)
    assert says in str(refused.value) and refused.value.where == str(path)
