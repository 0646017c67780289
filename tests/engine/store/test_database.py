"""Transactions that the disk refuses leave nothing open, and say why."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.errors import StoreError
from marlaas.engine.store.database import open_database, transaction


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


def test_a_rollback_by_the_database_itself_hides_no_reason(database: Path) -> None:
    db = open_database(database)
    with pytest.raises(ValueError, match="the reason"), transaction(db):
        db.execute("ROLLBACK")
        raise ValueError("the reason")
    db.close()


def test_a_refused_commit_is_rolled_back(database: Path) -> None:
    db = open_database(database)
    db.execute("CREATE TABLE other (id INTEGER REFERENCES tasks(id) DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(StoreError, match="FOREIGN KEY"), transaction(db):
        db.execute("INSERT INTO other VALUES (7)")
    assert not db.conn.in_transaction
    db.close()
