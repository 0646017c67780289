"""What becomes of files that no version names: they go, or are kept where a version was voided."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.adapters.statefile import MARK, Swept, lost_files, spare, sweep
from marlaas.engine.errors import AdapterUnreachable


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "adapters" / "task-1"
    folder.mkdir(parents=True)
    for name in ("v1", "v2", ".v3.123"):
        (folder / name).write_text(name)
    return folder


def files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_what_a_crash_left_behind_is_removed(folder: Path, tmp_path: Path) -> None:
    assert sweep(folder, {"v1"}, tmp_path / "lost") == Swept()
    assert files(folder) == {"v1": "v1"} and not (tmp_path / "lost").exists()


def test_nothing_is_removed_once_a_version_was_voided(folder: Path, tmp_path: Path) -> None:
    lost = tmp_path / "lost+found" / "task-1"
    for again, name in enumerate(("v2", "v2.2", "v2.3")):
        (folder / "v2").write_text(f"v2 {again}")
        spare(folder)
        assert lost / name in sweep(folder, {"v1"}, lost).moved
    assert files(folder) == {"v1": "v1"}
    assert files(lost) == {"v2": "v2 0", "v2.2": "v2 1", "v2.3": "v2 2", ".v3.123": ".v3.123"}
    (tmp_path / "lost+found" / "strange").write_text("of a file system")
    (found,) = lost_files(tmp_path / "lost+found")
    assert (found.folder, found.files, found.size) == (lost, 4, 19)
    (folder / "v4").write_text("of a crash later on")
    assert sweep(folder, {"v1"}, lost) == Swept() and files(folder) == {"v1": "v1"}


def test_what_cannot_be_moved_stays_and_is_tried_again(folder: Path, tmp_path: Path) -> None:
    spare(folder)
    (tmp_path / "lost+found").write_text("in the way")
    swept = sweep(folder, {"v1"}, tmp_path / "lost+found" / "task-1")
    assert not swept.moved and len(swept.problems) == 2 and "stays where it is: Not a directory" in swept.problems[0]
    assert files(folder) == {"v1": "v1", "v2": "v2", ".v3.123": ".v3.123", MARK: ""}
    (tmp_path / "lost+found").unlink()
    assert len(sweep(folder, {"v1"}, tmp_path / "lost+found" / "task-1").moved) == 2
    assert files(folder) == {"v1": "v1"}


def test_a_folder_that_is_not_there_is_not_empty(tmp_path: Path) -> None:
    for act in (lambda: sweep(tmp_path / "gone", set(), tmp_path / "lost"), lambda: spare(tmp_path / "gone")):
        with pytest.raises(AdapterUnreachable, match="gone: cannot be read: No such file"):
            act()
