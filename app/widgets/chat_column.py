"""The versions of the view of adapters, and a conversation with one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Static

from marlaas.engine.store import KeptVersion, TrajectoryRow

from ..lists.paging import Listing
from ..lists.version_lines import VersionLine, head, text
from ..words.format import excerpt, line, size
from ..words.held_out import held_out
from .paged_view import OpenReader
from .queue_table import NewestRollout
from .virtual_list import GUTTER, VirtualList

if TYPE_CHECKING:
    from marlaas.engine.rollout import Speech

# The version under the cursor in a few lines: what it is, its score, and what can be done with it.


class VersionDetail(Widget):
    """The details of a version that the list has no room for."""

    DEFAULT_CSS = """
    VersionDetail { height: 4; padding: 0 1; border-top: solid $panel-lighten-2; }
    """

    kept: reactive[KeptVersion | None] = reactive(None)
    about: reactive[str] = reactive("")
    """The version's task, in a few safe words."""

    def render(self) -> Content:
        """Three lines."""
        if self.kept is None:
            return Content("")
        row, width = self.kept.row, self.content_size.width
        measured = "not measured" if row.basis is None else f"held-out {held_out(row.score, row.basis)}"
        resumable = f"resumable: {'yes' if row.resumable else 'no'}"
        name = line(f"{row.name}  {row.tenant} / {row.task_name}  ({self.kept.environment})", width)
        words = (f"version {row.number}", self.kept.label, measured, size(row.size), resumable)
        numbers = line(" · ".join(filter(None, words)), width)
        return Content.assemble((name, "bold"), "\n", numbers, "\n", (line(self.about, width), "$text-muted"))


# The versions as a list; keys act on the line under the cursor.


class VersionHead(Widget):
    """The names of the list's columns, above it."""

    DEFAULT_CSS = """
    VersionHead { height: 1; padding: 0 3 0 1; color: $text-muted; }  /* the list's scrollbar is two cells */
    """

    def render(self) -> Content:
        """In the width that there is."""
        return Content(" " * GUTTER + head(max(1, self.content_size.width - GUTTER)))


class VersionList(VirtualList[VersionLine]):
    """All rows are in memory: few versions of a task are kept."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "open", "chat", id="adapters.chat")]

    def __init__(self, open_reader: OpenReader, **options: Any) -> None:
        super().__init__(open_reader, **options)
        self._now = 0.0
        self._sort = ""

    def show_lines(self, lines: Sequence[VersionLine], now: float, sort: str) -> None:
        """Show these lines; the cursor stays on its version."""
        self._now, self._sort = now, sort
        self.show(Listing.of({each.row.id: each for each in lines}))

    @property
    def current_version(self) -> KeptVersion | None:
        """The version under the cursor."""
        row = self.current_row
        return row.kept if row else None

    @property
    def marked(self) -> list[KeptVersion]:
        """The marked versions, in the list's order."""
        rows = (self.pages.row(place) for place in range(self.count))
        return [row.kept for row in rows if row and row.row.id in self.marks]

    def row_text(self, row: VersionLine, width: int) -> Content:
        """The line of a version; best and final ones stand out."""
        label = row.kept.label
        style = "$text-success" if "best" in label else "$text-primary" if "final" in label else ""
        return Content.styled(text(row, width, self._now, self._sort), style)


# The conversation with one side as it goes on: questions, thoughts (dimmed) and answers, scrolled to the newest.
#
# What a model wrote is cleaned here, and cut where it is too long to read.

CHARACTERS, LINES = 20_000, 400
"""Most characters and lines of one answer; more is counted and not drawn."""
KEPT = 200
"""Messages that are shown."""
_ENDS = {"length": "cut at the limit of tokens", "full": "The conversation is full: ctrl+n begins another one."}


class ChatColumn(VerticalScroll, can_focus=True):
    """The conversation with one side."""

    ALLOW_MAXIMIZE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", "down", show=False, id="chat.down"),
        Binding("k", "scroll_up", "up", show=False, id="chat.up"),
        Binding("g", "scroll_home", "top", show=False, id="chat.top"),
        Binding("G", "scroll_end", "bottom", show=False, id="chat.bottom"),
    ]
    DEFAULT_CSS = """
    ChatColumn { width: 1fr; height: 1fr; padding: 0 1; border-top: solid $panel-lighten-2; }
    ChatColumn:focus { border-top: solid $primary; }
    ChatColumn Static { margin-bottom: 1; }
    ChatColumn NewestRollout { height: 100%; padding: 0; border-left: none; }
    """

    def __init__(self, title: str, **options: Any) -> None:
        """``title``: safe text."""
        super().__init__(**options)
        self._title = title
        self.border_title = Content(title)  # a plain text would be read as markup
        self._answer: Static | None = None
        self._text = ""
        self._lines: list[str] = []

    def compose(self) -> ComposeResult:
        """Begin without messages."""
        yield from ()

    @property
    def transcript(self) -> str:
        """The whole conversation, for the clipboard."""
        return "\n".join([f"# {self._title}", *self._lines, *([self._text] if self._text else [])])

    def begin(self, example: TrajectoryRow) -> None:
        """Show what the version's task asked it last, and what it answered, until somebody says something."""
        shown = NewestRollout()
        shown.row = example
        self.mount(shown)

    def ask(self, words: str) -> None:
        """Add what the person says; an answer will follow."""
        self._close()
        self.query(NewestRollout).remove()
        question = Static(Content.styled(f"you> {excerpt(words, CHARACTERS, LINES)}", "bold"), markup=False)
        self._lines.append(f"you> {words}")
        self._answer = Static(Content.styled("…", "$text-muted"), markup=False)
        self.mount_all([question, self._answer])
        for old in list(self.children)[:-KEPT]:
            old.remove()
        self.call_after_refresh(self.scroll_end, animate=False)

    def show_reply(self, speech: Speech, problem: str = "") -> None:
        """Show what has been said so far."""
        if self._answer is None:
            return
        follows = self.scroll_offset.y >= self.max_scroll_y - 1
        self._text = speech.text
        self._answer.update(_shown(speech, problem))
        if follows:
            self.call_after_refresh(self.scroll_end, animate=False)

    def withdraw(self) -> None:
        """Remove a message that was never said."""
        if self._answer is not None:
            self._answer.update(Content.styled("(not sent: it was cancelled, or failed)", "$text-muted"))
            self._lines[-1:] = []
        self._answer, self._text = None, ""

    def clear(self) -> None:
        """Remove all messages."""
        self._answer, self._text, self._lines = None, "", []
        self.remove_children()

    def _close(self) -> None:
        if self._text:
            self._lines.append(self._text)
        self._answer, self._text = None, ""


def _shown(speech: Speech, problem: str) -> Content:
    """Thought, answer, and how it ended; an answer without words says so."""
    parts: list[Content | tuple[str, str]] = []
    if speech.thinking:
        parts += [(excerpt(speech.thinking, CHARACTERS, LINES), "$text-muted italic"), ("\n", "")]
    parts.append((excerpt(speech.text, CHARACTERS, LINES), ""))
    if problem:
        parts.append((f"{' ' if speech.text else ''}{excerpt(problem, 1000, 5)}", "$text-error"))
    elif end := _ENDS.get(speech.ended, ""):
        parts.append((f"{' ' if speech.text else ''}[{end}]", "$text-warning"))
    elif speech.ended and not speech.text.strip():
        parts.append(("(an empty answer)", "$text-muted"))
    elif not speech.ended:
        parts.append(("▌", "$text-muted"))
    return Content.assemble(*parts)
