"""A backup becomes a home as a whole or not at all, whatever it holds."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from marlaas.app.operations.backups import CONTENTS, Contents, Entry, back_up, restore
from marlaas.engine.errors import BackupError, ConfigError, MarlaasError
from marlaas.engine.home.paths import Home

from ...commanding import Commander
from .kept_home import files, fill, put


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    home, file = Home(tmp_path_factory.mktemp("sound") / "home"), tmp_path_factory.mktemp("sound") / "kept.tar"
    fill(home)
    back_up(home, file)
    return file.read_bytes()


@pytest.fixture
def kept(sound: bytes, tmp_path: Path) -> Path:
    return put(tmp_path / "kept.tar", sound)


Change = Callable[[dict[str, tuple[tarfile.TarInfo, bytes]]], None]


def rewrite(kept: Path, change: Change, honest: bool = True) -> Path:
    """The backup with other members; ``honest``: its list of contents names them as if they belonged there."""
    with tarfile.open(kept) as tar:
        members = {member.name: (member, tar.extractfile(member).read()) for member in tar}  # type: ignore[union-attr]
    change(members)
    if honest and CONTENTS in members:
        info, data = members.pop(CONTENTS)
        table = json.loads(data)
        for name, (member, content) in members.items():
            if name != "marlaas.db.gz":
                table["files"].setdefault(name, vars(Entry(member.size, sha(content))))
        table["files"] = {n: e for n, e in table["files"].items() if n == "marlaas.db" or n in members}
        data = json.dumps(table).encode()
        info.size = len(data)
        members[CONTENTS] = (info, data)
    path = kept.with_name("hostile.tar")
    with tarfile.open(path, "w") as tar:
        for member, content in members.values():
            tar.addfile(member, io.BytesIO(content) if member.type == tarfile.REGTYPE else None)
    return path


def sha(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


def plain(name: str, data: bytes = b"x", **changes: object) -> Change:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in changes.items():
        setattr(info, key, value)
    return lambda members: members.__setitem__(name, (info, data))


HOSTILE: dict[str, tuple[Change, str]] = {
    "a way out": (plain("../escaped"), "outside of the home"),
    "a way out inside": (plain("plugins/../../escaped"), "outside of the home"),
    "an absolute name": (plain("/tmp/escaped"), "outside of the home"),
    "a link": (plain("plugins/link", b"", type=tarfile.SYMTYPE, linkname="/etc"), "no plain file"),
    "a hard link": (plain("plugins/link", b"", type=tarfile.LNKTYPE, linkname="marlaas.toml"), "no plain file"),
    "a device": (plain("plugins/zero", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=5), "no plain file"),
    "a pipe": (plain("plugins/pipe", b"", type=tarfile.FIFOTYPE), "no plain file"),
    "a folder": (plain("plugins/folder", b"", type=tarfile.DIRTYPE), "no plain file"),
    "a log for sqlite": (plain("marlaas.db-wal"), "belongs into no backup"),
    "a folder as a file": (plain("plugins"), "could not be written"),
    "no end": (lambda members: members.pop(CONTENTS) and None, "no list of contents"),
    "no list": (plain(CONTENTS, b"[]"), "list of contents cannot be read"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_backups_are_refused_in_one_sentence(kept: Path, marlaas: Commander, tmp_path: Path, what: str) -> None:
    change, words = HOSTILE[what]
    before = {path for path in tmp_path.rglob("*")}
    hostile = rewrite(kept, change, honest=what != "no list")
    said = marlaas("--home", str(tmp_path / "new"), "home", "restore", str(hostile))
    assert said.code == 1 and words in said.err and "Traceback" not in said.err
    assert {path for path in tmp_path.rglob("*")} - before == {hostile}


def doubled(members: dict[str, tuple[tarfile.TarInfo, bytes]]) -> None:
    members["again"] = members["marlaas.toml"]


def larger(name: str, size: int) -> Change:
    """The list of contents declares another size."""

    def change(members: dict[str, tuple[tarfile.TarInfo, bytes]]) -> None:
        info, data = members[CONTENTS]
        table = json.loads(data)
        table["files"][name]["size"] = size
        data = json.dumps(table).encode()
        info.size = len(data)
        members[CONTENTS] = (info, data)

    return change


def flipped(members: dict[str, tuple[tarfile.TarInfo, bytes]]) -> None:
    info, data = members["adapters/task-1/policy-v1-i1.safetensors"]
    members[info.name] = (info, data[:-1] + bytes([data[-1] ^ 1]))


def bomb(members: dict[str, tuple[tarfile.TarInfo, bytes]]) -> None:
    """Much more than is declared, in few bytes."""
    info, _ = members["marlaas.db.gz"]
    data = gzip.compress(bytes(50_000_000), 1)
    info.size = len(data)
    members["marlaas.db.gz"] = (info, data)


BROKEN: dict[str, tuple[Change, str]] = {
    "a file twice": (doubled, "twice"),
    "more than the disk has": (larger("marlaas.db", 10**18), "are free in"),
    "a size of nowhere": (larger("marlaas.db", -1), "list of contents cannot be read"),
    "another size": (larger("marlaas.toml", 3), "another size"),
    "a flipped bit": (flipped, "is not what was backed up"),
    "a bomb": (bomb, "'marlaas.db' in the backup is not what was backed up"),
    "a lacking file": (lambda members: members.pop("marlaas.toml") and None, "differ in 'marlaas.toml'"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_backups_are_refused_in_one_sentence(kept: Path, marlaas: Commander, tmp_path: Path, what: str) -> None:
    change, words = BROKEN[what]
    new = tmp_path / "new"
    new.mkdir()
    said = marlaas("--home", str(new), "home", "restore", str(rewrite(kept, change, honest=False)))
    assert said.code == 1 and words in said.err and "Traceback" not in said.err
    assert list(new.iterdir()) == [] and not list(tmp_path.glob(".marlaas-*"))


def test_a_backup_that_is_cut_short_is_refused_wherever_it_ends(kept: Path, tmp_path: Path) -> None:
    whole = kept.read_bytes()
    for end in (0, 100, 512, 700, len(whole) // 3, len(whole) // 2, whole.rindex(CONTENTS.encode()) + 600):
        short = put(tmp_path / "short.tar", whole[:end])
        with pytest.raises(BackupError):
            restore(short, Home(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_databases_that_may_not_be_put_in_place(home: Home, tmp_path: Path) -> None:
    filling = fill(home)
    for sql, words in (
        ("UPDATE versions SET path = 'adapters/../../escaped' WHERE number = 1", "outside of its home"),
        ("INSERT INTO _sqlite_migrations VALUES (999, 'marlaas', 'm999_later', '2027')", "newer marlaas"),
    ):
        filling.execute(sql)
        with pytest.raises(MarlaasError, match=words):
            back_up(home, tmp_path / "kept.tar")
        hostile = packed(home.database, tmp_path)
        with pytest.raises(MarlaasError, match=words):
            restore(hostile, Home(tmp_path / "new"))
        filling.execute("UPDATE versions SET path = 'adapters/x'")
    assert not (tmp_path / "new").exists() and not list(tmp_path.glob(".marlaas-*"))


def packed(database: Path, folder: Path) -> Path:
    """A backup of one database, with everything right about it but what it holds."""
    with closing(sqlite3.connect(database)) as connection, closing(sqlite3.connect(folder / "copy.db")) as copy:
        connection.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")
    data = (folder / "copy.db").read_bytes()
    listed = Contents(1.0, "0", {"marlaas.db": Entry(len(data), sha(data))})
    path = folder / "hostile.tar"
    with tarfile.open(path, "w") as tar:
        for name, content in (("marlaas.db.gz", gzip.compress(data, 1)), (CONTENTS, listed.to_bytes())):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def test_a_home_that_holds_anything_is_left_alone(kept: Path, home: Home, marlaas: Commander, tmp_path: Path) -> None:
    put(home.root / "note", b"mine")
    said = marlaas("home", "restore", str(kept))
    assert said.code == 2 and "is not empty" in said.err and files(home.root) == {"note": b"mine"}
    with pytest.raises(ConfigError, match="is no folder"):
        restore(kept, Home(kept))
    link = tmp_path / "link"
    (tmp_path / "empty").mkdir()
    link.symlink_to(tmp_path / "empty")
    assert restore(kept, Home(link)).home == tmp_path / "empty" and link.is_symlink()


def test_a_format_of_later_is_named(kept: Path, tmp_path: Path) -> None:
    def later(members: dict[str, tuple[tarfile.TarInfo, bytes]]) -> None:
        info, data = members[CONTENTS]
        data = data.replace(b'"format": 1', b'"format": 9')
        members[CONTENTS] = (replace_size(info, len(data)), data)

    with pytest.raises(BackupError, match="format 9; this marlaas reads format 1"):
        restore(rewrite(kept, later, honest=False), Home(tmp_path / "new"))


def replace_size(info: tarfile.TarInfo, size: int) -> tarfile.TarInfo:
    info.size = size
    return info
