"""Tables of the cluster: its nodes as last seen, and those that a person drains. Engine side.

A drain outlives the engine that was asked for it, and goes by the node's name, so that it outlives Ray as well.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict

from sqlite_utils import Database

from .database import insert_all, transaction
from .queries.nodes import NodeRow


class NodeTable:
    """Holds what was last seen of the nodes, and which of them are drained."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._written: Sequence[NodeRow] | None = None

    def replace(self, rows: Sequence[NodeRow]) -> None:
        """Write the nodes in place of those before, if they differ."""
        if rows == self._written:
            return
        with transaction(self._db):
            self._db.execute("DELETE FROM nodes")
            insert_all(self._db, "nodes", (_columns(row) for row in rows))
        self._written = tuple(rows)

    def drained(self) -> frozenset[str]:
        """Names of the nodes that get nothing new; some may be in no cluster at the moment."""
        return frozenset(row[0] for row in self._db.conn.execute("SELECT node FROM drains"))

    def drain(self, node: str) -> None:
        """Give a node of this name nothing new from now on."""
        with transaction(self._db):
            insert_all(self._db, "drains", [{"node": node, "since": time.time()}], replace=True)

    def undrain(self, node: str) -> None:
        """Take a drain back."""
        self._db.execute("DELETE FROM drains WHERE node = ?", [node])


def _columns(row: NodeRow) -> dict[str, object]:
    return {name: json.dumps(value) if isinstance(value, tuple) else value for name, value in asdict(row).items()}
