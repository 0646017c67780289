"""Who may make or change a home's database: one at a time, under the engine's lock, beside no older engine."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from marlaas.app.reading import reading
from marlaas.engine.daemon import control
from marlaas.engine.daemon.lock import PREPARES, EngineLock, holder
from marlaas.engine.errors import HomeLocked, StoreError
from marlaas.engine.home.paths import Home, version
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.schema import is_current
from marlaas.engine.store.store import Store

from ...old_homes import unpack
from ..by_hand import change

MAKE = """
import sys
from pathlib import Path
from marlaas.engine.daemon.control import create_database
from marlaas.engine.home.paths import Home
from marlaas.engine.store.submissions import command
sys.stdin.readline()
home = Home(Path(sys.argv[1]))
create_database(home)
command(home.database, "reload", plugin="any")
"""


@pytest.mark.processes
def test_several_programs_at_once_make_one_home(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    code = [sys.executable, "-P", "-c", MAKE, str(home.root)]
    pipe = subprocess.PIPE
    programs = [subprocess.Popen(code, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(4)]
    for program in programs:
        assert program.stdin is not None
        program.stdin.write("go\n")
        program.stdin.flush()
    said = [program.communicate()[1] for program in programs]
    assert [program.returncode for program in programs] == [0] * 4, said
    with Reader(home.database) as reader:
        assert reader.all("SELECT count(*) FROM commands")[0][0] == 4
    assert holder(home.lock) is None


def test_without_an_engine_a_reader_updates_the_home(tmp_path: Path) -> None:
    home = unpack(tmp_path / "home")
    with reading(home) as reader:
        assert reader is not None and len(reader.tasks()) == 3
    assert is_current(home.database) and holder(home.lock) is None


def test_nothing_is_changed_beside_an_older_engine(tmp_path: Path) -> None:
    home = unpack(tmp_path / "home")
    with closing(sqlite3.connect(home.database)) as database, database:
        database.execute("UPDATE engines SET pid = ?, state = 'running'", [os.getpid()])
    lock = EngineLock(home.lock)
    lock.acquire()
    with pytest.raises(StoreError, match=r"is of an older marlaas .* Restart it: `marlaas engine drain`"):
        control.create_database(home)
    assert not is_current(home.database) and not (home.root / "backups").exists()
    lock.release()
    control.create_database(home)
    assert is_current(home.database)


def test_an_engine_waits_for_who_prepares_the_database(tmp_path: Path) -> None:
    path = tmp_path / "engine.lock"
    preparing, engine = EngineLock(path), EngineLock(path)
    preparing.acquire(prepares=True)
    assert path.read_text() == f"{os.getpid()}{PREPARES}\n" and holder(path) is None
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 50:
            preparing.release()

    engine.acquire(pause)
    assert len(pauses) == 50 and holder(path) == os.getpid()
    with pytest.raises(HomeLocked):
        preparing.acquire(lambda _: None, prepares=True)
    engine.release()


def test_an_engine_of_another_version_is_named(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    store = Store(home.database, "tiny")
    with Reader(home.database) as reader:
        engine = reader.engine()
        assert engine is not None and engine.version == version() and control.other_version(engine) == ""
        change(home.database, "UPDATE engines SET version = '0.0.9'")
        words = f"The engine is marlaas 0.0.9, and this is marlaas {version()}: restart it"
        assert control.other_version(reader.engine()).startswith(words)
    store.close()
