"""Kept contents: found by their version, removed when nobody needs them, never half there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from marlaas.engine.environments.files import source as snapshots
from marlaas.engine.environments.files.source import SPARE, Kept, Snapshots, Source


@pytest.fixture
def kept(tmp_path: Path) -> Snapshots:
    return Snapshots(tmp_path)


def a_source(number: int, name: str = "p", entry: str = "p.py") -> Source:
    return Source(name, entry, ((entry if entry.endswith(".py") else f"{entry}/__init__.py", b"%d" % number),))


def write(kept: Snapshots, folder: Path, count: int) -> list[str]:
    """Versions of one plugin, each a minute younger than the one before."""
    versions = []
    for number in range(count):
        source = a_source(number)
        kept.write(source)
        os.utime(folder / source.version, (60 * number, 60 * number))
        versions.append(source.version)
    return versions


def test_a_version_is_found_by_its_name(kept: Snapshots, tmp_path: Path) -> None:
    module, package = a_source(1), a_source(1, "q", "q")
    for source in (module, package):
        assert kept.find(source.version) is None
        path = kept.write(source)
        assert kept.find(source.version) == Kept(source.name, path) and path.exists()
    assert kept.find("../p") is None and kept.find("") is None


def test_what_a_power_cut_took_is_written_again(kept: Snapshots, tmp_path: Path) -> None:
    """A name outlives what was written under it: the files are there, and empty, or gone."""
    source = Source("q", "q", (("q/__init__.py", b"1"), ("q/more.py", b"2")))
    for lose in (lambda path: path.write_bytes(b""), Path.unlink):
        lose(kept.write(source) / "more.py")
        assert (kept.write(source) / "more.py").read_bytes() == b"2"
        assert [entry.name for entry in tmp_path.iterdir()] == [source.version]


def test_content_is_on_the_disk_before_it_has_its_name(
    kept: Snapshots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, flushed, real = a_source(1, "q", "q"), set(), os.fsync

    def fsync(descriptor: int) -> None:
        assert not (tmp_path / source.version).exists()
        flushed.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    kept.write(source)
    assert {"__init__.py", ".plugin", "q"} <= flushed


def test_the_newest_and_those_that_are_needed_stay(kept: Snapshots, tmp_path: Path) -> None:
    versions = write(kept, tmp_path, SPARE + 10)
    needed = {versions[0], versions[5], "of another home"}
    assert kept.tidy(needed) == 8
    assert {entry.name for entry in tmp_path.iterdir()} == {versions[0], versions[5], *versions[10:]}
    assert kept.tidy(needed) == 0


def test_a_version_that_is_of_use_again_is_no_old_one(kept: Snapshots, tmp_path: Path) -> None:
    versions = write(kept, tmp_path, SPARE + 1)
    kept.write(a_source(0))
    kept.tidy(set())
    assert kept.find(versions[0]) is not None and kept.find(versions[1]) is None


def test_what_an_engine_left_half_written_goes_when_it_is_old(kept: Snapshots, tmp_path: Path) -> None:
    for name, age in ((".new-old", 2 * snapshots.ABANDONED), (".new-young", 0.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "p.py").write_text("")
        changed = os.stat(tmp_path / name).st_mtime - age
        os.utime(tmp_path / name, (changed, changed))
    kept.tidy(set())
    assert [entry.name for entry in tmp_path.iterdir()] == [".new-young"]
    assert Snapshots(tmp_path / "nowhere").tidy(set()) == 0


def test_a_full_disk_leaves_nothing_behind(kept: Snapshots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(OSError, match="No space left"):
        kept.write(a_source(1))
    assert list(tmp_path.iterdir()) == [] and kept.find(a_source(1).version) is None
