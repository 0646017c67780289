"""A version is the content: the same files give the same twelve digits, any change gives others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from marlaas.engine.environments.files import source
from marlaas.engine.environments.files.source import (
    Source,
    SourceError,
    fresh,
    plugin_paths,
    read_source,
    stamp,
)

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
    for name in (".venv/lib/x.py", "env/pyvenv.cfg", "env/lib/x.py", "web/node_modules/x/index.js"):
        (tmp_path / "pack" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pack" / name).write_text("")
    (tmp_path / "pack" / "env" / "lib64").symlink_to("lib")
    os.mkfifo(tmp_path / "pack" / "pipe")
    assert plugin_paths(tmp_path) == {
        "x": tmp_path / "x.py",
        "xy": tmp_path / "xy.py",
        "pack": tmp_path / "pack",
    }
    assert [name for name, _ in read_source(tmp_path / "x.py").files] == ["x.jsonl", "x.py"]
    assert [name for name, _ in read_source(tmp_path / "pack").files] == ["pack/__init__.py", "pack/a.txt"]


def test_toml_files_and_openenv_folders(tmp_path: Path) -> None:
    for name in ("sums.toml", "sums.txt", "pyproject.toml", "echo/openenv.yaml", "echo/server/echo.py", "other/x.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert plugin_paths(tmp_path) == {"sums": tmp_path / "sums.toml", "echo": tmp_path / "echo"}
    assert [name for name, _ in read_source(tmp_path / "echo").files] == ["echo/openenv.yaml", "echo/server/echo.py"]


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


def test_a_plugin_may_be_a_link_but_none_may_lead_out_of_it(tmp_path: Path) -> None:
    work, plugins = tmp_path / "work", tmp_path / "plugins"
    (work / "pack").mkdir(parents=True)
    plugins.mkdir()
    for name in ("x.py", "pack/__init__.py", "secret.txt"):
        (work / name).write_text(name)
    (plugins / "x.py").symlink_to(work / "x.py")
    (plugins / "pack").symlink_to(work / "pack")
    assert read_source(plugins / "x.py").files == (("x.py", b"x.py"),)
    (work / "pack" / "again.txt").symlink_to("__init__.py")
    assert dict(read_source(plugins / "pack").files)["pack/again.txt"] == b"pack/__init__.py"
    (work / "pack" / "data.txt").symlink_to(work / "secret.txt")
    (plugins / "x.txt").symlink_to(work / "secret.txt")
    for path, name in ((plugins / "pack", "pack/data.txt"), (plugins / "x.py", "x.txt")):
        for read in (read_source, stamp):
            with pytest.raises(SourceError, match=f"{name} is a link that leads out of the plugin: put a copy there"):
                read(path)
    (work / "pack" / "data.txt").unlink()
    (work / "pack" / "more").symlink_to(work)
    with pytest.raises(SourceError, match="more is a link to a folder"):
        read_source(plugins / "pack")


def test_endless_files_are_refused_before_memory_fills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pack").mkdir()
    for name in ("__init__.py", "a.txt", "b.txt"):
        (tmp_path / "pack" / name).write_bytes(b"x" * 10)
    monkeypatch.setattr(source, "_LARGEST_PLUGIN", 30)
    assert len(read_source(tmp_path / "pack").files) == 3
    monkeypatch.setattr(source, "_LARGEST_PLUGIN", 29)
    with pytest.raises(SourceError, match="the files of pack are larger than"):
        read_source(tmp_path / "pack")
    monkeypatch.setattr(source, "_MOST_FILES", 2)
    with pytest.raises(SourceError, match="pack has more than 2 files"):
        read_source(tmp_path / "pack")


@pytest.mark.parametrize("name", ["a\x1b[2J", "a\udcff", "a" * 65])
def test_names_that_no_screen_could_show_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("")
    ((found, path),) = plugin_paths(tmp_path).items()
    assert found.isprintable() and path == tmp_path / f"{name}.py"
    with pytest.raises(SourceError, match="at most 64 printable characters") as caught:
        read_source(path)
    assert str(caught.value).isprintable()
