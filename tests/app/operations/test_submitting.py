"""What the engine may not have read yet when a task is submitted."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.app.operations.submitting import LOADING_SECONDS, READING_SECONDS, loading, saved_lately
from marlaas.engine.environments.files.source import read_source
from marlaas.engine.store.rows import EnvironmentRow


def row(path: Path, state: str = "ready") -> EnvironmentRow:
    """An environment as the engine last told of it."""
    return EnvironmentRow(path.stem, "v", state, (), "", "", "", 0, str(path), 0.0)


@pytest.fixture
def dropped(tmp_path: Path) -> Path:
    """A file that was put into the plugin folder just now."""
    path = tmp_path / "letters.py"
    path.write_text("")
    return path


def test_a_file_that_the_engine_does_not_know_is_waited_for(dropped: Path) -> None:
    """However old it is: an engine that has just started has read nothing."""
    later = time.time() + 1e6
    assert loading(dropped.parent, [], later)
    assert loading(dropped.parent, [row(dropped.with_name("other.py"))], later)
    assert not loading(dropped.parent, [row(dropped)], later)


def test_so_is_a_file_that_changed_a_moment_ago(dropped: Path) -> None:
    """Its environments may be others than before."""
    changed = dropped.stat().st_ctime
    assert loading(dropped.parent, [row(dropped)], changed + LOADING_SECONDS / 2)
    assert not loading(dropped.parent, [row(dropped)], changed + LOADING_SECONDS * 2)


def test_so_is_what_is_being_loaded(dropped: Path) -> None:
    later = time.time() + 1e6
    assert loading(dropped.parent, [row(dropped), row(Path("race.py"), "loading")], later)


def test_the_content_that_was_just_saved_is_waited_for(dropped: Path) -> None:
    """It may have the parameter that the task gives; once the engine serves it, what it refuses is refused."""
    saved = dropped.stat().st_ctime
    known = replace(row(dropped), version=read_source(dropped).version)
    assert saved_lately(dropped.parent, [row(dropped)], saved + READING_SECONDS / 2)
    assert not saved_lately(dropped.parent, [row(dropped)], saved + READING_SECONDS * 2), "a broken edit stays another"
    assert not saved_lately(dropped.parent, [known], saved + READING_SECONDS / 2)


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert not loading(tmp_path / "plugins", [row(tmp_path / "race.py")], time.time())
