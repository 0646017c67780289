"""What keys use is written in batches, and again where it could not be."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from marlaas.engine.errors import StoreError
from marlaas.engine.gateway.link import Desk
from marlaas.engine.store.store import Store
from marlaas.engine.store.tasks import KeyUse


def test_what_cannot_be_written_waits() -> None:
    written: list[KeyUse] = []

    def write(uses: Iterable[KeyUse]) -> None:
        if full:
            raise StoreError("The disk is full.")
        written.extend(uses)

    full, desk = True, Desk(lambda digest: None, write, lambda *line: None, lambda: 7.0)
    desk.count(1, 10, 20)
    with pytest.raises(StoreError):
        desk.flush()
    full = False
    desk.count(1, 0, 0)
    desk.flush()
    assert written == [KeyUse(1, 2, 10, 20, 7.0)]


def test_the_store_adds_them_up(store: Store, key: str) -> None:
    for last in (5.0, 3.0):
        store.api.add_use([KeyUse(1, 1, 10, 20, last), KeyUse(99, 1, 1, 1, 1.0)])
    (digest,) = next(iter(store.api._db.conn.execute("SELECT hash FROM api_keys")))
    row = store.api.key(digest)
    assert row is not None and (row.requests, row.tokens_in, row.tokens_out, row.last_use) == (2, 20, 40, 5.0)
