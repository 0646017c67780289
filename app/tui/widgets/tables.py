"""Lists of any length under a cursor: tables with columns, and rows read on demand in a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual
from textual.widget import Widget

from marlaas.engine.errors import MarlaasError
from marlaas.engine.store.queries.reader import Reader

from ...lists.filters import Listing, Row as AnyRow
from ...lists.lines import Column, Row, filling, title
from ...operations.environments.source_lines import Excerpt
from ...text.format import clip, line, plain
from ..context.feed import Latest

Page = tuple[Listing[Any], Sequence[Any], int]
"""A listing, the keys of a page, and the generation of the list."""
OpenReader = Callable[[], Reader]
"""Opens a connection for one page; raises ``StoreError``."""
CURSOR, MARK = "▸", "•"
GUTTER = 2
"""Cells before rows without columns, for cursor and mark."""
PAGE = 64
KEPT = 32 * PAGE
"""Rows kept in memory next to the marked ones: more than any screen shows."""


def moves(name: str) -> list[BindingType]:
    """The keys of a cursor; their configurable names begin with ``name``."""
    return [
        Binding("down,j", "move(1)", "down", show=False, id=f"{name}.down"),
        Binding("up,k", "move(-1)", "up", show=False, id=f"{name}.up"),
        Binding("pagedown,ctrl+f", "page(1)", "page down", show=False, id=f"{name}.page_down"),
        Binding("pageup,ctrl+b", "page(-1)", "page up", show=False, id=f"{name}.page_up"),
        Binding("home,g", "move(-1_000_000_000)", "first", show=False, id=f"{name}.first"),
        Binding("end,G", "move(1_000_000_000)", "last", show=False, id=f"{name}.last"),
    ]


MARKS = Binding("space", "mark", "mark", show=False, id="list.mark")


class VirtualList(ScrollView, Generic[AnyRow], can_focus=True):
    """Rows under a cursor. Marks and cursor belong to keys, so stay with their rows.

    Reads one page at a time, with its own connection; skips pages scrolled past.
    """

    @dataclass
    class Said(Message):
        """Base of its messages."""

        list: VirtualList[Any]
        id: Any

    class Moved(Said):
        """The cursor is on another row."""

    class Opened(Said):
        """The person opens a row."""

    class Arrived(Said):
        """The row under the cursor has been read."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", id="list.open"),
        *moves("list"),
        MARKS,
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {"list--cursor", "list--waiting", "list--head"}
    DEFAULT_CSS = """
    VirtualList { height: 1fr; overflow-x: hidden; scrollbar-gutter: stable; }
    VirtualList > .list--cursor { background: $surface-lighten-1; }
    VirtualList:focus > .list--cursor { background: $primary-muted; text-style: bold; }
    VirtualList > .list--waiting { color: $text-disabled; }
    VirtualList > .list--head { background: $panel; text-style: bold; }
    """
    GUTTER = GUTTER
    ONE_CLICK = False
    """True: a click on the current row opens it."""

    cursor: reactive[int] = reactive(0, repaint=False)

    def __init__(self, open_reader: OpenReader | None = None, *, follow: str = "", **options: Any) -> None:
        """``follow``: "first" or "last", the end of new rows: a cursor there stays there."""
        super().__init__(**options)
        self.marks: set[Any] = set()
        self.listing: Listing[AnyRow] = Listing(())
        self.problem = ""
        """Why the last page could not be read; the next listing, or a move of the cursor, tries again."""
        self.head: Content | None = None
        """A line above the rows that does not scroll."""
        self.line_places: Sequence[tuple[int, bool]] | None = None
        """Place of the row of each line, and whether it is the row's second one; None: every row has one line."""
        self._follow = follow
        self._open_reader = open_reader
        self._reads = Latest(self, self._read, self._came)
        self._reading = False
        self._rows: dict[Any, tuple[object, AnyRow | None]] = {}
        """Rows that were read, each with the stamp of its listing; None: it is gone. Those looked at last come last."""
        self._generation = 0
        """Pages of an earlier generation are dropped."""

    def row_text(self, row: AnyRow, width: int, below: bool = False) -> Content:
        """A row as one line of ``width`` cells, or its line below; foreign text must be cleaned."""
        raise NotImplementedError

    @property
    def count(self) -> int:
        return len(self.listing.ids)

    @property
    def current(self) -> Any:
        return self.listing.ids[self.cursor] if self.cursor < self.count else None

    @property
    def current_row(self) -> AnyRow | None:
        return self.row_at(self.cursor)

    def row_at(self, place: int) -> AnyRow | None:
        if not 0 <= place < self.count:
            return None
        key, rows = self.listing.ids[place], self.listing.at_hand
        return self._rows.get(key, (0, None))[1] if rows is None else rows.get(key)

    def rows(self) -> list[AnyRow]:
        """The rows read; of a short list all."""
        return [row for place in range(self.count) if (row := self.row_at(place)) is not None]

    @property
    def chosen(self) -> list[Any]:
        """Rows for an action: the marked ones in order, else the current one."""
        marked = [key for key in self.listing.ids if key in self.marks] if self.marks else []
        return marked or ([] if self.current is None else [self.current])

    def show(self, listing: Listing[AnyRow], *, anew: bool = False) -> None:
        """Show a listing. The cursor stays on its row; ``anew``: a different listing, from the top."""
        current, place, count = self.current, self.cursor, self.count
        if anew:
            self._rows.clear()
            self._generation += 1
            self.marks.clear()
        self.listing = listing
        if self.marks:
            self.marks.intersection_update(listing.ids)
        self.virtual_size = Size(
            0, (self.count if self.line_places is None else len(self.line_places)) + bool(self.head)
        )
        if bool(count) is not bool(self.count):
            self.refresh_bindings()  # the key that opens a row comes or goes
        fresh = anew or current is None
        if fresh or place == {"first": 0, "last": count - 1}.get(self._follow):
            edge = self.count - 1 if self._follow == "last" else 0
            self._place(edge, moved=fresh or not self.count or listing.ids[edge] != current)
        else:
            found = _index(listing, current, place)
            if found != place:
                self._place(place if found is None else found, moved=found is None)
        self.refresh()
        self.read_on()

    def go(self, key: Any) -> bool:
        """Move the cursor to a key; False: not in the list."""
        place = _index(self.listing, key, self.cursor)
        if place is not None:
            self._place(place, moved=place != self.cursor)
        return place is not None

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        if self.head and not y:
            return self._strip(self.head, width, "list--head")
        place, below = self._line(self.scroll_offset.y + y - bool(self.head))
        if not 0 <= place < self.count:
            return Strip.blank(width, self.rich_style)
        key, row, at_cursor = self.listing.ids[place], self.row_at(place), place == self.cursor
        if key in self._rows:
            self._rows[key] = self._rows.pop(key)  # the last to be dropped
        marked = MARK if key in self.marks else " "
        signs = f"{CURSOR if at_cursor else ' '}{marked}"[: self.GUTTER]
        gutter = Content.styled(signs, "$text-primary" if self.has_focus else "")
        classes = ("list--cursor",) if at_cursor else ()
        if row is not None:
            return self._strip(gutter + self.row_text(row, max(0, width - self.GUTTER), below), width, *classes)
        waiting = "gone" if key in self._rows else line(self.problem, width) or "…"
        return self._strip(gutter + Content(waiting), width, *(classes or ("list--waiting",)))

    def _line(self, at: int) -> tuple[int, bool]:
        if self.line_places is None:
            return at, False
        return self.line_places[at] if 0 <= at < len(self.line_places) else (-1, False)

    def _strip(self, content: Content, width: int, *classes: str) -> Strip:
        style = self.get_visual_style(*classes)
        (strip,) = Visual.to_strips(self, content.truncate(width), width, 1, style, pad=True) or [Strip.blank(width)]
        return strip

    def read_on(self) -> None:
        """One page at a time."""
        if self.is_mounted and not self._reading and self.listing.at_hand is None and (ids := self._wanted()):
            self._reading = True
            self._reads.ask((self.listing, ids, self._generation))

    def _wanted(self) -> Sequence[Any]:
        """Page keys of the first unread row in sight, then of the cursor's."""
        ids, first = self.listing.ids, self.scroll_offset.y
        for place in (
            *range(first, min(first + max(1, self.size.height), self.count)),
            *range(self.cursor, self.count)[:1],
        ):
            if self._is_wanted(ids[place]):
                start = place // PAGE * PAGE
                return [key for key in ids[start : start + PAGE] if self._is_wanted(key)]
        return ()

    def _is_wanted(self, key: Any) -> bool:
        return key not in self._rows or self._rows[key][0] != self.listing.stamp

    def _read(self, page: Page) -> tuple[Page, Mapping[Any, AnyRow], str]:
        listing, ids, _ = page
        try:
            assert self._open_reader is not None
            with self._open_reader() as reader:
                return page, listing.read(reader, ids), ""
        except MarlaasError as error:
            return page, {}, str(error)
        except Exception as error:  # of an invalid row; unreported, the view would wait for this page for ever
            return page, {}, f"These rows cannot be read: {type(error).__name__}: {error}"

    def _came(self, answer: tuple[Page, Mapping[Any, AnyRow], str]) -> None:
        (listing, ids, generation), rows, self.problem = answer
        self._reading = False
        if not self.problem:
            if generation == self._generation:
                for key in ids:
                    self._rows.pop(key, None)
                    self._rows[key] = (listing.stamp, rows.get(key))
                for key in [key for key in self._rows if key not in self.marks][:-KEPT]:
                    del self._rows[key]
            self.read_on()
        self.rows_came([row for key in ids if (row := rows.get(key)) is not None])
        self.refresh()
        if self.current in ids and self.current is not None:
            self.post_message(self.Arrived(self, self.current))

    def rows_came(self, rows: Sequence[AnyRow]) -> None:
        """Rows have been read."""

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.vertical_scrollbar.position = new_value  # set before the bar is shown, or Textual leaves it at the top
        self.read_on()

    def on_resize(self) -> None:
        self._place(self.cursor)

    def _place(self, place: int, moved: bool = False) -> None:
        self.cursor = max(0, min(place, self.count - 1))
        height, top = self.scrollable_content_region.height - bool(self.head), self.scroll_offset.y
        first, last = self._lines_of(self.cursor)
        if height > 0 and not top <= first <= last < top + height:
            target = first if first < top or last - first >= height else last - height + 1
            self.scroll_to(y=target, animate=False, immediate=True, force=True)
        self.refresh()
        self.read_on()
        if moved and self.current is not None:
            self.post_message(self.Moved(self, self.current))

    def _lines_of(self, place: int) -> tuple[int, int]:
        if self.line_places is None:
            return place, place
        found = [at for at, (row, _) in enumerate(self.line_places) if row == place] or [0]
        return found[0], found[-1]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "open" or bool(self.count)

    def action_move(self, by: int) -> None:
        place = max(0, min(self.cursor + by, self.count - 1))
        if place != self.cursor:
            self._place(place, moved=True)

    def action_page(self, by: int) -> None:
        self.action_move(by * max(1, self.size.height - 1))

    def action_mark(self) -> None:
        if self.current is not None:
            self.marks.symmetric_difference_update({self.current})
            self.action_move(1)
            self.refresh()

    def action_open(self) -> None:
        if self.current is not None:
            self.post_message(self.Opened(self, self.current))

    def on_click(self, event: Click) -> None:
        """Move to the clicked row; the second click opens it, in a table also the first on the current row."""
        if (offset := event.get_content_offset(self)) is None:
            return
        if self.head and not offset.y:
            self.head_clicked(offset.x)
            return
        place, _ = self._line(self.scroll_offset.y + offset.y - bool(self.head))
        if 0 <= place < self.count:
            opens = event.chain == 2 or (self.ONE_CLICK and place == self.cursor)
            self._place(place, moved=place != self.cursor)
            if opens:
                self.action_open()

    def head_clicked(self, x: int) -> None:
        """The line above the rows was clicked."""


def _index(listing: Listing[Any], key: Any, near: int) -> int | None:
    ids = listing.ids
    if 0 <= near < len(ids) and ids[near] == key:
        return near
    try:
        return ids.index(key)
    except ValueError:
        return None


class KeyedTable(VirtualList[Row], inherit_bindings=False):
    """A table with all rows in memory. A row may have a second line over all columns."""

    @dataclass
    class SortChosen(Message):
        """A column's head was clicked."""

        field: str

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "open", "open", id="table.open"), *moves("table")]
    DEFAULT_CSS = """
    KeyedTable { padding: 0 1; scrollbar-gutter: auto; }
    KeyedTable:nocolor > .list--cursor { text-style: reverse; }
    """
    GUTTER = 0
    ONE_CLICK = True
    columns: tuple[Column, ...] = ()

    @property
    def key(self) -> str | None:
        return self.current_row.key if self.current_row else None

    @property
    def lines_needed(self) -> int:
        return len(self.line_places or ()) + 1

    def show_rows(
        self,
        columns: tuple[Column, ...],
        rows: Sequence[Row],
        sort: str = "",
        backwards: bool = False,
    ) -> None:
        """Show these rows; the cursor stays on its key while it exists."""
        self.columns = columns
        arrow = {sort: "▲" if backwards else "▼"} if sort else {}
        self.head = Content(" " * self.GUTTER + "".join(title(each, arrow.get(each.sort, "")) for each in columns))
        self.line_places = [
            (place, below) for place, row in enumerate(rows) for below in (False, True)[: 1 + bool(row.below)]
        ]
        self.show(Listing.of({row.key: row for row in rows}))

    def row_text(self, row: Row, width: int, below: bool = False) -> Content:
        if below and row.below is not None:
            return Content.styled(clip(row.below.text, width), row.below.style)
        cells = zip(self.columns, row.cells, strict=True)
        return Content.assemble(*((filling(column, cell.text), cell.style) for column, cell in cells))

    def head_clicked(self, x: int) -> None:
        for column in self.columns:
            if 0 <= x <= column.width and column.sort:
                self.post_message(self.SortChosen(column.sort))
            x -= column.width + 1


_OPENS = "E opens it here"


class SourceExcerpt(Widget):
    """The environment's lines around the wrong one: why a task is blocked."""

    DEFAULT_CSS = """
    SourceExcerpt { padding: 0 1; }
    """

    excerpt: reactive[Excerpt | None] = reactive(None)

    def render(self) -> Content:
        if self.excerpt is None:
            return Content("")
        return Content("\n").join(excerpt_lines(self.excerpt, *self.content_size))


def excerpt_lines(excerpt: Excerpt, width: int, height: int) -> list[Content]:
    """At most ``height`` lines, including the wrong one. All text is foreign."""
    if width < 1 or height < 1:
        return []
    name = line(
        f"{excerpt.file}, line {excerpt.line}" if excerpt.line else excerpt.file, max(1, width - len(_OPENS) - 2)
    )
    head = Content.assemble((name, "bold"), "  ", (clip(_OPENS, width), "$text-muted"))
    begin = max(0, min(excerpt.line - excerpt.first - (height - 1) // 2, len(excerpt.lines) - height + 1))
    digits = len(str(excerpt.first + len(excerpt.lines)))
    shown = []
    for number, text in enumerate(excerpt.lines[begin : begin + height - 1], excerpt.first + begin):
        wrong = number == excerpt.line
        code = clip(f"{'▸' if wrong else ' '} {number:>{digits}}  {plain(text)}", width)
        shown.append(Content.styled(code, "bold $text-error" if wrong else ""))
    return [head, *shown]
