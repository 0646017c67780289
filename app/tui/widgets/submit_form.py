"""The form for tasks: its fields by table, several policies, and what the form stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import DescendantBlur, DescendantFocus
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Collapsible, Input, OptionList, Static
from textual.widgets.option_list import Option

from ...text.format import cells, excerpt, line, pad, plain
from ..form.form import (
    AGENTS,
    BAD,
    DOUBTFUL,
    FIRST,
    FOLDED,
    GOOD,
    POLICIES,
    Checked,
    Choice,
    Form,
    FormField,
    chosen,
    fitting,
    name_fields,
    taken,
    task_fields,
)

# The values that may be chosen in a field, in a list that lies below it while one types.

_MARKS = {GOOD: ("● ", "$text-success"), DOUBTFUL: ("! ", "$text-warning"), BAD: ("✗ ", "$text-error"), "": ("", "")}
_WIDEST = 30
"""Most cells of a value, behind which its note begins."""


class ChoiceList(OptionList, can_focus=False):
    """Shows choices; the keys are the field's."""

    DEFAULT_CSS = """
    ChoiceList { display: none; overlay: screen; constrain: none inflect; width: 1fr; height: auto; max-height: 8;
                 padding: 0 1; border: none; background: $panel;
                 text-wrap: nowrap; text-overflow: ellipsis; }
    ChoiceList.-open { display: block; }
    """

    def __init__(self) -> None:
        super().__init__(markup=False, compact=True)
        self._choices: Sequence[Choice] = ()

    @property
    def choice(self) -> Choice | None:
        """The choice under the cursor, if the list is open and has a cursor."""
        place = self.highlighted
        return self._choices[place] if self.is_open and place is not None and place < len(self._choices) else None

    @property
    def is_open(self) -> bool:
        """Whether it is to be seen."""
        return self.has_class("-open")

    def show(self, choices: Sequence[Choice], first: bool) -> None:
        """Show these, with the cursor on the ``first`` or on none."""
        self._choices = choices
        width = min(_WIDEST, max((cells(choice.value) for choice in choices), default=0))
        self.clear_options()
        self.add_options([Option(_line(choice, width)) for choice in choices])
        self.highlighted = 0 if first and choices else None
        self.set_class(bool(choices), "-open")

    def close(self) -> None:
        """Hide it."""
        self.remove_class("-open")

    def move(self, by: int) -> bool:
        """Move the cursor; returns False at either end, if it cannot."""
        place = (-1 if self.highlighted is None else self.highlighted) + by
        if not 0 <= place < len(self._choices):
            return False
        self.highlighted = place
        return True


def _line(choice: Choice, width: int) -> Content:
    note = f"  {line(choice.note, 120)}" if choice.note else ""
    return Content.assemble(_MARKS[choice.standing], pad(line(choice.value, width), width), (note, "$text-muted"))


# One key of the form: its name, what was typed, what is allowed or was chosen, and below it what is wrong.

LONGEST = 4000
"""Most characters of a field; a paste of megabytes is refused."""
Choices = Callable[[FormField], Sequence[Choice]]
"""What may be chosen in a field as the form stands now."""
_STYLES = {BAD: "$text-error", DOUBTFUL: "$text-warning"}


class FieldRow(Widget):
    """A field; sends ``Typed`` with every letter and ``Visited`` when the cursor comes to it.

    If values can be chosen, typing opens a list of those that fit. An empty field whose choices say something of
    themselves opens it at once.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "move(1)", show=False, id="submit.choose_next"),
        Binding("up", "move(-1)", show=False, id="submit.choose_previous"),
        Binding("escape", "close", show=False, id="submit.choose_nothing"),
        Binding("ctrl+@,ctrl+space", "list", "list all", show=False, id="submit.list"),  # terminals send either
    ]
    DEFAULT_CSS = """
    FieldRow { height: auto; }
    FieldRow Horizontal { height: auto; }
    FieldRow .name { width: 20; }
    FieldRow Input { width: 26; }
    FieldRow .allowed { width: 1fr; height: auto; padding-left: 1; color: $text-muted; }
    FieldRow .-told { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    FieldRow .problem { height: auto; padding-left: 2; color: $text-error; display: none; }
    FieldRow.-wrong .problem { display: block; }
    FieldRow.-choosing .problem { display: none; }
    FieldRow.-wrong .name { color: $text-error; }
    FieldRow.-missing .name { color: $text-warning; }
    """

    @dataclass
    class Typed(Message):
        """The text has changed."""

        key: str
        text: str

    @dataclass
    class Visited(Message):
        """The cursor has come to the field."""

        field: FormField

    def __init__(self, field: FormField, text: str, choices: Choices) -> None:
        super().__init__()
        self.field = field
        self._text = _cleaned(text)
        self._choices = choices
        self._taken = ""
        """The text that a choice has left: it is no wish to choose again."""

    def compose(self) -> ComposeResult:
        """Lay out a line, and one more if something is wrong."""
        with Horizontal():
            yield Static(Content(line(self.field.name, 19)), classes="name")
            yield Input(
                self._text,
                placeholder=line(self.field.default, 40),
                max_length=LONGEST,
                select_on_focus=False,
                compact=True,
            )
            yield Static(self._hint(), classes="allowed -told" if self._choices(self.field) else "allowed")
        yield ChoiceList()
        yield Static(classes="problem")

    def tell(self, problem: str, missing: bool) -> None:
        """Show what is wrong with the field; empty for nothing."""
        if self.has_class("-wrong") or problem:
            for below in self.query(".problem").results(Static):  # none while it is being taken away
                below.update(Content(plain(problem)))
        self.set_class(bool(problem), "-wrong")
        self.set_class(missing, "-missing")

    def _hint(self) -> Content:
        """What the chosen value is, or what is allowed."""
        choices = self._choices(self.field)
        found = chosen(choices, self._text) if self._text else None
        if found is not None and found.note:
            return Content.styled(line(found.note, 120), _STYLES.get(found.standing, ""))
        if any(choice.note for choice in choices):
            return Content(f"{len(choices)} to choose from" if len(choices) > 1 else "1 to choose")
        return Content(line(self.field.allowed or ", ".join(choice.value for choice in choices), 120))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Report every change, without characters that a terminal would obey."""
        event.stop()
        if (cleaned := _cleaned(event.value)) != event.value:
            event.input.value = cleaned  # causes another change
            return
        self._text = cleaned
        if choices := self._choices(self.field):
            self.query_one(".allowed", Static).update(self._hint())
            if event.input.has_focus and cleaned != self._taken:
                self._open(choices)
        self._taken = ""
        self.post_message(self.Typed(self.field.key, cleaned))

    # Choosing.

    @property
    def _strict(self) -> bool:
        """Whether nothing but a choice makes sense."""
        field = self.field
        return bool(field.choices) or field.kind == "bool" or field.table == AGENTS or field.name == "environment"

    def _open(self, choices: Sequence[Choice], typed: str | None = None) -> None:
        typed = self._text if typed is None else typed
        fit = () if chosen(choices, typed) else fitting(choices, typed)
        listed = self.query_one(ChoiceList)
        listed.show(fit, first=self._strict and bool(typed))
        self.set_class(listed.is_open, "-choosing")  # what is wrong is said once nobody chooses any more

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the arrows and esc to the form while no list is open."""
        if action in ("move", "close"):
            return self.is_mounted and self.query_one(ChoiceList).is_open
        return action != "list" or bool(self._choices(self.field))

    def action_move(self, by: int) -> None:
        """Go through the list, and beyond its ends to the next field."""
        if not self.query_one(ChoiceList).move(by):
            self.screen.focus_next() if by > 0 else self.screen.focus_previous()

    def action_close(self) -> None:
        """Close the list; the text stays."""
        self.query_one(ChoiceList).close()
        self.remove_class("-choosing")

    def action_list(self) -> None:
        """List all choices, whatever was typed."""
        self._open(self._choices(self.field), "")

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Take the choice that was clicked."""
        event.stop()
        self._take()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the choice under the cursor and go on to the next field on enter; nothing is submitted."""
        event.stop()
        self._take()
        self.screen.focus_next()

    def _take(self) -> None:
        listed = self.query_one(ChoiceList)
        if choice := listed.choice:
            field = self.query_one(Input)
            self._taken = field.value = taken(self._text, choice)
            field.cursor_position = len(field.value)
        self.action_close()

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        """Report that the cursor is here."""
        self.post_message(self.Visited(self.field))
        choices = self._choices(self.field)
        if not self._text and any(choice.note for choice in choices):
            self._open(choices)

    def on_descendant_blur(self, event: DescendantBlur) -> None:
        """Close the list of a field that was left."""
        self.action_close()


def _cleaned(text: str) -> str:
    return plain(text).replace("\n", " ")


# A table of the form that folds: its lines are made when it is first unfolded.

_TITLES = {
    "train": "train: how it learns",
    "sampling": "sampling: how it writes",
    "eval": "eval: how it is measured",
    "policy": "policy: the adapter",
    "data": "data: rows of its own",
    "queue": "queue: priority, dependencies",
    "keep": "keep: versions that stay on the disk",
    "watch": "watch: what to do when learning goes wrong",
    "": "more",
}


class Section(Widget):
    """The fields of one table below its title, which shows how many of them are set or wrong."""

    DEFAULT_CSS = """
    Section { height: auto; }
    Section Collapsible { background: transparent; border: none; padding: 0; }
    Section Collapsible Contents { padding: 0 0 0 2; }
    Section #rows { height: auto; }
    """

    def __init__(self, table: str, fields: Sequence[FormField], texts: Mapping[str, str], choices: Choices) -> None:
        super().__init__()
        self._choices = choices
        self.table = table
        self.fields = fields
        self._texts = texts
        """The texts of the fields, as last reported."""

    def compose(self) -> ComposeResult:
        """Lay out the title, folded, without lines."""
        with Collapsible(title=_TITLES.get(self.table, self.table)):
            yield Vertical(id="rows")

    @property
    def keys(self) -> set[str]:
        """The keys of its fields."""
        return {field.key for field in self.fields}

    async def unfold(self) -> None:
        """Show its lines."""
        self.query_one(Collapsible).collapsed = False
        await self._fill()

    async def on_collapsible_expanded(self, event: Collapsible.Expanded) -> None:
        """Make the lines."""
        event.stop()
        await self._fill()

    async def _fill(self) -> None:
        rows = self.query_one("#rows", Vertical)
        if not rows.children:
            texts = self._texts
            await rows.mount_all([FieldRow(field, texts.get(field.key, ""), self._choices) for field in self.fields])

    def tell(self, problems: Mapping[str, str], texts: Mapping[str, str]) -> None:
        """Show in the title how many fields are set or wrong."""
        self._texts = texts
        wrong = len(self.keys & problems.keys())
        filled = sum(bool(self._texts.get(key, "").strip()) for key in self.keys)
        notes = ", ".join(f"{count} {what}" for count, what in ((filled, "set"), (wrong, "wrong")) if count)
        title = _TITLES.get(self.table, self.table) + (f" ({notes})" if notes else "")
        for collapsible in self.query(Collapsible):  # none while it is being taken away
            if collapsible.title != title:
                collapsible.title = title
            collapsible.set_class(bool(wrong), "-wrong")


# Several policies in the form: their names, who acts as which agent, and a table that folds for each of them.

_TITLE = "policies: several that learn or play together"


class Policies(Widget):
    """Its lines follow the names that are typed into its first."""

    DEFAULT_CSS = """
    Policies { height: auto; }
    Policies > Collapsible { background: transparent; border: none; padding: 0; }
    Policies > Collapsible > Contents { padding: 0 0 0 2; }
    Policies Vertical { height: auto; }
    """

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        self._choices = choices
        self._form = Form()

    def compose(self) -> ComposeResult:
        """Lay out the title, folded, without lines."""
        with Collapsible(title=_TITLE):
            yield Vertical(id="names")
            yield Vertical(id="speakers")
            yield Vertical(id="tables")

    @property
    def keys(self) -> set[str]:
        """The keys that have a line here, now or once it is unfolded."""
        return {POLICIES, AGENTS, *(field.key for field in self._form.named)}

    async def show(self, form: Form) -> None:
        """Bring the lines up to date; a form with several policies is unfolded."""
        begun, self._form = bool(self._form.policies), form
        if form.policies and not begun:
            self.query_one(Collapsible).collapsed = False
        if not self.query_one(Collapsible).collapsed:
            await self._fill()

    async def unfold(self, key: str) -> None:
        """Make the line of a key, and show it."""
        self.query_one(Collapsible).collapsed = False
        await self._fill()
        for section in self.query(Section):
            if key in section.keys:
                await section.unfold()

    async def on_collapsible_expanded(self, event: Collapsible.Expanded) -> None:
        """Make the lines."""
        event.stop()
        await self._fill()

    async def _fill(self) -> None:
        form = self._form
        names = [field for field in name_fields() if field.key == POLICIES or not form.declared]
        await self._rows("names", names)
        await self._rows("speakers", [field for field in form.named if field.table == AGENTS])
        tables = self.query_one("#tables", Vertical)
        wanted = [f"{POLICIES}.{name}" for name in form.policies]
        if [section.table for section in tables.query_children(Section)] != wanted:
            await tables.remove_children()
            await tables.mount_all(
                Section(table, tuple(f for f in form.named if f.table == table), form.texts, self._choices)
                for table in wanted
            )

    async def _rows(self, place: str, fields: list[FormField]) -> None:
        """Make lines again if they are others than before; the cursor's line stays."""
        rows = self.query_one(f"#{place}", Vertical)
        if [row.field for row in rows.query_children(FieldRow)] != fields:
            await rows.remove_children()
            await rows.mount_all(
                FieldRow(field, self._form.texts.get(field.key, ""), self._choices) for field in fields
            )

    def tell(self, problems: Mapping[str, str]) -> None:
        """Show in the title how many policies there are, and how many fields are wrong."""
        wrong, many = len(self.keys & problems.keys()), len(self._form.policies)
        notes = ", ".join(note for note in (f"{many} named" * bool(many), f"{wrong} wrong" * bool(wrong)) if note)
        collapsible = self.query_one(Collapsible)
        title = _TITLE + (f" ({notes})" if notes else "")
        if collapsible.title != title:
            collapsible.title = title


# The left side of the form: what everybody sets, the environment's parameters, and all other tables, folded.

_AROUND = 5
"""Lines of the screen above and below: this may be asked before it is laid out."""
_USUAL = ("train", "sampling", "eval", "policy")
"""Tables that most tasks set something of."""
_SPARE = 8
"""Lines that are kept for the parameters of an environment that is yet to be chosen, and for what is wrong."""


class Fields(Vertical):
    """All lines of the form; scrolls with the cursor."""

    DEFAULT_CSS = """
    Fields { padding: 0 1; overflow-y: auto; }
    Fields > Vertical { height: auto; }
    Fields #parameters { margin-bottom: 1; }
    """

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        self._choices = choices
        self._told: tuple[Checked, Mapping[str, str]] | None = None
        """What was last said of the lines: those that are being made hear it once they stand."""

    async def show(self, form: Form) -> None:
        """Make all lines again."""
        first = {field.key: field for field in task_fields() if field.key in FIRST}
        await self.remove_children()
        await self.mount_all(
            [
                *(self._row(first[key], form) for key in FIRST),
                Vertical(id="parameters"),
                Policies(self._choices),
                *(Section(table, _folded(table), form.texts, self._choices) for table in FOLDED),
            ]
        )
        await self.show_parameters(form)
        await self.show_policies(form)
        self.focus_first()
        await self._unfold_what_fits()

    async def _unfold_what_fits(self) -> None:
        """Unfold the tables for which a high screen has room, the first ones first."""
        room = self.app.size.height - _AROUND - len(self.query(FieldRow)) - len(FOLDED) - _SPARE
        for section in self.query(Section):
            if section.table in _USUAL and len(section.fields) <= room:
                await section.unfold()
                room -= len(section.fields)
        self._tell_again()

    async def show_policies(self, form: Form) -> None:
        """Bring the lines of several policies up to date."""
        await self.query_one(Policies).show(form)
        self._tell_again()

    async def go_to(self, key: str) -> None:
        """Put the cursor into the field of a key, in whichever table that is folded."""
        for section in self.query(Section):
            if key in section.keys:
                await section.unfold()
        if key in self.query_one(Policies).keys:
            await self.query_one(Policies).unfold(key)
        self._tell_again()
        for row in self.query(FieldRow):
            if row.field.key == key:
                row.query_one(Input).focus()

    async def show_parameters(self, form: Form) -> None:
        """Make the lines of the environment's parameters again; the cursor stays where it is."""
        place = self.query_one("#parameters", Vertical)
        await place.remove_children()
        await place.mount_all([self._row(field, form) for field in form.parameters])
        self._tell_again()

    def focus_first(self) -> None:
        """Focus the first field that has no text."""
        fields = list(self.query(Input))
        empty = next((field for field in fields if not field.value), None)
        if target := empty or next(iter(fields), None):
            target.focus()

    def tell(self, checked: Checked, texts: Mapping[str, str]) -> None:
        """Show what is wrong, next to each field and in the titles of tables."""
        self._told = (checked, texts)
        for row in self.query(FieldRow):
            if row.is_mounted:
                row.tell(checked.problems.get(row.field.key, ""), row.field.key in checked.missing)
        for section in self.query(Section):
            if section.is_mounted:
                section.tell(checked.problems, texts)
        for policies in self.query(Policies):
            if policies.is_mounted:
                policies.tell(checked.problems)

    def _tell_again(self) -> None:
        if self._told is not None:
            self.tell(*self._told)

    def _row(self, field: FormField, form: Form) -> FieldRow:
        return FieldRow(field, form.texts.get(field.key, ""), self._choices)


def _folded(table: str) -> tuple[FormField, ...]:
    return tuple(field for field in task_fields() if field.table == table and field.key not in FIRST)


# What the form stands for: the task file, what the tasks will take, and what the model will be asked.

CHARACTERS, LINES = 8000, 120
"""Most characters and lines of a task file that are shown."""
TAKES = ("time", "memory", "disk")
LATER = "when nothing is missing or wrong"


class Outlook(VerticalScroll):
    """Three parts one below the other; whoever made the lines has cleaned foreign text."""

    DEFAULT_CSS = """
    Outlook { padding: 0 1; }
    Outlook .head { color: $text-primary; text-style: bold; margin-top: 1; }
    Outlook .head:first-child { margin-top: 0; }
    Outlook Static { height: auto; }
    Outlook Grid { grid-size: 2; grid-columns: 8 1fr; grid-rows: auto; height: auto; }
    """

    def compose(self) -> ComposeResult:
        """Lay out heads and texts."""
        yield Static("task file", classes="head")
        yield Static(id="file")
        yield Static("what it takes", classes="head")
        yield Static(id="reason")
        with Grid():
            for what in TAKES:
                yield Static(what)
                yield Static(id=what)
        yield Static("what the model is asked", classes="head")
        yield Static(LATER, id="prompts")

    def show_file(self, text: str) -> None:
        """The task file as it would be saved."""
        self._show("file", excerpt(text, CHARACTERS, LINES).rstrip())

    def show_estimate(self, rows: Sequence[tuple[str, str]], reason: str = "") -> None:
        """Show (one of ``TAKES``, how much) for each, or why that is not known."""
        self.query_one(Grid).display = bool(rows)
        self.query_one("#reason").display = not rows
        self._show("reason", reason)
        for what, words in rows:
            self._show(what, words)

    def show_estimating(self) -> None:
        """Say that an estimate is on its way, unless an earlier one is shown."""
        if not self.query_one(Grid).display:
            self._show("reason", "is being estimated")

    def show_prompts(self, lines: Sequence[str]) -> None:
        """Show the prompts in safe lines."""
        self._show("prompts", "\n".join(lines))

    def _show(self, name: str, text: str) -> None:
        self.query_one(f"#{name}", Static).update(Content(text))
