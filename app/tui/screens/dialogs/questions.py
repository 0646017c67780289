"""Dialogs that ask: for a yes, a number, tasks, an export, a new environment."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Button, Input, Label, RadioButton, RadioSet, Static

from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.rollout.talk import Manner
from marlaas.engine.samplers.sampling import Truncation
from marlaas.engine.store.rows import TaskRow

from ....lists.filters import Query, matches, parse
from ....lists.lines import Cell, Column, Learner, Row
from ....operations.environments.templates import LONGEST, SHAPES, write_template
from ....rollouts.answers import wrapped
from ....text.format import clip, line, plain, score
from ....text.tasks import short_name, state_word
from ...chat.sampling_options import max_tokens, min_p, temperature, top_k, top_p
from ...context.editor import opened
from ...widgets.bars import FilterBar, FilterLine
from ...widgets.keyed_table import KeyedTable
from .dialog import Dialog
from .readings import Reading

if TYPE_CHECKING:
    from ....app import MarlaasApp


# Dialogs that ask: a line of text, yes or no, a key, an export, the manner of a chat.

# A question with a line of text as its answer.


class Ask(Dialog[str]):
    """Answers with what was typed; with an empty text where the person left."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "close", key_display="esc", id="ask.leave")]
    DEFAULT_CSS = "Ask Label { width: 100%; margin-bottom: 1; }"

    def __init__(self, question: str, text: str = "", enter: str = "done") -> None:
        """``text`` is the answer to begin with; ``enter`` explains what giving it does."""
        super().__init__()
        self.ENTER = enter
        self._question = question
        self._text = text

    def content(self) -> ComposeResult:
        """Lay out question and line."""
        yield Label(self._question, markup=False)
        yield Input(self._text, max_length=1000, select_on_focus=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer with the line."""
        event.stop()
        self.dismiss(event.value.strip())

    def action_leave(self) -> None:
        """Leave without an answer."""
        self.dismiss("")


# A question with yes or no; the answer is no unless the person says yes.


class Confirm(Dialog[bool]):
    """Answers with True or False. What cannot be undone asks for a word to be typed; enter then means yes."""

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
        """``typed`` is the word to type for a yes; without it the key y is enough."""
        super().__init__()
        self._question = question
        self._typed = typed
        self.ENTER = "yes" if typed else "choose"

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Whether a key means something: y and n are letters if a word is asked for."""
        return action != "say" or not self._typed

    def content(self) -> ComposeResult:
        """Lay out question and buttons."""
        yield Label(self._question, markup=False)
        if self._typed:
            yield Input(placeholder=f"type {self._typed} to say yes", max_length=40)
        with Horizontal():
            yield Button("No", id="no", compact=True)
            yield Button("Yes", id="yes", variant="error", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answer with the button that was chosen."""
        self.action_answer(event.button.id == "yes")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer yes if the word is right."""
        self.action_answer(True)

    def action_say(self, yes: bool) -> None:
        """Answer by a letter."""
        self.action_answer(yes)

    def action_answer(self, yes: bool) -> None:
        """Answer; a yes counts only with the word that was asked for."""
        if yes and self._typed and self.query_one(Input).value.strip() != self._typed:
            self.query_one(Input).add_class("-invalid")
            return
        self.dismiss(yes)


# Asks for whom a key of the API is to be, and what it is called.

LONGEST_ANSWER = 100
"""Most characters of a tenant and of a name."""


@dataclass(frozen=True)
class KeyWish:
    """What the person wants."""

    tenant: str
    name: str
    """May be empty."""


class NewKey(Dialog[KeyWish | None]):
    """Answers with the wish, or with None if the person left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.focus_next", "next", id="api.next"),
        Binding("escape", "leave", "close", key_display="esc", id="api.leave"),
    ]
    DEFAULT_CSS = """
    NewKey Label { width: 100%; }
    NewKey Input { margin-bottom: 1; }
    """
    AUTO_FOCUS = "Input"
    ENTER = "make it"

    def __init__(self, tenant: str) -> None:
        """``tenant`` is proposed."""
        super().__init__()
        self._tenant = tenant

    def heading(self) -> str:
        """What is made."""
        return "a key for the API"

    def content(self) -> ComposeResult:
        """Lay out a field for each."""
        yield Label("Tenant: the key may use what is this tenant's, and the base", markup=False)
        yield Input(self._tenant, id="tenant", max_length=LONGEST_ANSWER, compact=True)
        yield Label("Name: which program or person gets it (may be empty)", markup=False)
        yield Input("", id="name", max_length=LONGEST_ANSWER, compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer, on enter in any field; a tenant must be named."""
        event.stop()
        tenant, name = (self.query_one(f"#{field}", Input) for field in ("tenant", "name"))
        if not tenant.value.strip():
            tenant.add_class("-invalid")
            tenant.focus()
            return
        self.dismiss(KeyWish(tenant.value.strip(), name.value.strip()))

    def action_leave(self) -> None:
        """Leave and make nothing."""
        self.dismiss(None)


# A new key of the API, shown this once: only its hash is kept.


class ShownKey(Reading):
    """Shows the key; y copies it, to the clipboard alone."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("y", "copy", "copy the key", id="api.copy_key")]
    TALL = False

    def __init__(self, key: str, tenant: str) -> None:
        super().__init__()
        self._key, self._tenant = key, tenant

    def heading(self) -> str:
        """Whose key it is."""
        return f"a key for {line(self._tenant, 60)}"

    def text(self, width: int) -> Content:
        """The key by itself in a line, so that a mouse marks it whole, and what is to be known of it."""
        about = (
            "It is shown this once: the home keeps only its hash. Copy it now with y, or mark it with the mouse (shift"
            " held down). A program takes it as OPENAI_API_KEY or ANTHROPIC_API_KEY. x in view 8 revokes it."
        )
        told = Content("\n").join([Content(about[start:stop]) for start, stop in wrapped(about, width)])
        return Content("\n").join([Content.styled(self._key, "bold $text-success"), Content(""), told])

    def action_copy(self) -> None:
        """Copy the key; no file gets it, as other copies do."""
        self.app.copy_to_clipboard(self._key)
        self.notify("The key is copied to the clipboard, if your terminal lets programs do that.", markup=False)


# Asks how the model is to speak: its system message, temperature, length of a turn, and which tokens may be drawn.

LONGEST_SYSTEM = 10_000
"""Most characters of a system message."""


@dataclass(frozen=True)
class Settings:
    """What the person can set."""

    manner: Manner
    system: str = ""


class MannerDialog(Dialog[Settings | None]):
    """Answers with the settings, or with None if the person left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.focus_next", "next", id="manner.next"),
        Binding("escape", "leave", "close", key_display="esc", id="manner.leave"),
    ]
    DEFAULT_CSS = """
    MannerDialog Label { width: 100%; }
    MannerDialog Input { margin-bottom: 1; }
    MannerDialog #problem { color: $text-error; }
    """
    ENTER = "apply"

    def __init__(self, now: Settings) -> None:
        super().__init__()
        self._now = now

    def content(self) -> ComposeResult:
        """Lay out a field for each."""
        manner = self._now.manner
        yield Label("System message (another one begins a new conversation)", markup=False)
        yield Input(self._now.system, id="system", max_length=LONGEST_SYSTEM, select_on_focus=False, compact=True)
        yield Label("Temperature (0 is greedy)", markup=False)
        yield Input(f"{manner.temperature:g}", id="temperature", max_length=10, compact=True)
        yield Label("Tokens of an answer", markup=False)
        yield Input(str(manner.max_tokens), id="tokens", max_length=10, compact=True)
        yield Label("Likeliest tokens with this sum of probabilities (top-p; 1 is all)", markup=False)
        yield Input(f"{manner.truncation.top_p:g}", id="top-p", max_length=10, compact=True)
        yield Label("This many of the likeliest tokens (top-k; 0 is all)", markup=False)
        yield Input(str(manner.truncation.top_k), id="top-k", max_length=10, compact=True)
        yield Label("Tokens this likely relative to the likeliest (min-p; 0 is all)", markup=False)
        yield Input(f"{manner.truncation.min_p:g}", id="min-p", max_length=10, compact=True)
        yield Label("", id="problem", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer with the settings, on enter in any field."""
        try:
            manner = replace(
                self._now.manner,
                temperature=temperature(self._said("temperature")),
                max_tokens=max_tokens(self._said("tokens")),
                truncation=Truncation(
                    top_k(self._said("top-k")), top_p(self._said("top-p")), min_p(self._said("min-p"))
                ),
            )
        except ArgumentTypeError as error:
            self.query_one("#problem", Label).update(f"{error}.")
            return
        self.dismiss(Settings(manner, self._said("system")))

    def _said(self, field: str) -> str:
        return self.query_one(f"#{field}", Input).value.strip()

    def action_leave(self) -> None:
        """Leave without a change."""
        self.dismiss(None)


# Where an adapter is to be written, and whether llama.cpp is to read it as well.


@dataclass(frozen=True)
class ExportWish:
    """What the person wants."""

    folder: Path
    gguf: bool


class ExportDialog(Dialog[ExportWish | None]):
    """Answers with the wish, or with None if the person left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+g", "answer(True)", "PEFT and GGUF", id="export.gguf"),
        Binding("escape", "leave", "close", key_display="esc", id="export.leave"),
    ]
    DEFAULT_CSS = "ExportDialog Label, ExportDialog Input { width: 100%; margin-bottom: 1; }"
    ENTER = "PEFT"

    def __init__(self, what: str, folder: Path) -> None:
        """``what`` is exported, and ``folder`` is proposed."""
        super().__init__()
        self._what = what
        self._folder = folder

    def content(self) -> ComposeResult:
        """Lay out a sentence and the folder."""
        yield Label(f"Export {self._what} as a PEFT folder. The folder must not exist yet.", markup=False)
        yield Input(str(self._folder), max_length=4000, select_on_focus=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Export on enter."""
        self.action_answer(False)

    def action_leave(self) -> None:
        """Leave and write nothing."""
        self.dismiss(None)

    def action_answer(self, gguf: bool) -> None:
        """Answer with the folder, if one is named."""
        field = self.query_one(Input)
        said = field.value.strip()
        if not said or "\x00" in said:
            field.add_class("-invalid")
            return
        self.dismiss(ExportWish(Path(said).expanduser(), gguf))


# How to use an adapter that was exported: the lines of its ``USE.md``.

_INSET, _FURTHER = 2, 4
"""Cells that lines of code are set in, and how much further what continues from them."""


class Exported(Reading):
    """Shows the lines; y copies them."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("y", "copy", "copy", id="exported.copy")]

    def __init__(self, folder: Path, text: str) -> None:
        """``text`` is that of ``USE.md`` in the folder."""
        super().__init__()
        self._folder, self._text = folder, text

    def heading(self) -> str:
        """Which folder it is about."""
        return f"how to use {line(str(self._folder))}"

    def text(self, width: int) -> Content:
        """The lines."""
        return drawn(self._text, width)

    def action_copy(self) -> None:
        """Copy the lines."""
        cast("MarlaasApp", self.app).copy(self._text, "How to use it")


def drawn(text: str, width: int) -> Content:
    """The Markdown of ``USE.md`` with its headings and its lines of code set apart."""
    parts, code = [], False
    for each in plain(text).splitlines():
        if each.startswith("```"):
            code = not code
        elif code:
            parts.append(Content.styled(_code(each, width), "$text-success"))
        elif each.startswith("#"):
            parts.append(Content.styled(each.lstrip("# "), "bold $text-primary"))
        else:
            parts.append(Content(each))
    return Content("\n").join(parts)


def _code(text: str, width: int) -> str:
    """A line of code, set in; what does not fit continues below, further in, so that it looks like no line of its
    own."""
    body = text.lstrip(" ")
    first = " " * (_INSET + len(text) - len(body))
    if Content(first + body).cell_length <= width:
        return first + body
    rest = first + " " * _FURTHER
    return first + f"\n{rest}".join(body[start:stop] for start, stop in wrapped(body, width - len(rest)))


# Asks which rollouts to write into which file.


@dataclass(frozen=True)
class Export:
    """What somebody wants to write, and where."""

    scope: str
    file: Path


class Choice(RadioButton):
    """One of several: the sign, and not its colour alone, names which is chosen."""

    CHOSEN, OTHER = "●", "○"
    BUTTON_INNER = OTHER

    def watch_value(self) -> None:
        """Show the sign of the value."""
        super().watch_value()
        self.BUTTON_INNER = self.CHOSEN if self.value else self.OTHER
        self.refresh()


class ExportRollouts(Dialog[Export | None]):
    """Answers with what to write, or None. Enter in the name writes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.focus_next", "next", id="export.next"),
        Binding("escape", "leave", "close", key_display="esc", id="export.leave"),
    ]
    DEFAULT_CSS = """
    ExportRollouts RadioSet { width: 100%; margin-bottom: 1; }
    ExportRollouts #hint { color: $text-muted; margin-bottom: 1; }
    """
    ENTER = "write (in the name)"

    def __init__(self, scopes: Mapping[str, str], file: Path) -> None:
        """``scopes``: what may be written, with its name; ``file``: the name that is proposed."""
        super().__init__()
        self._scopes = dict(scopes)
        self._file = file

    def heading(self) -> str:
        """What is done."""
        return "export rollouts"

    def content(self) -> ComposeResult:
        """Lay out the choice and the file."""
        with RadioSet():
            for place, words in enumerate(self._scopes.values()):
                yield Choice(words.replace("[", "\\["), value=place == 0)
        yield Input(str(self._file), max_length=500, select_on_focus=False)
        yield Label("One record per line; a .txt file gets plain text.", id="hint")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer with what to write."""
        event.stop()
        if event.value.strip():
            place = max(0, self.query_one(RadioSet).pressed_index)
            self.dismiss(Export(list(self._scopes)[place], Path(event.value.strip()).expanduser()))

    def action_leave(self) -> None:
        """Leave and write nothing."""
        self.dismiss(None)


# Chooses a few tasks or policies: the most similar ones come first, a filter narrows the list, space marks.

_COLUMNS = (
    Column("", 1),
    Column("id", 5, right=True),
    Column("tenant", 12),
    Column("task", 20),
    Column("environment", 11),
    Column("state", 11),
    Column("reward", 6, right=True),
)
_SHOWN = 300
"""Tasks in the list; the filter finds the others."""


class ChooseTasks(Dialog[tuple[Learner, ...] | None]):
    """Answers with the chosen tasks or policies, or with None if the person left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "mark", "mark", id="choose.mark"),
        Binding("enter", "done", "done", priority=True, id="choose.done"),
        Binding("slash", "filter", "filter", key_display="/", id="choose.filter"),
        Binding("backspace", "none", "mark none", id="choose.none"),
        Binding("escape", "leave", "close", key_display="esc", id="choose.leave"),
    ]
    DEFAULT_CSS = """
    ChooseTasks > Vertical { width: 80; max-width: 98%; height: 80%; padding: 0; }
    ChooseTasks #question { height: 1; padding: 0 1; }
    ChooseTasks KeyBar { margin-left: 0; }
    """
    AUTO_FOCUS = "KeyedTable"

    def __init__(self, question: str, rows: Mapping[Learner, TaskRow], chosen: Sequence[Learner], most: int) -> None:
        """``rows`` in the order of the list, each as its learner sees it; ``most`` of them may be chosen."""
        super().__init__()
        self._question, self._most = question, most
        order = sorted(rows, key=lambda each: each not in chosen)
        self._rows = {str(place): (each, rows[each]) for place, each in enumerate(order)}
        """Rows by their key in the table."""
        self._before, self._chosen = tuple(chosen), list(chosen)
        self._query = Query()

    def content(self) -> ComposeResult:
        """Lay out question, filter and list."""
        yield Static(self._question, id="question", markup=False)
        yield FilterBar("state:running tenant:bio reward>0.5 name")
        yield KeyedTable()

    def on_mount(self) -> None:
        """Show all tasks."""
        self._show()

    def _show(self) -> None:
        keys = [key for key, (_, task) in self._rows.items() if matches(self._query, task)]
        self.query_one(KeyedTable).show_rows(_COLUMNS, [self._row(key) for key in keys[:_SHOWN]])
        more = f", {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
        self.query_one(FilterBar).tell(f"{len(keys)} of {len(self._rows)}{more}")

    def _row(self, key: str) -> Row:
        each, task = self._rows[key]
        mark = "●" if each in self._chosen else ""
        name = f"{clip(each.policy, 12)} of {line(task.name, 20)}" if each.policy else short_name(task, 20)
        who = (str(task.id), line(task.tenant, 12), clip(name, 20), line(task.environment, 11))
        texts = (mark, *who, state_word(task.state), score(task.reward))
        style = "$text-primary" if mark else ""
        return Row(key, tuple(Cell(text, style) for text in texts))

    def action_mark(self) -> None:
        """Mark or unmark the line under the cursor, and move on."""
        table = self.query_one(KeyedTable)
        each = self._current
        if each is None:
            return
        if each in self._chosen:
            self._chosen.remove(each)
        elif len(self._chosen) < self._most:
            self._chosen.append(each)
        else:
            self.notify(f"{self._most} at most; take a mark away first.", severity="warning", markup=False)
            return
        self._show()
        table.action_cursor_down()

    @property
    def _current(self) -> Learner | None:
        key = self.query_one(KeyedTable).key
        return self._rows[key][0] if key is not None else None

    def action_none(self) -> None:
        """Remove all marks."""
        self._chosen.clear()
        self._show()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave enter to the filter while one types there."""
        return action != "done" or not isinstance(self.focused, FilterLine)

    def action_done(self) -> None:
        """Answer with the marked ones, or without marks with the one under the cursor."""
        if not self._before and not self._chosen and self._current is not None:
            self._chosen.append(self._current)
        self.dismiss(tuple(self._chosen))

    def action_leave(self) -> None:
        """Leave without a change."""
        self.dismiss(None)

    def action_filter(self) -> None:
        """Open the filter."""
        self.query_one(FilterBar).open()

    def on_filter_bar_changed(self, message: FilterBar.Changed) -> None:
        """Filter with every letter; while the filter makes no sense yet, the list stays."""
        try:
            self._query = parse(message.text)
        except ConfigError as error:
            self.query_one(FilterBar).tell(error.message, bad=True)
            return
        self._show()

    def on_filter_bar_left(self, message: FilterBar.Left) -> None:
        """Go back to the list."""
        self.query_one(KeyedTable).focus()


# Asks for the name and shape of a new environment, and writes its template if that name is free.


class NewEnvironment(Dialog[Path | None]):
    """Answers with the path of what was written; with None if the person left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "shape(-1)", "shape", key_display="↑↓", priority=True, id="new.up"),
        Binding("down", "shape(1)", "shape", show=False, priority=True, id="new.down"),
        Binding("escape", "leave", "close", key_display="esc", id="new.leave"),
    ]
    DEFAULT_CSS = """
    NewEnvironment Label { width: 100%; }
    NewEnvironment Label#problem { color: $text-error; }
    NewEnvironment #shapes { padding: 0 1; }
    """
    AUTO_FOCUS = "Input"
    ENTER = "write the template"

    def __init__(self, home: Home) -> None:
        super().__init__()
        self._home = home
        self._shape = 0

    def content(self) -> ComposeResult:
        """Lay out name, shapes and a place for errors."""
        yield Label("What is the environment called? Letters, digits and _.", markup=False)
        yield Input(max_length=LONGEST)
        yield Label("What does it do?", markup=False)
        yield Static(self._shapes(), id="shapes")
        yield Label("", id="problem", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Write the template, or show why it cannot be written."""
        event.stop()
        shape = list(SHAPES)[self._shape]
        try:
            written = write_template(event.value.strip(), shape, self._home.create().plugins, self._home)
        except ConfigError as error:
            self.query_one("#problem", Label).update(line(str(error), 300))
            return
        self.dismiss(next(path for path in written if path.suffix == ".py"))

    def action_shape(self, step: int) -> None:
        """Choose another shape."""
        self._shape = (self._shape + step) % len(SHAPES)
        self.query_one("#shapes", Static).update(self._shapes())

    def action_leave(self) -> None:
        """Leave and write nothing."""
        self.dismiss(None)

    def _shapes(self) -> Content:
        """A line for each shape, the chosen one marked."""
        rows = []
        for place, (name, what) in enumerate(SHAPES.items()):
            mark, style = ("▸", "bold") if place == self._shape else (" ", "")
            rows.append(Content.styled(f"{mark} {name:<8} {what}", style))
        return Content("\n").join(rows)


def write_environment(app: MarlaasApp, then: str = "", *, tell: Callable[[Path], None] = lambda path: None) -> None:
    """Ask for name and shape, write the template, open it in the editor; the notice about it ends with ``then``.

    ``tell`` hears of what was written before the editor opens.
    """

    def written(path: Path | None) -> None:
        if path is not None:
            tell(path)
            saved = opened(app, path)
            app.say(f"{path} is {'saved' if saved else 'written, and runs as it is'}.{then and f' {then}'}")

    app.push_screen(NewEnvironment(app.home), written)
