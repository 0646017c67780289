"""The table of the API's keys and the lines around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from textual.events import Resize

from marlaas.engine.store import ApiKeyRow, ApiRow, GivenName, TaskRow

from ..home.api.opening import Request
from ..lists.queue_lines import Cell, Column, Row
from ..rollouts.document import wrapped
from ..words.api import (
    CLOSED,
    GLYPHS,
    OPEN,
    api_state,
    last_use,
    may_text,
    requests_text,
    state_text,
    used_text,
    variables,
)
from ..words.format import ago, cells, clip_start, count, duration, line, pad, short_duration
from .engine_panes import Line, table
from .keyed_table import KeyedTable

# The lines around the table of keys: the state of the API; one key in detail, the names that its tenant may use, and
# what was asked with it.

_STYLES = {OPEN: "bold $text-success", CLOSED: "bold $text-muted"}
_HINTS = {OPEN: "", CLOSED: " o opens it."}
REQUESTS = 20
"""Latest requests of a key that are shown."""
_LABEL = 10
"""Cells of the labels' column."""


def head(row: ApiRow, keys: Sequence[ApiKeyRow], alive: bool, now: float, width: int) -> list[Line]:
    """The API in a line or more: its state, with what to do about it; then what its keys have used."""
    state = api_state(row, alive)
    style = _STYLES.get(state, "bold $text-error")
    hint = _HINTS.get(state, " o tries again.") if alive else " S starts one."
    text = f"{GLYPHS[state]} The API is {state_text(row, alive, now)}{hint}"
    lines: list[Line] = [((text[start:stop], style),) for start, stop in wrapped(text, width)]
    return [*lines, ((used_text(keys), ""),)] if keys else lines


def key_lines(key: ApiKeyRow | None, url: str, now: float, width: int) -> list[Line]:
    """All that is known of a key, and how a program uses it; nothing without one."""
    if key is None:
        return []
    facts = [
        ("key", f"{line(key.prefix, 80)}…  The rest was shown once, when it was made."),
        ("name", line(key.name, 100) or "-"),
        ("tenant", line(key.tenant, 100)),
        ("may", may_text(key.scopes)),
        ("made", ago(key.created, now)),
        ("last use", last_use(key, now)),
        (
            "answered",
            f"{requests_text(key.requests)}: {count(key.tokens_in)} tokens read, {count(key.tokens_out)} sampled",
        ),
    ]
    if key.revoked is not None:
        facts.append(("revoked", f"{ago(key.revoked, now)}: programs that show it are refused"))
    elif url:
        facts += zip(("use", "", "", ""), variables(line(url, 200)), strict=True)
    return [made for label, text in facts for made in _labelled(label, text, width)]


def name_lines(
    names: Sequence[GivenName], tasks: Mapping[int, TaskRow], key: ApiKeyRow | None, width: int
) -> list[Line]:
    """The names by which the key's tenant may ask for its versions, and how it makes more."""
    if key is None:
        return []
    widest = min(30, max((cells(line(each.name)) for each in names), default=0))
    lines: list[Line] = []
    for each in names:
        task = tasks.get(each.task)
        policy = f"/{line(each.policy, 30)}" if task and task.policies else ""
        told = f"  {each.task}{policy}@{each.number}  {line(task.name, 60) if task else ''}"
        gone = "" if each.kept else "  its file is gone"
        lines.append(((pad(line(each.name, 30), widest), "bold"), (told, ""), (gone, "$text-error")))
    more = "`marlaas adapters name` gives a version a name of its own; without one it is 17@best, 17/player@12, base."
    return [*lines, *(((more[start:stop], "$text-muted"),) for start, stop in wrapped(more, width))]


def request_lines(requests: Sequence[Request], now: float, width: int) -> list[Line]:
    """The latest requests of a key in columns, the newest first; nothing without any."""
    if not requests:
        return []
    shown = requests[:REQUESTS]
    rows = [
        (
            short_duration(now - each.when),
            line(each.route.removeprefix("/v1/").partition("/")[0], 20),
            line(each.model, 30) or "-",
            "answered" if each.status == 200 else f"{each.status} {line(each.error, 30)}",
            duration(each.seconds),
            f"{count(each.tokens[0])} → {count(each.tokens[1])}",
        )
        for each in shown
    ]
    return table(("ago", "interface", "model", "outcome", "took", "tokens"), rows, (-4, 11, 14, 21, -7, 20), width)


def _labelled(label: str, text: str, width: int) -> list[Line]:
    """A fact in lines of ``width`` cells; what follows the label stays beside it."""
    pieces = [text[start:stop] for start, stop in wrapped(text, max(1, width - _LABEL))]
    labels = (label, *[""] * len(pieces))
    return [((pad(name, _LABEL), "$text-muted"), (piece, "")) for name, piece in zip(labels, pieces, strict=False)]


# The table of keys: whose each is, what it may, and what it has used.

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
