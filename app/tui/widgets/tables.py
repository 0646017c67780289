"""Tables and lists: with keys, with pages, of rows that are made when they come into sight."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
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
from textual.worker import get_current_worker

from marlaas.engine.errors import MarlaasError
from marlaas.engine.store.queries.reader import Reader

from ...lists.filters import Listing, Pages, Row
from ...operations.environments.source_lines import Excerpt
from ...text.format import clip, line, plain

# A view over rows that a thread reads as they come into sight, so that a slow disk never delays a key.
#
# Rows go into ``pages``. One thread at a time reads what is in sight when it begins: what was scrolled past is never
# read. Each page has its own connection, so that none is kept open, and a database that was replaced is read as
# it is. Knows no cursor and no SQL.

OpenReader = Callable[[], Reader]
"""Opens a connection for one page; raises ``StoreError``."""


class PagedView(ScrollView, Generic[Row]):
    """Reads the rows that subclasses want to show."""

    def __init__(self, open_reader: OpenReader, **options: Any) -> None:
        super().__init__(**options)
        self.pages: Pages[Row] = Pages()
        self.problem = ""
        """Why the last page could not be read; the next listing, or a move of the cursor, tries again."""
        self._open_reader = open_reader
        self._reading = False

    @abstractmethod
    def places_wanted(self) -> Iterable[range]:
        """Places whose rows are needed, the most urgent first."""

    @abstractmethod
    def rows_came(self, ids: Collection[int]) -> None:
        """Rows have been read, or it is known why they cannot be."""

    def read_on(self) -> None:
        """Read the next page that is needed, unless one is being read."""
        if self._reading or not self.is_mounted:
            return
        wanted = (self.pages.wanted(places.start, places.stop) for places in self.places_wanted())
        ids = next(filter(None, wanted), None)
        if ids is not None:
            self._reading = True
            read = partial(self._read, self.pages.listing, ids, self.pages.generation)
            self.run_worker(read, thread=True, exit_on_error=False)

    def _read(self, listing: Listing[Row], ids: list[int], generation: int) -> None:
        try:
            with self._open_reader() as reader:
                rows, problem = listing.read(reader, ids), ""
        except MarlaasError as error:
            rows, problem = {}, str(error)
        except Exception as error:  # of an invalid row; unreported, the view would wait for this page for ever
            rows, problem = {}, f"These rows cannot be read: {type(error).__name__}: {error}"
        if not get_current_worker().is_cancelled:
            self.post_message(_Read(ids, rows, listing.stamp, generation, problem))

    def on__read(self, message: _Read) -> None:
        """Take over a page from the thread."""
        self._reading, self.problem = False, message.problem
        if not message.problem:
            if message.generation == self.pages.generation:
                self.pages.keep(message.ids, message.rows, message.stamp)
            self.read_on()
        self.rows_came(message.ids)


@dataclass
class _Read(Message, bubble=False):
    """A page from the thread."""

    ids: list[int]
    rows: Mapping[int, Any]
    stamp: object
    generation: int
    problem: str


# A list of any length with a cursor and marks: it draws the lines in sight, whose rows a thread reads.
#
# ``show`` takes a ``Listing``; messages report cursor and choice. Rows that have not been read yet are drawn as
# placeholders. Subclasses say how a row is printed. Knows no SQL.

CURSOR, MARK = "▸", "•"
GUTTER = 2
"""Cells before each row, for cursor and mark."""


class VirtualList(PagedView[Row], can_focus=True):
    """Rows under a cursor. Marks and cursor belong to ids: they stay with their rows when others are added."""

    @dataclass
    class Said(Message):
        """What all its messages have in common."""

        list: VirtualList[Any]
        id: int

        @property
        def control(self) -> VirtualList[Any]:
            """The list, for selectors."""
            return self.list

    class Moved(Said):
        """The cursor is on another row."""

    class Opened(Said):
        """The person opens a row."""

    class Arrived(Said):
        """The row under the cursor has been read."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", id="list.open"),
        Binding("down,j", "move(1)", "down", show=False, id="list.down"),
        Binding("up,k", "move(-1)", "up", show=False, id="list.up"),
        Binding("pagedown,ctrl+f", "page(1)", "page down", show=False, id="list.page_down"),
        Binding("pageup,ctrl+b", "page(-1)", "page up", show=False, id="list.page_up"),
        Binding("home,g", "first", "first", show=False, id="list.first"),
        Binding("end,G", "last", "last", show=False, id="list.last"),
        Binding("space", "mark", "mark", show=False, id="list.mark"),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {"list--cursor", "list--waiting"}
    DEFAULT_CSS = """
    VirtualList { height: 1fr; overflow-x: hidden; scrollbar-gutter: stable; }
    VirtualList > .list--cursor { background: $surface-lighten-1; }
    VirtualList:focus > .list--cursor { background: $primary-muted; text-style: bold; }
    VirtualList > .list--waiting { color: $text-disabled; }
    """

    cursor: reactive[int] = reactive(0, repaint=False)
    """The place of the cursor."""

    def __init__(self, open_reader: OpenReader, *, follow: str = "", **options: Any) -> None:
        """``follow``: "first" or "last", where new rows are added: a cursor there stays there."""
        super().__init__(open_reader, **options)
        self.marks: set[int] = set()
        self._follow = follow

    @abstractmethod
    def row_text(self, row: Row, width: int) -> Content:
        """A row in one line of ``width`` cells; foreign text in it must be cleaned."""

    # What is shown.

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self.pages.listing.ids)

    @property
    def current(self) -> int | None:
        """The id under the cursor."""
        return self.pages.listing.ids[self.cursor] if self.cursor < self.count else None

    @property
    def current_row(self) -> Row | None:
        """The row under the cursor, if it has been read."""
        return self.pages.row(self.cursor)

    def rows(self) -> list[Row]:
        """The rows that have been read; of a list shorter than a screen, all."""
        found = (self.pages.row(place) for place in range(self.count))
        return [row for row in found if row is not None]

    @property
    def chosen(self) -> list[int]:
        """The rows that an action is for: the marked ones in order, else the one under the cursor."""
        marked = [key for key in self.pages.listing.ids if key in self.marks] if self.marks else []
        return marked or ([] if self.current is None else [self.current])

    def show(self, listing: Listing[Row], *, anew: bool = False) -> None:
        """Show a listing. The cursor stays on its row; with ``again`` it is another listing, and begins at the top."""
        current, place, count = self.current, self.cursor, self.count
        if anew:
            self.pages.forget()
            self.marks.clear()
        self.pages.show(listing)
        self.virtual_size = Size(0, self.count)
        if self.marks:
            self.marks.intersection_update(listing.ids)
        if anew or current is None:
            self._place(self.count - 1 if self._follow == "last" else 0, moved=True)
        elif (self._follow == "first" and place == 0) or (self._follow == "last" and place == count - 1):
            self._place(0 if self._follow == "first" else self.count - 1, moved=self._at(0, -1) != current)
        else:
            found = _index(listing, current, place)
            self._place(min(place, self.count - 1) if found is None else found, moved=found is None)
        self.refresh()
        self.read_on()

    def go(self, key: int) -> bool:
        """Move the cursor to a row by its id; False if it is not in the list."""
        place = _index(self.pages.listing, key, self.cursor)
        if place is not None:
            self._place(place, moved=place != self.cursor)
        return place is not None

    # Drawing.

    def render_line(self, y: int) -> Strip:
        """One line of what is in sight."""
        width, place = self.scrollable_content_region.width, self.scroll_offset.y + y
        if not 0 <= place < self.count:
            return Strip.blank(width, self.rich_style)
        row, at_cursor = self.pages.row(place), place == self.cursor
        marked = MARK if self.pages.listing.ids[place] in self.marks else " "
        gutter = Content.styled(f"{CURSOR if at_cursor else ' '}{marked}", "$text-primary" if self.has_focus else "")
        classes = ("list--cursor",) if at_cursor else ()
        if row is not None:
            return self._strip(gutter + self.row_text(row, max(0, width - GUTTER)), width, *classes)
        waiting = "gone" if self.pages.known(place) else line(self.problem, width) or "…"
        return self._strip(gutter + Content(waiting), width, *(classes or ("list--waiting",)))

    def _strip(self, content: Content, width: int, *classes: str) -> Strip:
        style = self.get_visual_style(*classes)
        (strip,) = Visual.to_strips(self, content.truncate(width), width, 1, style, pad=True) or [Strip.blank(width)]
        return strip

    # Reading.

    def places_wanted(self) -> Iterable[range]:
        """Places in sight, then the cursor's."""
        first = self.scroll_offset.y
        return range(first, first + max(1, self.size.height)), range(self.cursor, self.cursor + 1)

    def rows_came(self, ids: Collection[int]) -> None:
        """Draw again, because rows in sight may have come."""
        self.refresh()
        if self.current in ids and self.current is not None:
            self.post_message(self.Arrived(self, self.current))

    # Moving.

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Read the rows that have come into sight."""
        super().watch_scroll_y(old_value, new_value)
        self.vertical_scrollbar.position = new_value  # set before the bar is shown, or Textual leaves it at the top
        self.read_on()

    def on_resize(self) -> None:
        """Read rows that have come into sight, and keep the cursor in sight."""
        self._place(self.cursor)
        self.read_on()

    def _place(self, place: int, moved: bool = False) -> None:
        self.cursor = max(0, min(place, self.count - 1))
        height, top = self.scrollable_content_region.height, self.scroll_offset.y
        if height and not top <= self.cursor < top + height:
            middle = self.cursor if self.cursor < top else self.cursor - height + 1
            self.scroll_to(y=middle, animate=False, immediate=True, force=True)
        self.refresh()
        self.read_on()
        if moved and self.current is not None:
            self.post_message(self.Moved(self, self.current))

    def _at(self, *places: int) -> int | None:
        place = places[0] if self._follow == "first" else places[1]
        return self.pages.listing.ids[place] if self.count else None

    def action_move(self, by: int) -> None:
        """Move some rows down or up."""
        place = max(0, min(self.cursor + by, self.count - 1))
        if place != self.cursor:
            self._place(place, moved=True)

    def action_page(self, by: int) -> None:
        """Move a page down or up."""
        self.action_move(by * max(1, self.size.height - 1))

    def action_first(self) -> None:
        """Go to the first row."""
        self.action_move(-self.count)

    def action_last(self) -> None:
        """Go to the last row."""
        self.action_move(self.count)

    def action_mark(self) -> None:
        """Mark or unmark the row under the cursor, and move on."""
        if self.current is not None:
            self.marks.symmetric_difference_update({self.current})
            self.action_move(1)
            self.refresh()

    def action_open(self) -> None:
        """Open the row under the cursor."""
        if self.current is not None:
            self.post_message(self.Opened(self, self.current))

    def on_click(self, event: Click) -> None:
        """Move to the row that was clicked; open it on the second click."""
        place = self.scroll_offset.y + event.y
        if place < self.count:
            self._place(place, moved=place != self.cursor)
            if event.chain == 2:
                self.action_open()


def _index(listing: Listing[Any], key: int, near: int) -> int | None:
    """The place of an id; the search begins at its last place."""
    ids = listing.ids
    if 0 <= near < len(ids) and ids[near] == key:
        return near
    try:
        return ids.index(key)
    except ValueError:
        return None


# The lines of an environment around the one that is wrong: why a task is blocked.

_OPENS = "E opens it here"


class SourceExcerpt(Widget):
    """Read only: the editor has the file."""

    DEFAULT_CSS = """
    SourceExcerpt { padding: 0 1; }
    """

    excerpt: reactive[Excerpt | None] = reactive(None)

    def render(self) -> Content:
        """The file's name, then its lines."""
        if self.excerpt is None:
            return Content("")
        return Content("\n").join(excerpt_lines(self.excerpt, *self.content_size))


def excerpt_lines(excerpt: Excerpt, width: int, height: int) -> list[Content]:
    """At most ``height`` lines, the wrong one among them if there is one. All text is foreign."""
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
