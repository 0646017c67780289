"""The dialogs: each lies on a view and gives one answer."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import ActiveBinding, Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Static

from marlaas.engine.errors import ConfigError, MarlaasError
from marlaas.engine.home.paths import Home
from marlaas.engine.rollout.talk import Manner
from marlaas.engine.samplers.sampling import Truncation
from marlaas.engine.spec.task import ONLY
from marlaas.engine.store.queries import episodes, learning
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import TaskRow

from ...lists.lines import Cell, Column, Learner, Row
from ...operations.environments.templates import LONGEST, SHAPES, write_template
from ...operations.settings_file import Setting
from ...reading import opened as opened_home
from ...rollouts.exporting import episode_text
from ...text.format import cells, clip, excerpt, line, pad, plain
from ...text.learning import MARK, Told, findings
from ...text.scores import CELL, Matrix, Meeting, cell_text, matrices, shown
from ...text.terms import TERMS, Term, UnknownTerm, find_term, heading as term_heading, paragraphs, search
from ..chat.sampling_options import OPTIONS
from ..context.feed import Latest
from ..widgets.bars import FilterBar, Filtered, FilterLine, KeyBar
from ..widgets.tables import KeyedTable

if TYPE_CHECKING:
    from ...app import MarlaasApp


class Dialog(ModalScreen[Any]):
    """A titled frame in the middle of the screen; its last line has its keys."""

    DEFAULT_CSS = """
    Dialog { align: center middle; }
    Dialog > Vertical { width: 72; max-width: 95%; height: auto; padding: 0 1; background: $surface;
                        border: round $primary; }
    Dialog KeyBar { margin-left: -1; background: $surface; color: $text-muted; }
    """
    ENTER = ""
    """Enter's action in a text line; empty: a binding says it."""

    def __init__(self, heading: str = "") -> None:
        super().__init__()
        self.heading = heading

    def content(self) -> ComposeResult:
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        with Vertical() as frame:
            frame.border_title = Content(self.heading)
            yield from self.content()
            yield KeyBar(self.ENTER)


@dataclass(frozen=True)
class Field:
    """A labelled input line."""

    id: str
    label: str
    text: str = ""
    longest: int = 1000


Answering = Callable[[Sequence[str], str], Any]
"""Fields and choice to answer; a ``ConfigError`` is shown, and the person may retry."""


class Ask(Dialog):
    """Asks for lines of text, optionally for a choice. None: left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "choose(-1)", "choose", key_display="↑↓", priority=True, id="ask.up"),
        Binding("down", "choose(1)", show=False, priority=True, id="ask.down"),
        Binding("tab", "next", "next", id="ask.next"),
        Binding("escape", "dismiss", "close", key_display="esc", id="ask.leave"),
    ]
    DEFAULT_CSS = """
    Ask Label { width: 100%; }
    Ask Input { background: $panel; }
    Ask #problem { color: $text-error; }
    Ask #choices { margin-bottom: 1; }
    """
    AUTO_FOCUS = "Input"

    def __init__(
        self,
        fields: Sequence[Field],
        enter: str = "done",
        answer: Answering = lambda values, choice: values[0],
        *,
        heading: str = "",
        choices: Mapping[str, str] = {},
        asked: str = "",
    ) -> None:
        """``enter``: what answering does; ``choices``: words by name, below the question ``asked``."""
        super().__init__(heading)
        self.ENTER = enter
        self._fields, self._answer, self._choices, self._asked = fields, answer, choices, asked
        self._place = 0

    def content(self) -> ComposeResult:
        for field in self._fields:
            yield Label(field.label, markup=False)
            yield Input(field.text, id=field.id, max_length=field.longest, select_on_focus=False, compact=True)
        if self._choices:
            yield Label(self._asked, markup=False)
            yield Static(self._drawn(), id="choices", markup=False)
        yield Label("", id="problem", markup=False)

    def _drawn(self) -> Content:
        rows = [
            Content.styled(f" {'●' if place == self._place else '○'} {words}", "bold" if place == self._place else "")
            for place, words in enumerate(self._choices.values())
        ]
        return Content("\n").join(rows)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return bool(self._choices) if action == "choose" else action != "next" or len(self._fields) > 1

    def action_next(self) -> None:
        self.focus_next()

    def action_choose(self, by: int) -> None:
        self._place = (self._place + by) % len(self._choices)
        self.query_one("#choices", Static).update(self._drawn())

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close with the answer, or show its error."""
        event.stop()
        values = [self.query_one(f"#{field.id}", Input).value.strip() for field in self._fields]
        try:
            answer = self._answer(values, next(iter([*self._choices][self._place :]), ""))
        except (ConfigError, ArgumentTypeError) as error:
            self.query_one("#problem", Label).update(line(str(error), 300))
        else:
            self.dismiss(answer)


def ask(question: str, text: str = "", enter: str = "done", answer: Answering | None = None) -> Ask:
    """A question with one line of text as answer, initially ``text``."""
    return Ask([Field("answer", question, text)], enter, answer or (lambda values, choice: values[0]))


class Confirm(Dialog):
    """Answers True or False. Irreversible acts ask for a typed word; enter then means yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "say(True)", "yes", id="confirm.yes"),
        Binding("n", "say(False)", "no", id="confirm.no"),
        Binding("escape", "answer(False)", "close", key_display="esc", id="confirm.leave"),
        Binding("left,h,right,l", "app.focus_next", show=False, id="confirm.other"),
    ]
    DEFAULT_CSS = """
    Confirm > Vertical { border: round $warning; }
    Confirm Label { width: 100%; margin-bottom: 1; }
    Confirm Input { margin-bottom: 1; }
    Confirm Horizontal { height: auto; margin-bottom: 1; align-horizontal: center; }
    Confirm Button { margin: 0 1; }
    """
    AUTO_FOCUS = "Input, #no"

    def __init__(self, question: str, typed: str = "") -> None:
        """``typed``: word for a yes; without it key y is enough."""
        super().__init__()
        self._question, self._typed = question, typed
        self.ENTER = "yes" if typed else "choose"

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        return action != "say" or not self._typed  # y and n are letters if a word is asked for

    def content(self) -> ComposeResult:
        yield Label(self._question, markup=False)
        if self._typed:
            yield Input(placeholder=f"type {self._typed} to say yes", max_length=40)
        with Horizontal():
            yield Button("No", id="no", compact=True)
            yield Button("Yes", id="yes", variant="error", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.action_answer(event.button.id == "yes")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.action_answer(True)

    def action_answer(self, yes: bool) -> None:
        """A yes counts only with the word."""
        if yes and self._typed and self.query_one(Input).value.strip() != self._typed:
            self.query_one(Input).add_class("-invalid")
        else:
            self.dismiss(yes)

    action_say = action_answer


def new_key(tenant: str) -> Ask:
    """Asks for a new API key's tenant (``tenant`` is proposed) and name."""

    def answer(values: Sequence[str], choice: str) -> tuple[str, str]:
        if not values[0]:
            raise ConfigError("A key is for a tenant.")
        return values[0], values[1]

    fields = [
        Field("tenant", "Tenant: the key may use what is this tenant's, and the base", tenant, 100),
        Field("name", "Name: which program or person gets it (may be empty)", longest=100),
    ]
    return Ask(fields, "make it", answer, heading="a key for the API")


@dataclass(frozen=True)
class Settings:
    """A model's manner in a chat."""

    manner: Manner
    system: str = ""


def chat_settings(now: Settings) -> Ask:
    """Asks for system message, temperature, turn length and truncation."""

    def answer(values: Sequence[str], choice: str) -> Settings:
        heat, tokens, *cut = (option.parse(text) for option, text in zip(OPTIONS, values[1:], strict=True))
        truncation = Truncation(top_p=cut[0], top_k=cut[1], min_p=cut[2])
        return Settings(replace(now.manner, temperature=heat, max_tokens=tokens, truncation=truncation), values[0])

    held = {**vars(now.manner), **vars(now.manner.truncation)}
    system = Field("system", "System message (another one begins a new conversation)", now.system, 10_000)
    options = [Field(each.name.replace("_", "-"), each.label, f"{held[each.name]:.7g}", 10) for each in OPTIONS]
    return Ask([system, *options], "apply", answer)


def export_adapter(what: str, folder: Path) -> Ask:
    """Asks for the folder of an export of ``what``. Answers with it, and if a GGUF and a whole model are wanted."""

    def answer(values: Sequence[str], choice: str) -> tuple[Path, bool, bool]:
        if not values[0] or "\x00" in values[0]:
            raise ConfigError("A folder must be named.")
        return Path(values[0]).expanduser(), "gguf" in choice, "model" in choice

    field = Field("folder", f"Export {what} into a folder, which must not exist yet.", str(folder), 4000)
    forms = {
        "adapter": "the adapter, for PEFT and vLLM",
        "adapter gguf": "the adapter, for llama.cpp and Ollama as well (GGUF)",
        "model": "the base with the adapter added, for any program",
        "model gguf": "the same, for llama.cpp and Ollama as well (GGUF)",
    }
    return Ask([field], "export", answer, choices=forms, asked="What is written?")


def export_rollouts(scopes: Mapping[str, str], file: Path) -> Ask:
    """Asks for rollouts (``scopes``: words by name) and a file, proposed as ``file``."""

    def answer(values: Sequence[str], choice: str) -> tuple[str, Path]:
        if not values[0]:
            raise ConfigError("A file must be named.")
        return choice, Path(values[0]).expanduser()

    field = Field("file", "One record per line; a .txt file gets plain text.", str(file), 500)
    return Ask([field], "write", answer, heading="export rollouts", choices=scopes, asked="What is written?")


def new_environment(home: Home) -> Ask:
    """Asks for name and shape of a new environment, and writes its template. Answers with its path."""

    def answer(values: Sequence[str], shape: str) -> Path:
        files = write_template(values[0], shape, home.create().plugins, home)
        return next(path for path in files if path.suffix == ".py")

    field = Field("name", "What is the environment called? Letters, digits and _.", longest=LONGEST)
    shapes = {name: f"{name:<8} {what}" for name, what in SHAPES.items()}
    return Ask([field], "write the template", answer, choices=shapes, asked="What does it do?")


class Explain(Dialog, Filtered):
    """Words and metrics: the list, and the current one in full."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "dismiss", "close", show=False, priority=True, id="explain.enter"),
        Binding("slash", "filter", "find", key_display="/", id="explain.find"),
        Binding("space", "more", "more", id="explain.more"),
        Binding("escape,q", "dismiss", "close", key_display="⏎ esc", id="explain.close"),
    ]
    DEFAULT_CSS = """
    Explain > Vertical { width: 96%; max-width: 100; height: 70%; min-height: 22; max-height: 96%; padding: 0; }
    Explain #both { height: 1fr; }
    Explain KeyBar { margin-left: 0; }
    Explain KeyedTable { width: 19; background: $surface; }
    Explain VerticalScroll { width: 1fr; padding: 0 1; }
    Explain #text { width: 100%; }
    """

    AUTO_FOCUS = "KeyedTable"

    def __init__(self, word: str = "") -> None:
        """``word``: any name of a term; empty: the list's start."""
        super().__init__("what words and metrics mean")
        self._word = word
        self._problem: dict[str, str] = {}
        """What is to be said next to a term, by its name."""

    def content(self) -> ComposeResult:
        yield FilterBar("drift, reward, held-out, staleness")
        with Horizontal(id="both"):
            yield KeyedTable()
            with VerticalScroll(can_focus=False):
                yield Static(id="text", markup=False)

    def on_mount(self) -> None:
        term = TERMS[0]
        try:
            term = find_term(self._word) if self._word else term
        except UnknownTerm as error:
            term = next(iter(error.near), term)
            self._problem[term.name] = f"{line(self._word, 40)} is not in this list: it is an environment's own figure."
        self._list(TERMS, term)

    def _list(self, terms: Sequence[Term], current: Term | None) -> None:
        rows = [Row(term.name, (Cell(term.name, "bold" if term.important else ""),)) for term in terms]
        self._table.show_rows((Column("term", 16),), rows)
        self._table.go(current and current.name)
        self._explain()

    @property
    def _table(self) -> KeyedTable:
        return self.query_one(KeyedTable)

    def _explain(self) -> None:
        parts = [Content.styled("No term is like that.", "$text-muted")]
        if term := next((term for term in TERMS if term.name == self._table.key), None):
            problem = self._problem.get(term.name, "")
            parts = [Content.styled(f"{problem}\n", "$text-warning")] if problem else []
            parts.append(Content.styled(term_heading(term), "bold $text-primary"))
            for label, words in paragraphs(term):
                parts.append(Content.assemble((f"\n{label}\n" if label else "", "$text-muted"), words))
        self.query_one("#text", Static).update(Content("\n").join(parts))
        self.query_one(VerticalScroll).scroll_home(animate=False)

    def on_virtual_list_moved(self) -> None:
        self._explain()

    def filter(self, text: str) -> None:
        terms = list(search(text))
        self.query_one(FilterBar).tell(f"{len(terms)} of {len(TERMS)}")
        self._list(terms, next(iter(terms), None))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "dismiss" or not isinstance(self.focused, FilterLine)

    def action_more(self) -> None:
        self.query_one(VerticalScroll).scroll_page_down(animate=False)


Drawn = Callable[[int], Content]
"""A text as lines of a given number of cells."""
_AROUND = 3


class Reading(Dialog):
    """Scrolls a text made for its width. Enter and esc close it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,escape,q", "dismiss", "close", key_display="⏎ esc", id="reading.close"),
        Binding("j", "scroll(1)", "scroll", key_display="j k", id="reading.down"),
        Binding("k", "scroll(-1)", "up", show=False, id="reading.up"),
        Binding("y", "copy", "copy", id="reading.copy"),
    ]
    DEFAULT_CSS = """
    Reading > Vertical { width: 96%; max-width: 130; height: auto; max-height: 100%; }
    Reading #legend { height: 1; color: $text-muted; }
    Reading VerticalScroll { height: auto; scrollbar-gutter: stable; }
    Reading #text { width: 100%; }
    """
    AUTO_FOCUS = "VerticalScroll"

    def __init__(
        self,
        heading: str,
        text: Drawn,
        legend: str = "",
        home: Home | None = None,
        load: Callable[[Reader], Drawn] | None = None,
        copy: Callable[[], object] | None = None,
    ) -> None:
        """``legend``: a line above that does not scroll. ``load`` reads another text of the home, once. ``copy``: what
        y does."""
        super().__init__(heading)
        self.text, self._legend, self._home, self._load, self._copy = text, legend, home, load, copy

    def content(self) -> ComposeResult:
        if self._legend:
            yield Static(self._legend, id="legend", markup=False)
        with VerticalScroll():
            yield Static(id="text", markup=False)

    def on_mount(self) -> None:
        if self._load is not None:
            Latest(self, self._read, self._came).ask(self._load)

    def _read(self, load: Callable[[Reader], Drawn]) -> Drawn:
        assert self._home is not None
        try:
            with opened_home(self._home) as reader:
                return load(reader)
        except Exception as error:  # of an invalid row; raised, it would end the application
            why = str(error) if isinstance(error, MarlaasError) else f"{type(error).__name__}: {error}"
            problem = Content.styled(plain(why), "$text-muted")
            return lambda width: problem

    def _came(self, text: Drawn) -> None:
        self.text = text
        self.draw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "copy":
            return self._copy is not None
        return action != "scroll" or (self.is_mounted and self.query_one(VerticalScroll).max_scroll_y > 0)

    def action_copy(self) -> None:
        if self._copy is not None:
            self._copy()

    def on_resize(self, event: Resize) -> None:
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        scrolled = self.query_one(VerticalScroll)
        scrolled.styles.max_height = max(1, self.size.height - _AROUND - bool(self._legend))
        self.query_one("#text", Static).update(self.text(max(1, scrolled.scrollable_content_region.width)))
        self.call_after_refresh(self.refresh_bindings)  # by then it is known whether the text scrolls

    def action_scroll(self, lines: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)


_SHOWN_ONCE = (
    "It is shown this once: the home keeps only its hash. Copy it now with y, or mark it with the mouse (shift held"
    " down). A program takes it as OPENAI_API_KEY or ANTHROPIC_API_KEY. x in view 8 revokes it."
)


def shown_key(app: App[Any], key: str, tenant: str) -> Reading:
    """A new API key, shown only now: the store keeps its hash. y copies it to the clipboard, to no file."""

    def about(width: int) -> Content:
        return Content.assemble((key, "bold $text-success"), "\n\n", _SHOWN_ONCE)

    def copy() -> None:
        app.copy_to_clipboard(key)
        app.notify("The key is copied to the clipboard, if your terminal lets programs do that.", markup=False)

    return Reading(f"a key for {line(tenant, 60)}", about, copy=copy)


def exported(app: MarlaasApp, folder: Path, text: str) -> Reading:
    """Use of an exported adapter: its ``USE.md``, copied by y."""
    shown = Content(plain(text))
    return Reading(
        f"how to use {line(str(folder))}", lambda width: shown, copy=partial(app.copy, text, "How to use it")
    )


def configuration(tasks: Sequence[int], settings: Sequence[Setting], compared: Sequence[str] = ()) -> Reading:
    """A column per task: dim defaults; marked choices and differences.

    ``tasks``: column numbers; ``compared``: score lines above the table.
    """
    of = f"configuration of task {tasks[0]}" if len(tasks) == 1 else f"configurations of {len(tasks)} tasks"
    scores = "".join(f"{text}\n" for text in (*compared, *([""] if compared else [])))
    differing = "   ≠ differs between tasks" if len(tasks) > 1 else ""
    return Reading(of, lambda width: Content(scores) + table(tasks, settings, width), f"● chosen{differing}")


def table(tasks: Sequence[int], rows: Sequence[Setting], width: int) -> Content:
    """A line per key."""
    key = min(34, max((cells(row.key) for row in rows), default=0) + 1, max(9, width // 2))
    each = max(9, (width - key - 2) // len(tasks) - 1)
    lines = []
    if len(tasks) > 1:
        names = " ".join(pad(f"task {task}", each) for task in tasks)
        lines.append(Content.styled(f"{' ' * (key + 2)}{names}", "bold"))
    for row in rows:
        mark = "≠" if row.differs else " " if row.default else "●"
        values = " ".join(pad(clip(value, each), each) for value in row.values)
        style = {"≠": "$text-warning", " ": "$text-muted"}.get(mark, "$text-primary")
        lines.append(Content.styled(f"{mark} {pad(clip(row.key, key - 1), key)}{values}".rstrip(), style))
    return Content("\n").join(lines)


LINES, CHARACTERS = 24, 2000
"""Most lines and characters of a rollout; the rollouts view has all."""


def findings_of(home: Home, task: TaskRow) -> Reading:
    """A task's findings, each with figures, advice and rollouts."""
    known = findings(task)

    def load(reader: Reader) -> Drawn:
        texts = {}
        for rollout in (each for finding in known for each in finding.rollouts):
            found = episodes.episode(reader, rollout)
            texts[rollout] = excerpt(episode_text(found), CHARACTERS, LINES) if found else "It is not stored any more."
        return partial(drawn_findings, known, texts)

    return Reading(f"what goes wrong in task {task.id}", partial(drawn_findings, known, {}), home=home, load=load)


def drawn_findings(findings: Sequence[Told], texts: Mapping[int, str], width: int) -> Content:
    """All findings with their rollouts; ``texts``: those already read, by id."""
    parts: list[Content] = []
    for finding in findings:
        style = "bold $text-warning" if finding.holds else "bold"
        parts += [
            Content.styled(f"{MARK} {finding.headline}" if finding.holds else finding.headline, style),
            Content(finding.evidence[:1].upper() + finding.evidence[1:]),
            *([Content(f"What to do: {finding.advice}")] if finding.advice else []),
        ]
        for rollout in finding.rollouts:
            parts += Content.styled(f"\nrollout {rollout}", "$text-muted"), Content(texts.get(rollout, "Reading …"))
        parts.append(Content(""))
    return Content("\n").join(parts)


_VERSION = 6
_NONE = (
    "No version of this policy has met another one yet, in plays that are stored.\n\n"
    "A policy meets others where several speak in an episode: other policies, a pool of its earlier versions,"
    ' a frozen one, or under [eval] with agents = { second = "player@0" }.'
)


def win_rates(home: Home, learner: Learner) -> Reading:
    """A policy's versions against others: a table per opponent."""

    def load(reader: Reader) -> Drawn:
        task = reader.task(learner.task)
        policies = task.policies if task else ()
        return partial(
            drawn_matrices, matrices(learning.matchups(reader, learner.task), policies, learner.policy or ONLY)
        )

    legend = "row against column: mean reward ± error, n episodes of both; · none"
    return Reading(f"win-rates of {learner.words}", lambda width: Content("Reading …"), legend, home, load)


def drawn_matrices(found: Sequence[Matrix], width: int) -> Content:
    """The tables, or why there are none."""
    tables = [drawn_win_rates(matrix, max(_VERSION + CELL, width)) for matrix in found]
    return Content("\n\n").join(tables) if tables else Content.styled(_NONE, "$text-muted")


def drawn_win_rates(matrix: Matrix, width: int) -> Content:
    """A table in lines of ``width`` cells: as many columns as fit, evenly sampled."""
    columns = matrix.columns_for((width - _VERSION) // CELL)
    left_out = len(matrix.columns) - len(columns)
    note = f"   ({left_out} of {len(matrix.columns)} columns have no room)" if left_out else ""
    head = "".join(pad(f"v{column}", CELL, right=True) for column in columns)
    lines = [
        Content.assemble((matrix.title, "bold"), (note, "$text-muted")),
        Content.styled(" " * _VERSION + head, "$text-muted"),
    ]
    for row in shown(matrix.rows, 300):
        cells = [matrix.cells.get((row, column)) for column in columns]
        if any(cells):
            parts = [(pad(cell_text(cell), CELL, right=True), _style(cell)) for cell in cells]
            lines.append(Content.assemble((pad(f"v{row}", _VERSION), "$text-muted"), *parts))
    return Content("\n").join(lines)


def _style(meeting: Meeting | None) -> str:
    """Marks a cell off one half by more than two standard errors."""
    if meeting is None:
        return "$text-disabled"
    if abs(meeting.mean - 0.5) <= 2 * meeting.stderr or meeting.games < 2:
        return ""
    return "$text-success" if meeting.mean > 0.5 else "$text-error"


_HELP_KEY, _ENTRY = 13, 36
_MOVES = ("up", "down", "first", "last", "top", "bottom", "left", "right", "page up", "page down")
HERE, EVERYWHERE, MOVING = "in this view", "in every view", "moving"
_MOVING = "arrows or h j k l, page up and page down; home or g to the top, end or G to the bottom; tab to the next pane"


@dataclass(frozen=True)
class KeyLine:
    """Keys of one action, by keyboard names."""

    section: str
    keys: str
    what: str
    enabled: bool


def key_lines(active: Iterable[tuple[ActiveBinding, str]]) -> list[KeyLine]:
    """Active keys by keyboard name, one line an action, by section; without those that move."""
    lines: dict[tuple[str, str], KeyLine] = {}
    for (node, binding, enabled, _), name in active:
        if not binding.description or binding.system or name.startswith("super+"):
            continue
        ours = bool(binding.id) or node.parent is None or "copy" in binding.action
        if not ours or binding.description in _MOVES:
            continue
        everywhere = not binding.id or node.parent is None or binding.id in ("view.back", "view.zoom", "app.help")
        section = EVERYWHERE if everywhere else HERE
        view = binding.action.startswith("open_view")
        what = "the views" if view else binding.description if binding.id else binding.description.lower()
        known = lines.get((section, what))
        names = known.keys.split() if known else []
        names = [*names[:1], "-", name] if view and names else list(dict.fromkeys([*names, name]))
        lines[section, what] = KeyLine(section, " ".join(names), what, enabled)
    return list(lines.values())


class KeysHelp(Reading):
    """The keys of a view."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "words", "what words and metrics mean", id="help.words"),
        Binding("question_mark", "dismiss", "close", show=False, id="help.close"),
    ]
    DEFAULT_CSS = """
    KeysHelp > Vertical { width: 80; max-width: 100%; }
    KeysHelp.-wide > Vertical { width: 118; }
    """

    def __init__(self, title: str, text: str, lines: Sequence[KeyLine]) -> None:
        super().__init__(title, partial(help_text, text, lines))

    def action_words(self) -> None:
        self.app.switch_screen(Explain())


def help_text(text: str, lines: Sequence[KeyLine], width: int) -> Content:
    """What the view is, then keys in as many columns as fit."""
    parts = [part for each in text.split("\n\n") if each for part in (Content("\n".join(sentences(each))), Content(""))]
    columns = max(1, width // _ENTRY)
    for section in (HERE, EVERYWHERE):
        shown_keys = [line for line in lines if line.section == section]
        if not shown_keys:
            continue
        parts.append(Content.styled(section, "$text-accent"))
        rows, key = -(-len(shown_keys) // columns), min(_HELP_KEY, max(cells(line.keys) for line in shown_keys))
        room = width // columns - 1 - key - 1
        parts += [Content(" ").join(_entry(line, key, room) for line in shown_keys[row::rows]) for row in range(rows)]
    return Content("\n").join([*parts, Content.styled(MOVING, "$text-accent"), Content(_MOVING)])


def sentences(paragraph: str) -> list[str]:
    """A paragraph's lines; one without a sentence's end joins the next."""
    return [" ".join(each.split()) for each in re.split(r"(?<=[.])\n", paragraph)]


def _entry(line: KeyLine, key: int, room: int) -> Content:
    what = pad(clip(line.what, room), room)
    keys = pad(clip(line.keys, key), key, right=True)
    return Content.assemble((keys, "bold"), " ", (what, "" if line.enabled else "$text-muted"))
