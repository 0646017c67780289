"""The database file: transactions, power cuts, locks of other programs, homes of earlier versions, and their base."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic

import psutil
import pytest

from marlaas.engine.errors import AdapterUnreachable, DatabaseLocked, StoreError
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import TaskSpec
from marlaas.engine.store.database import CHECKPOINT_PAGES, barrier, checkpoint, open_database, transaction
from marlaas.engine.store.queries import machine
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import BoundTask, Reason
from marlaas.engine.store.schema import FIRST, FOLDER, LATEST, is_current
from marlaas.engine.store.store import PATIENCE, Store
from marlaas.engine.store.submissions import command, submit
from marlaas.engine.store.versions import NewVersion

from ...old_homes import unpack
from ..by_hand import change, rows


def test_a_refused_transaction_leaves_the_next_one_free(database: Path) -> None:
    db = open_database(database)
    pages = next(db.query("PRAGMA page_count"))["page_count"]
    db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match=r"full.*Free some space"), transaction(db):
        db.execute("INSERT INTO events (level, kind, message, created) VALUES ('', '', hex(zeroblob(1000000)), 0)")
    db.execute("PRAGMA max_page_count = 100000")
    with transaction(db):
        db.execute("INSERT INTO events (level, kind, message, created) VALUES ('', '', '', 0)")
    assert not db.conn.in_transaction and db.table("events").count == 1
    db.close()


class Disk:
    """Keeps what ``fsync`` was called for, by file name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kept: dict[str, bytes] = {}
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._keep)

    def _keep(self, descriptor: int) -> None:
        self._fsync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        self.kept[path.name] = path.read_bytes() if path.is_file() else b""

    def after_the_cut(self, database: Path, folder: Path) -> Path:
        """The database as the machine finds it when it has power again."""
        folder.mkdir()
        shutil.copy(database, folder / "marlaas.db")
        for name, content in self.kept.items():
            if name == "marlaas.db-wal":
                (folder / name).write_bytes(content)
        return folder / "marlaas.db"


def test_a_barrier_holds_while_somebody_reads(
    store: Store, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.checkpoint()
    disk = Disk(monkeypatch)
    with closing(sqlite3.connect(database, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM tasks").fetchone()
        store.tasks.set_state(1, "failed", Reason(words="of before the barrier"))
        store.barrier()
        store.tasks.set_state(1, "failed", Reason(words="of after the barrier"))
        found = disk.after_the_cut(database, tmp_path / "after")
    assert tmp_path.name in disk.kept, "the log's entry in its folder, too"
    with Reader(found) as after:
        task = after.task(1)
    assert task is not None and task.reason == "of before the barrier"


def test_a_disk_that_refuses_is_named(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_database(database)

    def refuse(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StoreError, match=r"marlaas\.db-wal: cannot be brought to the disk: Input/output error\."):
        barrier(database)
    opened.close()


def test_checkpoints_keep_the_log_short(database: Path) -> None:
    opened = open_database(database)
    log = database.with_name("marlaas.db-wal")
    largest = 0
    for _ in range(20):
        opened.execute("INSERT INTO events (level, kind, message, created) VALUES ('', '', hex(zeroblob(100000)), 0)")
        checkpoint(database)
        largest = max(largest, log.stat().st_size)
    assert largest < 1_000_000 < CHECKPOINT_PAGES * 4096, "of 4 MB that were written"
    opened.close()


@contextmanager
def another_programs_lock(database: Path) -> Iterator[None]:
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        other.close()


def test_only_the_first_call_waits(store: Store, database: Path) -> None:
    store.serve()
    with another_programs_lock(database):
        began = monotonic()
        with pytest.raises(DatabaseLocked, match="Another program holds the database"):
            store.tasks.set_state(1, "running")
        first = monotonic() - began
        for _ in range(100):
            with pytest.raises(DatabaseLocked):
                store.tasks.set_state(1, "running")
        others = monotonic() - began - first
        assert store.locked and store.tasks.state(1) == "submitted", "it can be read"
    assert first >= PATIENCE * 0.8, "sqlite counts its sleeps, of which the last may be cut short"
    assert others < 100 * PATIENCE / 2, "a hundred that waited would take twice as long at least"
    assert not store.locked
    store.tasks.set_state(1, "running")
    assert store.tasks.state(1) == "running"


async def test_what_must_be_written_waits_beside_the_loop(store: Store, database: Path) -> None:
    store.serve()
    with another_programs_lock(database):
        writing = asyncio.ensure_future(store.patiently(lambda: store.versions.policy(1, "policy", {})))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not writing.done()
    assert await writing == 1


async def test_lines_of_the_log_are_held_back_in_their_order(store: Store, database: Path) -> None:
    store.serve()
    with another_programs_lock(database):
        for number in range(3):
            store.telemetry.event("kind", f"line {number}")
    store.telemetry.heartbeat(store.incarnation, "running")
    with Reader(database) as reader:
        assert [event.message for event in machine.newest_events(reader)] == ["line 0", "line 1", "line 2"]


UNRELEASED = "m021_of_its_own"


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
        assert (
            len(reader.steps(2)) == 3
            and reader.trajectories(2)
            and machine.newest_events(reader, machine.EventFilter(task=1))
        )
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


def test_a_home_of_an_older_unreleased_version_is_refused(tmp_path: Path) -> None:
    home = unpack(tmp_path / "home")
    change(home.database, "INSERT INTO _sqlite_migrations (migration_set, name) VALUES ('marlaas', ?)", UNRELEASED)
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


def named(database: Path) -> list[str]:
    return [row["path"] for row in rows(database, "SELECT path FROM versions ORDER BY id")]


def test_a_name_is_stored_and_the_path_on_this_machine_is_told(store: Store, database: Path, policy: int) -> None:
    path = database.parent / "adapters" / "task-1" / "v0.safetensors"
    committed = store.versions.commit_first(policy, NewVersion(0, "task-1/v0", "sum", str(path), 9))
    assert named(database) == ["adapters/task-1/v0.safetensors"]
    assert store.versions.candidates(policy) == [committed] and committed.path == str(path)
    with Reader(database) as reader:
        assert [row.path for row in reader.versions()] == [str(path)]


@pytest.mark.parametrize("name", ["/etc/passwd", "../other/adapters/task-1/v0.safetensors", "adapters/../../v0"])
def test_a_name_that_leads_out_of_the_home_is_refused(store: Store, database: Path, policy: int, name: str) -> None:
    store.versions.commit_first(policy, NewVersion(0, "task-1/v0", "sum", "adapters/task-1/v0", 9))
    change(database, "UPDATE versions SET path = ?", name)
    for read in (store.versions.candidates, store.versions.first):
        with pytest.raises(AdapterUnreachable, match=r"does not lie in the home .* move the whole home"):
            read(policy)
    with pytest.raises(AdapterUnreachable, match="does not lie in the home"):
        store.versions.commit_step(policy, NewVersion(1, "task-1/v1", "sum", name, 9), [], 0, {})


def test_a_link_that_leads_out_of_the_home_is_refused(
    store: Store, database: Path, policy: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (database.parent / "adapters").symlink_to(tmp_path_factory.mktemp("disk"))
    with pytest.raises(AdapterUnreachable, match=r"leads out of the home, to .*disk"):
        store.versions.commit_first(policy, NewVersion(0, "task-1/v0", "sum", "adapters/task-1/v0", 9))


def bound(database: Path) -> list[BoundTask]:
    with Reader(database) as reader:
        return reader.bound_tasks()


def test_tasks_from_before_get_the_base_that_is_served_first(database: Path) -> None:
    open_database(database).close()
    submit(database, [submission(TaskSpec("lab", "old", "arithmetic"))])
    assert [task.base for task in bound(database)] == [""]
    for fingerprint in ("aaaa", "bbbb"):
        store = Store(database, f"base {fingerprint}", fingerprint)
        store.tasks.adopt(fingerprint)
        store.close()
    (task,) = bound(database)
    assert (task.base, task.base_name, task.versions) == ("aaaa", "base aaaa", 0)


def test_only_the_unfinished_and_those_with_adapters_count(store: Store, database: Path, policy: int) -> None:
    store.tasks.set_state(1, "done")
    assert bound(database) == []
    version = store.versions.commit_first(policy, NewVersion(0, "task-1/v0", "sum", "adapters/task-1/v0", 70))
    (task,) = bound(database)
    assert (task.id, task.state, task.versions, task.size) == (1, "done", 1, 70)
    assert store.versions.on_disk(1) == [version] and store.versions.on_disk(2) == []
    store.versions.prune(version.id)
    assert bound(database) == [] and store.versions.on_disk(1) == []
    store.tasks.set_state(1, "paused")
    assert [task.state for task in bound(database)] == ["paused"]
