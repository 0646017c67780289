"""Dialogs that are read: configurations, terms, findings, keys, win-rates."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import ActiveBinding, Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

from marlaas.engine.errors import MarlaasError
from marlaas.engine.home.paths import Home
from marlaas.engine.spec.task import ONLY
from marlaas.engine.store.rows import TaskRow

from ....lists.lines import Cell, Column, Learner, Row
from ....operations.settings_file import Setting
from ....reading import opened
from ....rollouts.answers import Block
from ....rollouts.exporting import joined
from ....rollouts.reading import TURNS, Shading, episode_blocks
from ....text.format import cells, clip, excerpt, line, pad
from ....text.learning import MARK, Told, findings
from ....text.scores import CELL, Matrix, Meeting, cell_text, matrices, shown
from ....text.terms import TERMS, Term, UnknownTerm, find_term, heading, paragraphs, search
from ...widgets.bars import FilterBar, FilterLine
from ...widgets.keyed_table import KeyedTable
from .dialog import Dialog

# Dialogs that are read: one long text that scrolls. Enter and esc close them.

_AROUND = 3
"""Lines of the frame and of the keys."""


class Reading(Dialog[None]):
    """Scrolls over a text that is made for its width."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,escape,q", "dismiss", "close", key_display="⏎ esc", id="reading.close"),
        Binding("j", "scroll(1)", "scroll", key_display="j k", id="reading.down"),
        Binding("k", "scroll(-1)", "up", show=False, id="reading.up"),
    ]
    DEFAULT_CSS = """
    Reading > Vertical { width: 96%; max-width: 130; height: 92%; }
    Reading #legend { height: 1; color: $text-muted; }
    Reading VerticalScroll { height: 1fr; scrollbar-gutter: stable; }
    Reading.-fitted > Vertical { height: auto; max-height: 100%; }
    Reading.-fitted VerticalScroll { height: auto; }
    Reading #text { width: 100%; }
    """
    AUTO_FOCUS = "VerticalScroll"
    TALL = True
    """Whether it is as high as the screen however short its text is, which may come or change later."""

    def legend(self) -> Content:
        """A line above the text that does not scroll; empty if there is none."""
        return Content("")

    @abstractmethod
    def text(self, width: int) -> Content:
        """The text, for lines of ``width`` cells."""

    def content(self) -> ComposeResult:
        """Lay out legend and text."""
        self.set_class(not self.TALL, "-fitted")
        yield Static(id="legend", markup=False)
        with VerticalScroll():
            yield Static(id="text", markup=False)

    @property
    def _scrolls(self) -> bool:
        """Whether the text is longer than what is seen of it."""
        return self.is_mounted and self.query_one(VerticalScroll).max_scroll_y > 0

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave out the keys that scroll if nothing does."""
        return action != "scroll" or self._scrolls

    def on_resize(self, event: Resize) -> None:
        """Make the text again for the new width."""
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Show legend and text as they are now."""
        legend, scrolled = self.legend(), self.query_one(VerticalScroll)
        self.query_one("#legend", Static).update(legend)
        self.query_one("#legend").display = bool(legend.plain)
        scrolled.styles.max_height = max(1, self.size.height - _AROUND - bool(legend.plain))
        width = scrolled.scrollable_content_region.width
        self.query_one("#text", Static).update(self.text(max(1, width)))
        self.call_after_refresh(self.refresh_bindings)  # by then it is known whether the text scrolls

    def action_scroll(self, lines: int) -> None:
        """Scroll by some lines."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)


# The configuration of tasks: defaults are dim, chosen values and differences between the tasks are marked.

_KEY, _LEAST = 34, 9


class Configuration(Reading):
    """A table with a column for each task."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "toggle_all", "all or changed keys", id="configuration.all"),
        Binding("d", "dismiss", "close", show=False, id="configuration.close"),
    ]

    def __init__(self, tasks: Sequence[int], settings: Sequence[Setting], compared: Sequence[str] = ()) -> None:
        """``tasks``: the number of each column; ``compared``: lines about their scores, above the table."""
        super().__init__()
        self._compared = compared
        self._tasks, self._settings = tasks, settings
        self._all = True

    def heading(self) -> str:
        """Whose configuration it is."""
        if len(self._tasks) == 1:
            return f"configuration of task {self._tasks[0]}"
        return f"configurations of {len(self._tasks)} tasks"

    def legend(self) -> Content:
        """What the marks mean, and how much is hidden."""
        differing = Content.styled("   ≠ differs between tasks", "$text-warning") if len(self._tasks) > 1 else ""
        hidden = len(self._settings) - len(self._shown)
        return Content.assemble(
            ("● chosen", "$text-primary"), differing, f"   {hidden} defaults hidden" if hidden else ""
        )

    def text(self, width: int) -> Content:
        """Scores, then a line for each key."""
        scores = [Content(f"{text}\n") for text in (*self._compared, *([""] if self._compared else []))]
        return Content.assemble(*scores, table(self._tasks, self._shown, width))

    @property
    def _shown(self) -> list[Setting]:
        return [row for row in self._settings if self._all or row.differs or not row.default]

    def action_toggle_all(self) -> None:
        """Show all keys, or those that were chosen or that differ."""
        self._all = not self._all
        self.draw()


def table(tasks: Sequence[int], rows: Sequence[Setting], width: int) -> Content:
    """A line for each key."""
    if not rows:
        return Content.styled("All values are the defaults.", "$text-muted")
    key = min(_KEY, max(cells(row.key) for row in rows) + 1, max(_LEAST, width // 2))
    each = max(_LEAST, (width - key - 2) // len(tasks) - 1)
    lines = []
    if len(tasks) > 1:
        names = " ".join(pad(f"task {task}", each) for task in tasks)
        lines.append(Content.styled(f"{' ' * (key + 2)}{names}", "bold"))
    for row in rows:
        mark = "≠" if row.differs else " " if row.default else "●"
        values = " ".join(pad(clip(value, each), each) for value in row.values)
        style = "$text-warning" if row.differs else "$text-muted" if row.default else "$text-primary"
        lines.append(Content.styled(f"{mark} {pad(clip(row.key, key - 1), key)}{values}".rstrip(), style))
    return Content("\n").join(lines)


# What words and metrics mean: the list of all, and the one under the cursor in full. A filter finds the others.

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
        """What is to be said next to a term, and next to which."""

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


# What goes wrong in a task's learning: each finding with its figures, what to do, and the rollouts that show it.
#
# The rollouts are read in a thread, once.

LINES, CHARACTERS = 24, 2000
"""What is shown of a rollout at most; the rollouts view has all of it."""
_GONE = "It is not stored any more."


class Findings(Reading):
    """Shows the findings of one task."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("f", "dismiss", "close", show=False, id="findings.close")]

    def __init__(self, home: Home, task: TaskRow) -> None:
        super().__init__()
        self._home, self._number, self._findings = home, task.id, findings(task)
        self._said: Mapping[int, Content] = {}

    def heading(self) -> str:
        """Which task it is about."""
        return f"what goes wrong in task {self._number}"

    def text(self, width: int) -> Content:
        """All findings, with the rollouts that were read by now."""
        return drawn_findings(self._findings, self._said)

    def on_mount(self) -> None:
        """Read the rollouts."""
        self.run_worker(partial(self._read), thread=True, exit_on_error=False)

    def _read(self) -> None:
        said: dict[int, Content] = {}
        wanted = [rollout for finding in self._findings for rollout in finding.rollouts]
        try:
            with opened(self._home) as reader:
                for rollout in wanted:
                    found = reader.episode(rollout)
                    said[rollout] = beginning(episode_blocks(found, Shading(TURNS), None)) if found else Content(_GONE)
        except MarlaasError as error:
            said = dict.fromkeys(wanted, Content(str(error)))
        self.app.call_from_thread(self._came, said)

    def _came(self, said: Mapping[int, Content]) -> None:
        self._said = said
        self.draw()


def beginning(blocks: Sequence[Block]) -> Content:
    """The first lines of a rollout, in the colours of the rollouts view; it shows how much is left out."""
    text = joined(blocks)
    shown = excerpt(text, CHARACTERS, LINES)
    kept, _, left_out = (shown, "", "") if shown == text else shown.rpartition("\n")
    parts, place = [], 0
    for block in blocks:
        if place <= len(kept):
            parts.append(Content.styled(kept[place:][: len(block.text)], block.style))
        place += len(block.text) + 1
    return Content("\n").join([*parts, Content.styled(left_out, "$text-muted")] if left_out else parts)


def drawn_findings(findings: list[Told], said: Mapping[int, Content]) -> Content:
    """All findings, each with its rollouts; ``said`` has those that were read, by id."""
    parts: list[Content] = []
    for finding in findings:
        mark = f"{MARK} " if finding.holds else ""
        parts.append(Content.styled(f"{mark}{finding.headline}", "bold $text-warning" if finding.holds else "bold"))
        parts.append(Content(_sentence(finding.evidence)))
        if finding.advice:
            parts.append(Content(f"What to do: {finding.advice}"))
        for rollout in finding.rollouts:
            parts.append(Content.styled(f"\nrollout {rollout}", "$text-muted"))
            parts.append(said.get(rollout, Content("Reading …")))
        parts.append(Content(""))
    return Content("\n").join(parts)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


# The help of ``?``: what this view is, then its keys, then those of all views and those that move the cursor.
#
# Keys are shown as the person's key map has them.

_HELP_KEY, _ENTRY = 13, 36
_MOVES = ("up", "down", "first", "last", "top", "bottom", "left", "right", "page up", "page down")
_PLAIN = {
    **{f"{what} {way}": way for what in ("cursor", "scroll") for way in ("up", "down", "left", "right")},
    "focus next": "next pane",
    "focus previous": "pane before",
}
"""Textual's words for what it does itself, in ours."""
_PAIRS = (
    ("up", "down"),
    ("left", "right"),
    ("page up", "page down"),
    ("first", "last"),
    ("top", "bottom"),
    ("home", "end"),
    ("page left", "page right"),
    ("next pane", "pane before"),
)
"""Ways to move that are shown in one line."""
_SENTENCE_ENDED = re.compile(r"(?<=[.])\n")
HERE, EVERYWHERE, MOVING = "in this view", "in every view", "moving"


@dataclass(frozen=True)
class KeyLine:
    """Keys that do the same thing."""

    section: str
    keys: str
    what: str
    enabled: bool


def key_lines(active: Iterable[tuple[ActiveBinding, str]]) -> list[KeyLine]:
    """Active keys in their names on the keyboard, one line an action, by section; Textual's for scrolling last."""
    lines: dict[tuple[str, str], KeyLine] = {}
    for (node, binding, enabled, _), name in active:
        if not binding.description or binding.system or name.startswith("super+"):
            continue
        ours = bool(binding.id) or node.parent is None or "copy" in binding.action
        moves = not ours or binding.description in _MOVES
        everywhere = not binding.id or node.parent is None or binding.id in ("view.back", "view.zoom", "app.help")
        section = MOVING if moves else EVERYWHERE if everywhere else HERE
        view = binding.action.startswith("open_view")
        what = "the views" if view else binding.description if binding.id else binding.description.lower()
        what = _PLAIN.get(what, what) if moves else what
        known = lines.get((section, what))
        names = known.keys.split() if known else []
        names = [*names[:1], "-", name] if view and names else [*names, *([name] if name not in names else [])]
        lines[section, what] = KeyLine(section, " ".join(names), what, enabled)
    for one, other in _PAIRS:
        if (first := lines.get((MOVING, one))) and (MOVING, other) in lines:
            second = lines.pop((MOVING, other))
            lines[MOVING, one] = KeyLine(MOVING, f"{first.keys} {second.keys}", f"{one}, {other}", first.enabled)
    return list(lines.values())


class KeysHelp(Reading):
    """A page to read."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "words", "what words and metrics mean", id="help.words"),
        Binding("question_mark", "dismiss", "close", show=False, id="help.close"),
    ]
    DEFAULT_CSS = """
    KeysHelp > Vertical { width: 80; max-width: 100%; }
    KeysHelp.-wide > Vertical { width: 118; }
    """
    TALL = False

    def __init__(self, title: str, text: str, lines: list[KeyLine]) -> None:
        super().__init__()
        self._title, self._text, self._lines = title, text, lines

    def heading(self) -> str:
        """Whose keys they are."""
        return self._title

    def text(self, width: int) -> Content:
        """What the view is, then keys in as many columns as there is room for."""
        paragraphs = ["\n".join(sentences(each)) for each in self._text.split("\n\n") if each]
        parts = [part for each in paragraphs for part in (Content(each), Content(""))]
        columns = max(1, width // _ENTRY)
        for section in (HERE, EVERYWHERE, MOVING):
            lines = [line for line in self._lines if line.section == section]
            if not lines:
                continue
            parts.append(Content.styled(section, "$text-accent"))
            rows, key = -(-len(lines) // columns), min(_HELP_KEY, max(cells(line.keys) for line in lines))
            room = width // columns - 1 - key - 1
            parts += [Content(" ").join(_entry(line, key, room) for line in lines[row::rows]) for row in range(rows)]
        return Content("\n").join(parts)

    def action_words(self) -> None:
        """Go on to what words and metrics mean."""
        self.app.switch_screen(Explain())


def sentences(paragraph: str) -> list[str]:
    """The lines of a paragraph: one that does not end a sentence continues in the next."""
    return [" ".join(each.split()) for each in _SENTENCE_ENDED.split(paragraph)]


def _entry(line: KeyLine, key: int, room: int) -> Content:
    """A key in ``key`` cells, and what it does in ``room``."""
    what = pad(clip(line.what, room), room)
    style = "" if line.enabled else "$text-muted"
    return Content.assemble((pad(clip(line.keys, key), key, right=True), "bold"), " ", (what, style))


# How the versions of a policy did against others: a table for each opponent.
#
# The tables are read in a thread, once. What has no room is left out, and the screen reports it.

_VERSION = 6
_ROWS = 300
"""Versions that are shown, spread over all of them."""
_NONE = (
    "No version of this policy has met another one yet, in plays that are stored.\n\n"
    "A policy meets others where several speak in an episode: other policies, a pool of its earlier versions,"
    ' a frozen one, or under [eval] with agents = { second = "player@0" }.'
)
_LEGEND = "row against column: mean reward ± error, n episodes of both; · none"


class WinRates(Reading):
    """Shows the tables."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("w", "dismiss", "close", show=False, id="rates.close")]
    DEFAULT_CSS = "WinRates > Vertical { max-width: 150; }"
    TALL = False

    def __init__(self, home: Home, learner: Learner) -> None:
        super().__init__()
        self._home, self._learner = home, learner
        self._found: Sequence[Matrix] | None = None
        self._problem = ""

    def heading(self) -> str:
        """Whose win-rates they are."""
        return f"win-rates of {self._learner.words}"

    def legend(self) -> Content:
        """How to read a cell."""
        return Content(_LEGEND)

    def text(self, width: int) -> Content:
        """The tables, or why there are none."""
        if self._found is None:
            return Content("Reading …")
        tables = [drawn_win_rates(matrix, max(_VERSION + CELL, width)) for matrix in self._found]
        return Content("\n\n").join(tables) if tables else Content.styled(self._problem or _NONE, "$text-muted")

    def on_mount(self) -> None:
        """Read the tables."""
        self.run_worker(partial(self._read), thread=True, exit_on_error=False)

    def _read(self) -> None:
        found: list[Matrix] = []
        problem, own = "", self._learner
        try:
            with opened(self._home) as reader:
                task = reader.task(own.task)
                found = matrices(reader.matchups(own.task), task.policies if task else (), own.policy or ONLY)
        except MarlaasError as error:
            problem = str(error)
        self.app.call_from_thread(self._came, found, problem)

    def _came(self, found: Sequence[Matrix], problem: str) -> None:
        self._found, self._problem = found, problem
        self.draw()


def drawn_win_rates(matrix: Matrix, width: int) -> Content:
    """A table in lines of ``width`` cells: as many columns as fit, spread over all of them."""
    columns = matrix.columns_for((width - _VERSION) // CELL)
    left_out = len(matrix.columns) - len(columns)
    note = f"   ({left_out} of {len(matrix.columns)} columns have no room)" if left_out else ""
    head = "".join(pad(f"v{column}", CELL, right=True) for column in columns)
    lines = [
        Content.assemble((matrix.title, "bold"), (note, "$text-muted")),
        Content.styled(" " * _VERSION + head, "$text-muted"),
    ]
    for row in shown(matrix.rows, _ROWS):
        cells = [matrix.cells.get((row, column)) for column in columns]
        if any(cells):
            parts = [(pad(cell_text(cell), CELL, right=True), _style(cell)) for cell in cells]
            lines.append(Content.assemble((pad(f"v{row}", _VERSION), "$text-muted"), *parts))
    return Content("\n").join(lines)


def _style(meeting: Meeting | None) -> str:
    """The style of a cell that is off one half by more than twice the standard error; the numbers show it as well."""
    if meeting is None:
        return "$text-disabled"
    if abs(meeting.mean - 0.5) <= 2 * meeting.stderr or meeting.games < 2:
        return ""
    return "$text-success" if meeting.mean > 0.5 else "$text-error"
