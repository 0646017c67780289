"""A backup holds one moment of a home and becomes a home as a whole or not at all."""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from marlaas.app.operations import backups as backup_module
from marlaas.app.operations.backups import CONTENTS, Entry, back_up, restore
from marlaas.engine.errors import BackupError, ConfigError, MarlaasError
from marlaas.engine.home.paths import Home
from marlaas.engine.store.schema import Held
from tests.app.commanding import Commander
from tests.app.filling import Filling

STATE = b"state " * 1000


def fill(home: Home) -> Filling:
    """A task with three versions and their files; settings, plugins, a snapshot, and what is made again."""
    filling = Filling(home.create().database)
    filling.task(name="sums")
    filling.execute("DELETE FROM versions")
    for number in range(3):
        version(filling, home, number)
    for name in ("marlaas.toml", "plugins/mine.py", "plugins/kit/__init__.py", "scratch/snapshots/ab12/.plugin"):
        put(home.root / name, name.encode())
    for name in (
        "logs/engine.log",
        "venvs/x/lib.py",
        "base/tiny.gguf",
        "rates.json",
        "speeds.json",
        "scratch/probe",
        "engine.lock",
    ):
        put(home.root / name, b"made again")
    put(home.adapters / "task-1" / ".policy-v3-i1.safetensors.77", b"half")
    (home.plugins / "linked.py").symlink_to(put(home.root.parent / "elsewhere.py", b"linked"))
    (home.plugins / "nowhere.py").symlink_to("missing")
    os.mkfifo(home.root / "pipe")
    return filling


def version(filling: Filling, home: Home, number: int) -> Path:
    """A committed version and its file."""
    name = f"task-1/policy-v{number}-i1"
    filling.insert(
        "versions",
        policy=1,
        number=number,
        name=name,
        incarnation=1,
        state="committed",
        checksum=f"sum{number}",
        path=f"adapters/{name}.safetensors",
        created=1.0,
    )
    return put(home.adapters / f"{name}.safetensors", STATE + bytes([number]))


def put(path: Path, data: bytes) -> Path:
    """A file, in a folder that may not be there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def rows(home: Home, sql: str) -> list[tuple[object, ...]]:
    """What a database answers."""
    with closing(sqlite3.connect(home.database)) as connection:
        return connection.execute(sql).fetchall()


def files(root: Path) -> dict[str, bytes]:
    """All files but the database, by name."""
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file() and p.name != "marlaas.db"}


@pytest.fixture
def filling(home: Home) -> Filling:
    return fill(home)


@pytest.fixture
def filled(filling: Filling, home: Home) -> Home:
    return home


def test_a_home_comes_back_as_it_was(filled: Home, marlaas: Commander, tmp_path: Path) -> None:
    file, new = tmp_path / "kept.tar", tmp_path / "new"
    said = marlaas("home", "backup", str(file))
    assert said.code == 0 and said.out == f"{file}\n"
    assert "marlaas home restore" in said.err
    assert [path.name for path in tmp_path.glob("*kept*")] == ["kept.tar"] and not list(tmp_path.glob(".marlaas-*"))
    assert file.stat().st_mode & 0o777 == 0o600
    said = marlaas("--home", str(new), "home", "restore", str(file), "--json")
    assert said.code == 0 and said.json["tasks"] == 1 and said.json["missing"] == []
    states = [f"adapters/task-1/policy-v{number}-i1.safetensors" for number in range(3)]
    others = ["marlaas.toml", "plugins/kit/__init__.py", "plugins/linked.py", "plugins/mine.py"]
    there = files(new)
    assert sorted(there) == [*states, *others, "scratch/snapshots/ab12/.plugin"]
    assert there[states[1]] == STATE + b"\1" and there["plugins/linked.py"] == b"linked"
    for table in ("tasks", "versions", "events"):
        assert rows(Home(new), f"SELECT * FROM {table}") == rows(filled, f"SELECT * FROM {table}")
    assert not list(tmp_path.glob(".marlaas-*")) and new.stat().st_mode & 0o777 == 0o700


def test_what_is_pruned_and_written_meanwhile_does_not_tear_it(
    filled: Home, filling: Filling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine commits version 3 and prunes version 0 between the moment and the opening of the files, then prunes
    and strips what is held while it is copied."""
    renewed: list[int] = []

    class Busy(Held):
        def renew(self) -> list[str]:
            named = super().renew()
            if not renewed:
                renewed.append(1)
                version(filling, filled, 3)
                filling.execute("UPDATE versions SET state = 'pruned' WHERE number = 0")
                (filled.adapters / "task-1/policy-v0-i1.safetensors").unlink()
            return named

        def copy(self, target: Path) -> None:
            filling.execute("UPDATE versions SET state = 'pruned' WHERE number = 1")
            (filled.adapters / "task-1/policy-v1-i1.safetensors").unlink()
            filling.execute("UPDATE versions SET resumable = 0 WHERE number = 2")
            stripped = put(filled.adapters / "task-1/.stripped", b"stripped")
            stripped.replace(filled.adapters / "task-1/policy-v2-i1.safetensors")
            filling.execute("INSERT INTO events (level, kind, message, created) VALUES ('info', 'x', 'later', 1)")
            super().copy(target)

    monkeypatch.setattr(backup_module, "Held", Busy)
    made = back_up(filled, tmp_path / "kept.tar")
    assert made.missing == ()
    new = Home(tmp_path / "new")
    restore(tmp_path / "kept.tar", new)
    kept = rows(new, "SELECT number, state, resumable FROM versions ORDER BY number")
    assert kept == [(0, "pruned", 1), (1, "committed", 1), (2, "committed", 1), (3, "committed", 1)]
    for number in (1, 2, 3):
        path = new.adapters / f"task-1/policy-v{number}-i1.safetensors"
        assert path.read_bytes() == STATE + bytes([number])
    assert rows(new, "SELECT count(*) FROM events WHERE message = 'later'") == [(0,)]


def test_what_is_missing_in_the_home_is_told_of(filled: Home, marlaas: Commander, tmp_path: Path) -> None:
    (filled.adapters / "task-1/policy-v1-i1.safetensors").unlink()
    said = marlaas("home", "backup", str(tmp_path / "kept.tar"))
    assert said.code == 0 and "missing in the home: adapters/task-1/policy-v1-i1.safetensors" in said.err
    said = marlaas("--home", str(tmp_path / "new"), "home", "restore", str(tmp_path / "kept.tar"))
    assert said.code == 0 and "when the backup was made: 1 state file." in said.err


def test_adapters_on_a_disk_that_is_away_are_not_left_out(filled: Home, tmp_path: Path) -> None:
    filled.adapters.rename(tmp_path / "unmounted")
    with pytest.raises(BackupError, match="Is its disk mounted"):
        back_up(filled, tmp_path / "kept.tar")
    filled.adapters.mkdir()
    put(filled.adapters / "task-1", b"a file where a folder should be")
    with pytest.raises(BackupError, match="cannot be read: Not a directory"):
        back_up(filled, tmp_path / "kept.tar")
    assert not list(tmp_path.glob("*kept*")) and not list(tmp_path.glob(".marlaas-*"))


def test_places_that_will_not_do_are_refused(filled: Home, marlaas: Commander, tmp_path: Path) -> None:
    old = put(tmp_path / "old.tar", b"old")
    (tmp_path / "link").symlink_to(filled.plugins)
    for place, words in (
        (filled.root / "kept.tar", "lies in the home itself"),
        (tmp_path / "link" / "kept.tar", "lies in the home itself"),
        (old, "exists already"),
        (tmp_path, "is a folder"),
        (tmp_path / "nowhere" / "kept.tar", "There is no folder"),
    ):
        said = marlaas("home", "backup", str(place))
        assert said.code == 2 and words in said.err and said.err.startswith("marlaas: ")
    assert old.read_bytes() == b"old"
    assert marlaas("home", "backup", str(old), "--force").code == 0 and tarfile.is_tarfile(old)
    said = marlaas("--home", str(tmp_path / "other"), "home", "backup", str(tmp_path / "x.tar"))
    assert said.code == 2 and "No home at" in said.err and not (tmp_path / "other").exists()


def test_a_disk_that_is_too_small_is_told_of_before(
    filled: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(1000))
    with pytest.raises(BackupError, match=r"needs up to .* 1 kB are free"):
        back_up(filled, tmp_path / "kept.tar")
    assert not list(tmp_path.glob("*kept*")) and not list(tmp_path.glob(".marlaas-*"))


@pytest.mark.processes
def test_a_full_disk_leaves_nothing(filled: Home, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    put(filled.plugins / "large.bin", os.urandom(2_000_000))
    words = [sys.executable, "-m", "marlaas.app.cli.main", "--home", str(filled.root), "home", "backup", f"{out}/kept"]
    limit = (1_000_000, resource.RLIM_INFINITY)  # the kernel refuses what goes beyond, as on a full disk
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limit)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 1 and "\nmarlaas: " in said and "File too large" in said
    assert list(out.iterdir()) == []


@dataclass(frozen=True)
class Usage:
    free: int


@pytest.mark.processes
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_backup_leaves_what_was_there(filled: Home, tmp_path: Path, how: signal.Signals) -> None:
    out = tmp_path / "out"
    out.mkdir()
    old = put(out / "kept.tar", b"old")
    code = (
        "import sys; from marlaas.app.operations import backups as backup; real = backup._pack\n"
        "def slow(*paths):\n    found = real(*paths); print('half', flush=True); input(); return found\n"
        "backup._pack = slow\n"
        "from marlaas.app.cli.main import main; sys.exit(main())"
    )
    words = ["--home", str(filled.root), "home", "backup", str(old), "--force"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"half\n"
        process.send_signal(how)
        assert process.wait(50) == (130 if how == signal.SIGTERM else -signal.SIGKILL)
    assert old.read_bytes() == b"old"
    left = list(out.glob(".marlaas-backup-*"))
    assert len(left) == (1 if how == signal.SIGKILL else 0)
    back_up(filled, old, force=True)
    assert [path.name for path in out.iterdir()] == ["kept.tar"]


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
    files = {"marlaas.db": vars(Entry(len(data), sha(data)))}
    listed = json.dumps({"format": 1, "made": 1.0, "program": "0", "files": files, "missing": []}).encode()
    path = folder / "hostile.tar"
    with tarfile.open(path, "w") as tar:
        for name, content in (("marlaas.db.gz", gzip.compress(data, 1)), (CONTENTS, listed)):
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
