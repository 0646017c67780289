"""Files of plugins: versions are contents, snapshots are whole, and what plays decides about the code's digest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from marlaas.engine.environments import files as snapshots, files as source
from marlaas.engine.environments.files import (
    SPARE,
    Snapshots,
    Source,
    SourceError,
    code_of,
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
    snapshots = Snapshots(tmp_path / "snapshots")
    kept = snapshots.write(source)
    assert kept == snapshots.write(source) and kept.read_bytes() == content
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


def test_links_within_a_plugin_are_read_and_others_refused(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    for name in ("x.py", "pack/__init__.py", "secret.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "pack" / "again.txt").symlink_to("__init__.py")
    assert dict(read_source(tmp_path / "pack").files)["pack/again.txt"] == b"pack/__init__.py"
    (tmp_path / "pack" / "data.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "x.txt").symlink_to("/etc/passwd")
    for path, name in ((tmp_path / "pack", "pack/data.txt"), (tmp_path / "x.py", "x.txt")):
        for read in (read_source, stamp):
            with pytest.raises(SourceError, match=f"{name} is a link that leads out of the plugin: put a copy there"):
                read(path)
    (tmp_path / "pack" / "data.txt").unlink()
    (tmp_path / "pack" / "more").symlink_to(tmp_path)
    with pytest.raises(SourceError, match="more is a link to a folder"):
        read_source(tmp_path / "pack")


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


PLAIN = '''"""An environment."""
# /// script
# dependencies = ["sympy"]
# ///
from marlaas.plugins import env

@env
async def sums(ep, most: int = 9):
    """Add."""
    said = await ep.ask(f"{most} + 1?")
    return float(said.text == "10")
'''

EDITED = {
    "a comment": PLAIN.replace("@env", "# simple sums\n@env"),
    "a comment behind code": PLAIN.replace("@env\n", "@env  # declared\n"),
    "empty lines": PLAIN.replace("@env", "\n\n@env"),
    "indentation": PLAIN.replace("\n    ", "\n  "),
    "quotes and brackets": PLAIN.replace('"10"', "('10')"),
    "the module's docstring": PLAIN.replace("An environment.", "Sums of small numbers."),
    "no docstring of the module": PLAIN.partition("\n")[2],
    "a comment in the block": PLAIN.replace("# dependencies", "# # for grading\n# dependencies"),
    "other ends of lines": PLAIN.replace("\n", "\r\n"),
}

OTHER = {
    "a prompt": PLAIN.replace("+ 1?", "+ 1 ?"),
    "a reward": PLAIN.replace('"10"', '"11"'),
    "a default": PLAIN.replace("= 9", "= 8"),
    "a function's docstring, which may describe a tool": PLAIN.replace("Add.", "Add them."),
    "a library": PLAIN.replace("sympy", "sympy>=1.13"),
    "a docstring that is read": PLAIN.replace('f"{most}', '__doc__ + f"{most}'),
}


def code(text: str, name: str) -> str:
    return Source("sums", "sums.py", ((name, text.encode()),)).code


READ = '"""Say %s."""\nPROMPT = __doc__\n'
TAXI = 'adapter = "gymnasium"\n[config]\nid = "Taxi-v3"\n'


@pytest.mark.parametrize(
    ("before", "after", "name", "equal"),
    [
        *((PLAIN, edited, "sums.py", True) for edited in EDITED.values()),
        *((PLAIN, edited, "sums.py", False) for edited in OTHER.values()),
        (READ, READ.replace("Say", "Tell"), "sums.py", False),
        (TAXI, "# taxis\nadapter=\"gymnasium\"\n\n[config] # whose\nid = 'Taxi-v3'\n", "taxi.toml", True),
        (TAXI, TAXI.replace("v3", "v2"), "taxi.toml", False),
        ('{"a": 1}\n', '{"a":  1}\n', "sums.jsonl", False),
    ],
)
def test_only_what_plays_makes_another_code(before: str, after: str, name: str, equal: bool) -> None:
    """Of TOML the values count, and of data every byte."""
    assert before != after and (code(before, name) == code(after, name)) is equal


@pytest.mark.parametrize("broken", [b"def (", b"\xff\xfe", b"x = '\0'", b"[" * 5000, b"x\n" * 600_000])
def test_what_cannot_be_parsed_counts_byte_by_byte(broken: bytes) -> None:
    assert code_of("a.py", broken) == broken and code_of("a.toml", broken) == broken
