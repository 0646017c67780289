"""A backup holds one moment of a home whatever an engine does meanwhile; what is killed or refused leaves nothing."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from marlaas.app.operations import backups as backup_module
from marlaas.app.operations.backups import back_up, restore
from marlaas.engine.errors import BackupError
from marlaas.engine.home.paths import Home
from marlaas.engine.store.schema import Held

from ...commanding import Commander
from ...filling import Filling
from .kept_home import STATE, files, fill, put, rows, version


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


def test_whole_paths_are_restored_into_the_new_home(filled: Home, filling: Filling, tmp_path: Path) -> None:
    filling.execute("UPDATE versions SET path = ? || '/' || path", str(filled.root))
    back_up(filled, tmp_path / "kept.tar")
    new = Home(tmp_path / "new")
    restore(tmp_path / "kept.tar", new)
    paths = [str(path) for (path,) in rows(new, "SELECT path FROM versions ORDER BY number")]
    assert paths == [f"adapters/task-1/policy-v{number}-i1.safetensors" for number in range(3)]
    assert all((new.root / path).exists() for path in paths)


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

        def copy(self, target: Path, progress: Callable[[int, int], None]) -> None:
            filling.execute("UPDATE versions SET state = 'pruned' WHERE number = 1")
            (filled.adapters / "task-1/policy-v1-i1.safetensors").unlink()
            filling.execute("UPDATE versions SET resumable = 0 WHERE number = 2")
            stripped = put(filled.adapters / "task-1/.stripped", b"stripped")
            stripped.replace(filled.adapters / "task-1/policy-v2-i1.safetensors")
            filling.execute("INSERT INTO events (level, kind, message, created) VALUES ('info', 'x', 'later', 1)")
            super().copy(target, progress)

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
    assert process.returncode == 1 and said.startswith("marlaas: ") and "File too large" in said
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
