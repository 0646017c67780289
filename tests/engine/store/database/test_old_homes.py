"""A database of an earlier version is opened with all that is in it, and kept as it was; a newer one is left alone."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from marlaas.engine.errors import StoreError
from marlaas.engine.store.database import copies, open_database
from marlaas.engine.store.database.copies import keep_copy
from marlaas.engine.store.database.migrations import KNOWN_MIGRATIONS
from marlaas.engine.store.database.schema import LATEST, is_current
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.submissions import command

from ....old_homes import unpack


def test_the_first_release_is_read_whole(tmp_path: Path) -> None:
    home = unpack(tmp_path / "home")
    assert not is_current(home.database)
    open_database(home.database).close()
    assert is_current(home.database)
    with Reader(home.database) as reader:
        tasks = {task.name: (task.tenant, task.state, task.step, task.steps) for task in reader.tasks()}
        labels = {version.number: version.label for version in reader.versions(1) if version.state == "committed"}
        assert [evaluation.step for evaluation in reader.evals(1)] == [0, 1, 2, 3, 4, 5]
        assert len(reader.steps(2)) == 3 and reader.trajectories(2) and reader.events(1)
        assert [needed.name for needed in reader.needs(3)] == ["paused"]
    assert tasks == {
        "finished": ("ada", "done", 5, 5),
        "paused": ("bob", "paused", 3, 8),
        "queued": ("bob", "queued", 0, 3),
    }
    assert labels == {1: "best", 4: "", 5: "last"}


def test_a_copy_is_made_before_anything_is_changed(tmp_path: Path) -> None:
    home = unpack(tmp_path / "home")
    open_database(home.database).close()
    open_database(home.database).close()  # current by now: nothing is changed, nothing is copied
    (copy,) = (home.root / copies.FOLDER).iterdir()
    assert copy.name.startswith("m020_casts-") and copy.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(copy)) as kept:
        names = [name for (name,) in kept.execute("SELECT name FROM _sqlite_migrations ORDER BY name")]
        assert names[-1] == "m020_casts"
        assert kept.execute("SELECT count(*) FROM tasks").fetchone() == (3,)


def test_a_new_database_leaves_no_copy(database: Path) -> None:
    open_database(database).close()
    assert not (database.parent / copies.FOLDER).exists()


def test_the_newest_copies_stay(database: Path) -> None:
    opened = open_database(database)
    made = []
    for number in range(copies.KEPT + 2):
        made.append(keep_copy(opened.conn, database, f"m{number:03}_name"))
        os.utime(made[-1], (number, number))
    keep_copy(opened.conn, database, "m999_name")
    left = sorted(file.name[:4] for file in (database.parent / copies.FOLDER).iterdir())
    assert left == ["m003", "m004", "m999"]
    opened.close()


def test_without_a_copy_nothing_is_changed(tmp_path: Path) -> None:
    home = unpack(tmp_path / "home")
    (home.root / copies.FOLDER).write_text("in the way")
    with pytest.raises(StoreError, match=r"of an older marlaas, and no copy .* Nothing was changed"):
        open_database(home.database)
    assert not is_current(home.database)


def test_a_newer_database_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """Also where a migration of this program is missing in it."""
    home = unpack(tmp_path / "home")
    with closing(sqlite3.connect(home.database, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
        database.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('marlaas', 'm999_future', '')"
        )
    before = home.database.read_bytes()
    with pytest.raises(StoreError, match="newer marlaas"):
        open_database(home.database)
    with pytest.raises(StoreError, match="newer marlaas"):
        command(home.database, "stop")
    with pytest.raises(StoreError, match="newer marlaas"):
        Reader(home.database)
    assert home.database.read_bytes() == before and not (home.root / copies.FOLDER).exists()


def test_the_last_migration_is_the_one_that_is_looked_for() -> None:
    assert max(KNOWN_MIGRATIONS) == LATEST
