"""The table of keys: whose each is, what it may, and what it has used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual.events import Resize

from marlaas.engine.store import ApiKeyRow

from ...lists.table_rows import Cell, Column, Row
from ...words.format import clip_start, count, line, short_duration
from ..keyed_table import KeyedTable

USED = (
    Column("last use", 8, right=True),
    Column("requests", 8, right=True),
    Column("read", 6, right=True),
    Column("sampled", 7, right=True),
)
NARROW = (Column("state", 9), Column("key", 11), Column("tenant", 9), Column("name", 8), *USED)
NORMAL = (Column("state", 9), Column("key", 24), Column("tenant", 14), Column("name", 16), Column("scopes", 10), *USED)
WIDE = (Column("state", 9), Column("key", 36), Column("tenant", 30), Column("name", 36), Column("scopes", 16), *USED)
FEW = NARROW[:4]
"""For terminals that are narrower than any."""


class KeysTable(KeyedTable):
    """A row for each key, by its number."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._shown: tuple[Sequence[ApiKeyRow], float] = (), 0.0

    def on_resize(self, event: Resize) -> None:
        """Fit the columns to the new width."""
        self.call_after_refresh(lambda: self.show(*self._shown))

    def show(self, keys: Sequence[ApiKeyRow], now: float) -> None:
        """Show these keys."""
        self._shown = keys, now
        room = (self.size.width or self.app.size.width) - self.gutter.width - self.styles.scrollbar_size_vertical
        columns = columns_within(room)
        self.show_rows(columns, [_row(columns, key, now) for key in keys])


def columns_within(room: int) -> tuple[Column, ...]:
    """The most columns that fit into a width."""
    fitting = (columns for columns in (WIDE, NORMAL, NARROW) if sum(each.width + 1 for each in columns) <= room)
    return next(fitting, FEW)


def _row(columns: Sequence[Column], key: ApiKeyRow, now: float) -> Row:
    revoked = key.revoked is not None
    widths = {column.name: column.width for column in columns}
    texts = {
        "state": "⊘ revoked" if revoked else "● valid",
        "key": clip_start(line(key.prefix), widths["key"]),  # its end is what tells it from the tenant's others
        "tenant": line(key.tenant, 30),
        "name": line(key.name, 36),
        "scopes": line(" ".join(key.scopes), 16),
        "last use": "never" if key.last_use is None else short_duration(now - key.last_use),
        "requests": count(key.requests),
        "read": count(key.tokens_in),
        "sampled": count(key.tokens_out),
    }
    own = "$text-muted" if revoked else ""
    styles = {} if revoked else {"state": "$text-success"}
    return Row(str(key.id), tuple(Cell(texts[column.name], styles.get(column.name, own)) for column in columns))
