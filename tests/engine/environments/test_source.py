"""A version is the content: the same files give the same twelve digits, any change gives others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marlaas.engine.environments.source import Source, fresh, plugin_paths, read_source, stamp

files = st.dictionaries(st.text("abc", min_size=1, max_size=3), st.binary(max_size=20), min_size=1, max_size=4).map(
    lambda found: tuple(sorted(found.items()))
)


@given(files, files)
def test_versions_are_equal_exactly_where_the_content_is(one: object, other: object) -> None:
    first, second = Source("p", "p.py", one), Source("p", "p.py", other)  # type: ignore[arg-type]
    assert (first.version == second.version) == (one == other)
    assert len(first.version) == 12 and first.version.isalnum()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=100))
def test_a_snapshot_has_the_version_that_it_is_called_by(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p").mkdir(exist_ok=True)
    (tmp_path / "p" / "x.py").write_bytes(content)
    source = read_source(tmp_path / "p" / "x.py")
    kept = source.write(tmp_path / "snapshots")
    assert kept == source.write(tmp_path / "snapshots") and kept.read_bytes() == content
    assert read_source(kept).version == source.version == kept.parent.name


def test_the_files_of_a_plugin(tmp_path: Path) -> None:
    for name in ("x.py", "x.jsonl", "xy.py", "x.py~", "_no.py", ".x.py.swp"):
        (tmp_path / name).write_text("")
    (tmp_path / "pack" / "__pycache__").mkdir(parents=True)
    for name in ("__init__.py", "a.txt", ".hidden", "__pycache__/x.pyc"):
        (tmp_path / "pack" / name).write_text("")
    os.mkfifo(tmp_path / "pack" / "pipe")
    assert plugin_paths(tmp_path) == {
        "x": tmp_path / "x.py",
        "xy": tmp_path / "xy.py",
        "pack": tmp_path / "pack",
    }
    assert [name for name, _ in read_source(tmp_path / "x.py").files] == ["x.jsonl", "x.py"]
    assert [name for name, _ in read_source(tmp_path / "pack").files] == ["pack/__init__.py", "pack/a.txt"]


def test_a_missing_plugin(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("")
    with pytest.raises(FileNotFoundError):
        read_source(tmp_path / "x.py")
    assert plugin_paths(tmp_path / "nowhere") == {}


def test_a_stamp_is_trusted_only_once_it_is_old(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("")
    seen = stamp(tmp_path / "x.py")
    assert fresh(seen) and seen == stamp(tmp_path / "x.py")
    assert not fresh(tuple((name, inode, size, 0) for name, inode, size, _ in seen))
