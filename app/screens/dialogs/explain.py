"""What words and metrics mean: the list of all, and the one under the cursor in full. A filter finds the others."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from ...lists.table_rows import Cell, Column, Row
from ...widgets.filter_bar import FilterBar, FilterLine
from ...widgets.keyed_table import KeyedTable
from ...words.format import clip, line
from ...words.terms import TERMS, Term, UnknownTerm, find_term
from ...words.terms.explaining import heading, paragraphs, search
from .dialog import Dialog

_COLUMN = Column("term", 16)


class Explain(Dialog[None]):
    """Explains the term under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "done", "close", show=False, priority=True, id="explain.enter"),
        Binding("slash", "filter", "find", key_display="/", id="explain.find"),
        Binding("space", "more", "more", id="explain.more"),
        Binding("escape,q", "leave", "close", key_display="⏎ esc", id="explain.close"),
    ]
    DEFAULT_CSS = """
    Explain > Vertical { width: 96%; max-width: 100; height: 70%; min-height: 22; max-height: 96%; padding: 0; }
    Explain #both { height: 1fr; }
    Explain KeyBar { margin-left: 0; }
    Explain KeyedTable { width: 19; background: $surface; overflow-x: hidden; }
    Explain VerticalScroll { width: 1fr; padding: 0 1; }
    Explain #text { width: 100%; }
    """
    AUTO_FOCUS = "KeyedTable"

    def __init__(self, word: str = "") -> None:
        """``word`` is what to explain, under any of its names; empty: the list from its beginning."""
        super().__init__()
        self._word = word
        self._terms = {term.name: term for term in TERMS}
        self._shown: list[Term] = list(TERMS)
        self._problem = ("", "")
        """What is to be said beside a term, and beside which."""

    def heading(self) -> str:
        """What the list is of."""
        return "what words and metrics mean"

    def content(self) -> ComposeResult:
        """Lay out filter, list and text."""
        yield FilterBar("drift, reward, held-out, staleness")
        with Horizontal(id="both"):
            yield KeyedTable(show_header=False)
            with VerticalScroll(can_focus=False):
                yield Static(id="text", markup=False)

    def on_mount(self) -> None:
        """Show the list, with the cursor on the word that was asked for."""
        term = TERMS[0]
        if self._word:
            try:
                term = find_term(self._word)
            except UnknownTerm as error:
                term = error.near[0] if error.near else term
                told = f"{line(self._word, 40)} is not in this list: it is an environment's own figure."
                self._problem = (told, term.name)
        self._list()
        self.query_one(KeyedTable).move_cursor(row=self._shown.index(term), animate=False)
        self._explain()

    def _list(self) -> None:
        rows = [
            Row(term.name, (Cell(clip(term.name, _COLUMN.width), "bold" if term.important else ""),))
            for term in self._shown
        ]
        self.query_one(KeyedTable).show_rows((_COLUMN,), rows)

    def _explain(self) -> None:
        key = self.query_one(KeyedTable).key
        text = self.query_one("#text", Static)
        if key is None:
            text.update(Content.styled("No term is like that.", "$text-muted"))
            return
        term, (problem, beside) = self._terms[key], self._problem
        parts = [Content.styled(f"{problem}\n", "$text-warning")] if problem and key == beside else []
        parts.append(Content.styled(heading(term), "bold $text-primary"))
        for label, said in paragraphs(term):
            parts.append(Content.assemble((f"\n{label}\n" if label else "", "$text-muted"), said))
        text.update(Content("\n").join(parts))
        self.query_one(VerticalScroll).scroll_home(animate=False)

    def on_keyed_table_moved(self, message: KeyedTable.Moved) -> None:
        """Explain what is under the cursor now."""
        self._explain()

    def action_more(self) -> None:
        """Scroll the text by a page."""
        self.query_one(VerticalScroll).scroll_page_down(animate=False)

    def action_filter(self) -> None:
        """Open the filter."""
        self.query_one(FilterBar).open()

    def on_filter_bar_changed(self, message: FilterBar.Changed) -> None:
        """Find with every letter; the cursor goes to what fits best."""
        self._shown = list(search(message.text))
        self.query_one(FilterBar).tell(f"{len(self._shown)} of {len(TERMS)}")
        self._list()
        self.query_one(KeyedTable).move_cursor(row=0, animate=False)
        self._explain()

    def on_filter_bar_left(self, message: FilterBar.Left) -> None:
        """Go back to the list."""
        self.query_one(KeyedTable).focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave enter to the filter while one types there."""
        return action != "done" or not isinstance(self.focused, FilterLine)

    def action_done(self) -> None:
        """Close."""
        self.dismiss()

    def action_leave(self) -> None:
        """Close."""
        self.dismiss()
