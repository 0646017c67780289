"""What a barrier has brought to the disk survives a power cut, whoever reads meanwhile.

The disk of a machine that lost its power is put together from what was waited for: the database as it was, and the
write-ahead log as it stood at the last ``fsync``.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from marlaas.engine.errors import StoreError
from marlaas.engine.store.database import CHECKPOINT_PAGES, barrier, checkpoint, open_database
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import Reason
from marlaas.engine.store.store import Store


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
