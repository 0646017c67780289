"""A database of an earlier version is opened with all that is in it, and kept as it was; a newer one is left alone."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from marlaas.engine.errors import StoreError
from marlaas.engine.store.database import open_database
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.schema import FIRST, FOLDER, LATEST, is_current
from marlaas.engine.store.submissions import command

from ...old_homes import unpack
from ..by_hand import change, rows

UNRELEASED = [f"m{number:03}_of_its_own" for number in range(21, 45)]


def tables(database: Path) -> dict[str, object]:
    """Columns and indexes of all tables, and the names of the triggers."""
    found: dict[str, object] = {"triggers": rows(database, "SELECT name FROM sqlite_master WHERE type = 'trigger'")}
    for row in rows(database, "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '%migrations'"):
        columns = 'SELECT name, type, "notnull", pk FROM pragma_table_info(?)'
        indexes = 'SELECT name, "unique", partial FROM pragma_index_list(?) ORDER BY name'
        found[row["name"]] = [rows(database, columns, row["name"]), rows(database, indexes, row["name"])]
    return found


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
    counted = rows(home.database, "SELECT sum(groups) AS groups, sum(failures) AS failures FROM played")
    assert counted == rows(
        home.database,
        "SELECT (SELECT count(*) FROM groups) AS groups,"
        " (SELECT count(*) FROM trajectories WHERE status != 'ok' AND speaker = '') AS failures",
    )
    total = "(SELECT total(value) FROM metrics WHERE policy = policies.id AND name = '{0}') AS {0}"
    summed = rows(home.database, "SELECT id, tokens, lost, errors FROM policies")
    wanted = ", ".join(total.format(name) for name in ("tokens", "lost", "errors"))
    assert summed == rows(home.database, f"SELECT id, {wanted} FROM policies") and summed[0]["tokens"] > 0


def test_an_upgraded_home_has_the_tables_of_a_new_one(tmp_path: Path) -> None:
    home = unpack(tmp_path / "home")
    open_database(home.database).close()
    open_database(tmp_path / "new.db").close()
    assert tables(home.database) == tables(tmp_path / "new.db")


def test_a_home_of_the_newest_unreleased_version_opens_as_it_is(database: Path) -> None:
    open_database(database).close()
    for name in UNRELEASED:
        change(database, "INSERT INTO _sqlite_migrations (migration_set, name) VALUES ('marlaas', ?)", name)
    assert is_current(database)
    open_database(database).close()
    assert not (database.parent / FOLDER).exists()


def test_a_home_of_an_older_unreleased_version_is_refused(tmp_path: Path) -> None:
    home = unpack(tmp_path / "home")
    change(home.database, "INSERT INTO _sqlite_migrations (migration_set, name) VALUES ('marlaas', ?)", UNRELEASED[0])
    assert not is_current(home.database)
    with pytest.raises(StoreError, match=r"unreleased marlaas before 0\.2\.0"):
        open_database(home.database)


def test_a_copy_is_made_before_anything_is_changed(tmp_path: Path) -> None:
    home = unpack(tmp_path / "home")
    open_database(home.database).close()
    open_database(home.database).close()  # current by now: nothing is changed, nothing is copied
    (copy,) = (home.root / FOLDER).iterdir()
    assert copy.name.startswith(f"{FIRST}-") and copy.stat().st_mode & 0o777 == 0o600
    assert max(row["name"] for row in rows(copy, "SELECT name FROM _sqlite_migrations")) == FIRST < LATEST
    assert len(rows(copy, "SELECT id FROM tasks")) == 3


def test_without_a_copy_nothing_is_changed(tmp_path: Path) -> None:
    home = unpack(tmp_path / "home")
    (home.root / FOLDER).write_text("in the way")
    with pytest.raises(StoreError, match=r"of an older marlaas, and no copy .* Nothing was changed"):
        open_database(home.database)
    assert not is_current(home.database)


def test_a_newer_database_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    home = unpack(tmp_path / "home")
    with closing(sqlite3.connect(home.database, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
        database.execute("INSERT INTO _sqlite_migrations (migration_set, name) VALUES ('marlaas', 'm999_future')")
    before = home.database.read_bytes()
    with pytest.raises(StoreError, match="newer marlaas"):
        open_database(home.database)
    with pytest.raises(StoreError, match="newer marlaas"):
        command(home.database, "stop")
    with pytest.raises(StoreError, match="newer marlaas") as caught:
        Reader(home.database)
    assert caught.tb and str(home.database) not in [file.path for file in psutil.Process().open_files()]
    assert home.database.read_bytes() == before and not (home.root / FOLDER).exists()


def test_what_is_no_database_is_not_current(database: Path) -> None:
    assert not is_current(database)
    database.write_bytes(b"no database" * 1000)
    assert not is_current(database)
