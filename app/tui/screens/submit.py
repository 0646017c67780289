"""The form for new tasks: fields by table, their choices, and the tasks' cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual.app import ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Key
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Collapsible, Input, OptionList, Static
from textual.widgets.option_list import Option

from marlaas.engine.errors import ConfigError
from marlaas.engine.queue.submission import taskfile
from marlaas.engine.queue.submission.taskfile import ToPlay, environments_of
from marlaas.engine.store.rows import VersionRow
from marlaas.engine.store.submissions import Submission

from ...operations.submitting import enqueue
from ...text.format import cells, excerpt, line, pad, plain
from ..context.editor import edited, editor
from ..context.feed import Latest
from ..form.form import (
    BAD,
    DOUBTFUL,
    FIRST,
    FOLDED,
    GOOD,
    NAME_FIELDS,
    POLICIES,
    Checked,
    Choice,
    Form,
    FormField,
    Prompts,
    Sources,
    about,
    beyond_fields,
    chosen,
    first_wrong,
    fitting,
    missing,
    prompts,
    prospect,
    read_sources,
    standing,
    taken,
    task_fields,
)
from ..widgets.bars import KeyBar, StatusLine

if TYPE_CHECKING:
    from ...app import MarlaasApp

_MARKS = {GOOD: ("● ", "$text-success"), DOUBTFUL: ("! ", "$text-warning"), BAD: ("✗ ", "$text-error"), "": ("", "")}


class ChoiceList(OptionList, can_focus=False):
    """A field's choices, below it while typing; the field has the keys."""

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
        place = self.highlighted
        return self._choices[place] if self.is_open and place is not None and place < len(self._choices) else None

    @property
    def is_open(self) -> bool:
        return self.has_class("-open")

    def show(self, choices: Sequence[Choice], first: bool) -> None:
        """Show these, the cursor on the ``first`` or on none; hide if empty."""
        self._choices = choices
        width = min(30, max((cells(choice.value) for choice in choices), default=0))
        self.clear_options()
        for choice in choices:
            note = f"  {line(choice.note, 120)}" if choice.note else ""
            value = pad(line(choice.value, width), width)
            self.add_option(Option(Content.assemble(_MARKS[choice.standing], value, (note, "$text-muted"))))
        self.highlighted = 0 if first and choices else None
        self.set_class(bool(choices), "-open")

    def move(self, by: int) -> bool:
        """Move the cursor; False: at the end."""
        place = (-1 if self.highlighted is None else self.highlighted) + by
        if not 0 <= place < len(self._choices):
            return False
        self.highlighted = place
        return True


class FieldRow(Widget):
    """One key of the form: name, text, and what is wrong, chosen or allowed.

    Typing lists fitting choices. An empty field with annotated choices lists them at once.
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
    FieldRow .told { width: 1fr; height: 1; padding-left: 1; color: $text-muted; text-wrap: nowrap;
                     text-overflow: ellipsis; }
    FieldRow .problem { height: auto; padding-left: 2; color: $text-error; display: none; }
    FieldRow.-wrong .problem { display: block; }
    FieldRow.-wrong .name { color: $text-error; }
    FieldRow.-missing .name { color: $text-warning; }
    """

    def __init__(self, field: FormField) -> None:
        super().__init__()
        self.field = field
        self._taken = ""
        """The text that a choice has left: it is no wish to choose again."""

    @property
    def _submit(self) -> SubmitScreen:
        return cast("SubmitScreen", self.screen)

    @property
    def _choices(self) -> Sequence[Choice]:
        return self._submit.form.choices(self.field)

    @property
    def choosing(self) -> ChoiceList | None:
        """The list, while it is open."""
        return next((each for each in self.query(ChoiceList) if each.is_open), None)

    def compose(self) -> ComposeResult:
        text, hint = _cleaned(self._submit.form.texts.get(self.field.key, "")), line(self.field.typed_default, 40)
        with Horizontal():
            yield Static(Content(line(self.field.name, 19)), classes="name")
            yield Input(text, placeholder=hint, max_length=4000, select_on_focus=False, compact=True)
            yield Static(self._hint(text), classes="told")

    def on_mount(self) -> None:
        self.tell()

    def tell(self) -> None:
        """Show what is wrong, unless somebody chooses."""
        problem = "" if self.choosing else self._submit.checked.problems.get(self.field.key, "")
        if problem and self.is_attached and not self.query(".problem"):
            self.mount(Static(classes="problem"))  # few fields ever have one
        for below in self.query(".problem").results(Static):
            below.update(Content(plain(problem)))
        self.set_class(bool(problem), "-wrong")
        self.set_class(self.field.key in self._submit.checked.missing, "-missing")

    def _hint(self, text: str) -> Content:
        choices = self._choices
        match = chosen(choices, text) if text else None
        if match is not None and match.note:
            style = _MARKS[match.standing][1] if match.standing != GOOD else ""
            return Content.styled(line(match.note, 120), style)
        if any(choice.note for choice in choices):
            return Content(f"{len(choices)} to choose from" if len(choices) > 1 else "1 to choose")
        return Content(line(self.field.allowed or ", ".join(choice.value for choice in choices), 120))

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if (cleaned := _cleaned(event.value)) != event.value:
            event.input.value = cleaned  # causes another change
            return
        if self._choices and event.input.has_focus and cleaned != self._taken:
            self._open(cleaned)
        self._taken = ""
        self.query_one(".told", Static).update(self._hint(cleaned))
        self.take_over()

    def take_over(self) -> None:
        """Tell the form what stands here."""
        for field in self.query(Input):
            self._submit.typed(self.field.key, _cleaned(field.value))

    def _open(self, typed: str) -> None:
        field, choices = self.field, self._choices
        strict = bool(field.choices) or field.kind in ("bool", "agent") or field.name == "environment"
        fit = () if chosen(choices, typed) else fitting(choices, typed)
        if not self.query(ChoiceList) and fit:
            self.mount(ChoiceList())  # few fields ever have one
        for each in self.query(ChoiceList):
            each.show(fit, first=strict and bool(typed))
        self.tell()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the arrows and esc to the form while no list is open."""
        if action in ("move", "close"):
            return self.choosing is not None
        return action != "list" or bool(self._choices)

    def action_move(self, by: int) -> None:
        """Move in the list, beyond its ends to the next field."""
        if self.choosing and not self.choosing.move(by):
            self.screen.focus_next() if by > 0 else self.screen.focus_previous()

    def action_close(self) -> None:
        for each in self.query(ChoiceList):
            each.remove_class("-open")
        self.tell()

    def action_list(self) -> None:
        self._open("")

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._take()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the current choice and go to the next field; nothing is submitted."""
        event.stop()
        self._take()
        self.screen.focus_next()

    def _take(self) -> None:
        if self.choosing and (choice := self.choosing.choice):
            field = self.query_one(Input)
            self._taken = field.value = taken(field.value, choice)
            field.cursor_position = len(field.value)
        self.action_close()

    def on_descendant_focus(self) -> None:
        self._submit.visited(self.field)
        if not self.query_one(Input).value and any(choice.note for choice in self._choices):
            self._open("")

    def on_descendant_blur(self) -> None:
        self.action_close()


def _cleaned(text: str) -> str:
    return plain(text).replace("\n", " ")


async def show_fields(box: Widget, fields: Sequence[FormField]) -> None:
    """Lines for fields; kept ones keep place and cursor."""
    rows = {row.field.key: row for row in box.query_children(FieldRow) if row.field in fields}
    for row in box.query_children(FieldRow):
        if row.field not in fields:
            await row.remove()
    await box.mount_all(FieldRow(field) for field in fields if field.key not in rows)


_TITLES = {
    POLICIES: "policies: several that learn or play together",
    "train": "train: how it learns",
    "sampling": "sampling: how it writes",
    "eval": "eval: how it is measured",
    "policy": "policy: the adapter",
    "data": "data: rows of its own",
    "queue": "queue: priority, dependencies",
    "keep": "keep: versions that stay on the disk",
    "watch": "watch: what to do when learning goes wrong",
    "track": "track: where curves are sent",
    "": "more",
}


class Section(Collapsible):
    """One table's fields below a title with the number of set or wrong ones; makes its lines when first unfolded."""

    DEFAULT_CSS = """
    Section { background: transparent; border: none; padding: 0; }
    Section Contents { padding: 0 0 0 2; }
    Section Contents Vertical { height: auto; }
    """

    def __init__(self, table: str, fields: Sequence[FormField] = ()) -> None:
        super().__init__(Vertical(), title=_TITLES.get(table, table))
        self.table, self.fields = table, fields

    def on_mount(self) -> None:
        self.tell()

    async def unfold(self) -> None:
        self.collapsed = False
        await show_fields(self.query_one(Vertical), self.fields)

    async def on_collapsible_expanded(self, event: Collapsible.Expanded) -> None:
        event.stop()
        await self.unfold()

    def tell(self) -> None:
        screen, keys = cast("SubmitScreen", self.screen), {field.key for field in self.fields}
        filled = sum(bool(screen.form.texts.get(key, "").strip()) for key in keys)
        counts = ((filled, "set"), (len(keys & screen.checked.problems.keys()), "wrong"))
        notes = ", ".join(f"{count} {what}" for count, what in counts if count)
        self.title = _TITLES.get(self.table, self.table) + (f" ({notes})" if notes else "")


class Fields(Vertical):
    """The left side: common fields, the environment's parameters, all other tables, folded."""

    DEFAULT_CSS = """
    Fields { padding: 0 1; overflow-y: auto; }
    Fields > Vertical { height: auto; }
    Fields #parameters { margin-bottom: 1; }
    """

    async def show(self) -> None:
        known = {field.key: field for field in task_fields()}
        tables = {name: [field for key, field in known.items() if field.table == name] for name in FOLDED}
        await self.remove_children()
        await self.mount_all(
            [
                Vertical(id="first"),
                Vertical(id="parameters"),
                Section(POLICIES),
                Vertical(id="policies"),
                *(Section(name, [field for field in of if field.key not in FIRST]) for name, of in tables.items()),
            ]
        )
        await show_fields(self.query_one("#first"), [known[key] for key in FIRST])
        await self.renew()
        self.focus_first()

    async def renew(self) -> None:
        """Update lines of parameters and policies; unfold the latter once agents have to be given."""
        form, section, tables = (
            cast("SubmitScreen", self.screen).form,
            self.query_one(Section),
            self.query_one("#policies"),
        )
        await show_fields(self.query_one("#parameters"), form.parameters)
        speakers, begun = [each for each in form.named if each.kind == "agent"], section.fields
        section.fields = [*(each for each in NAME_FIELDS if each.key == POLICIES or not form.declared), *speakers]
        if not section.collapsed or (speakers and not any(field.kind == "agent" for field in begun)):
            await section.unfold()
        names = [f"{POLICIES}.{name}" for name in form.policies]
        if [each.table for each in tables.query_children(Section)] != names:
            await tables.remove_children()
            await tables.mount_all(Section(name, [f for f in form.named if f.table == name]) for name in names)
        self.tell()

    async def go_to(self, key: str) -> None:
        """Also in a folded table."""
        for section in self.query(Section):
            if any(field.key == key for field in section.fields):
                await section.unfold()
        for row in self.query(FieldRow):
            if row.field.key == key:
                row.query_one(Input).focus()

    def focus_first(self) -> None:
        fields = list(self.query(Input))
        if target := next((field for field in fields if not field.value), next(iter(fields), None)):
            target.focus()

    def tell(self) -> None:
        for part in (*self.query(FieldRow), *self.query(Section)):
            part.tell()


LATER = "when nothing is missing or wrong"


class Outlook(VerticalScroll):
    """The form's task file, cost and prompts.

    Callers have cleaned foreign text.
    """

    DEFAULT_CSS = """
    Outlook { padding: 0 1; }
    Outlook .head { color: $text-primary; text-style: bold; margin-top: 1; }
    Outlook .head:first-child { margin-top: 0; }
    Outlook Static { height: auto; }
    """

    def compose(self) -> ComposeResult:
        yield Static("task file", classes="head")
        yield Static(id="file")
        yield Static("what it takes", classes="head")
        yield Static(LATER, id="takes")
        yield Static("what the model is asked", classes="head")
        yield Static(LATER, id="prompts")

    def show(self, name: str, text: str) -> None:
        self.query_one(f"#{name}", Static).update(Content(text))

    def show_estimate(self, rows: Sequence[tuple[str, str]], reason: str = "") -> None:
        """Show the amount of time, memory and disk, or why it is unknown."""
        self.show("takes", "\n".join(f"{what:<8}{amount}" for what, amount in rows) or reason)


WHERE = "the task file"


def edited_table(app: MarlaasApp, text: str) -> tuple[dict[str, Any] | None, str, str]:
    """Open a task file in the person's editor, on the whole terminal.

    Returns table, remaining text and error; the last two are empty if the file is valid.
    """
    saved = ""
    try:
        if app.web or app.readonly:
            raise ConfigError("There is no editor in the read-only mode, nor in a browser.")
        editor()
        with app.suspend():
            saved = edited(text)
        table = taskfile.table_of(saved, WHERE)
        taskfile.tasks_of(table, WHERE, Path.cwd())
    except SuspendNotSupported:
        return None, "", "This terminal cannot be given to an editor."
    except ConfigError as error:
        return None, saved, f"{error}{' ctrl+e goes on editing.' if saved else ''}"
    return table, "", ""


class SubmitScreen(ModalScreen[None]):
    """The form; ctrl+s submits its tasks. Writes what the command line would write, only on request."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "send", "submit", priority=True, id="submit.send"),
        Binding("ctrl+t", "turn", "task file", priority=True, id="submit.turn"),
        Binding("ctrl+o", "save", "save as", priority=True, id="submit.save"),
        Binding("ctrl+e", "edit", "editor", priority=True, id="submit.edit"),
        Binding("escape", "leave", "close", key_display="esc", id="submit.leave"),
        Binding("tab", "app.focus_next", "next field", priority=True, id="submit.tab"),  # before letters typed after it
        Binding("shift+tab", "app.focus_previous", show=False, priority=True, id="submit.backtab"),
        Binding("down", "app.focus_next", show=False, id="submit.next"),
        Binding("up", "app.focus_previous", show=False, id="submit.previous"),
    ]
    DEFAULT_CSS = """
    SubmitScreen { background: $background; layout: vertical; }
    SubmitScreen #title { height: 1; padding: 0 1; background: $panel; }
    SubmitScreen #title Static { width: auto; }
    SubmitScreen #title #state { width: 1fr; text-align: right; }
    SubmitScreen #beyond { height: auto; max-height: 3; padding: 0 1; color: $text-warning; }
    SubmitScreen #body { height: 1fr; layout: horizontal; }
    SubmitScreen.-wide FieldRow Input { width: 48; }
    SubmitScreen.-narrow.-short FieldRow Input { width: 20; }
    SubmitScreen Fields { width: 3fr; }
    SubmitScreen Outlook { width: 2fr; border-left: solid $panel; }
    SubmitScreen.-narrow Outlook { display: none; width: 1fr; border-left: none; }
    SubmitScreen.-narrow.-turned Outlook { display: block; }
    SubmitScreen.-narrow.-turned Fields { display: none; }
    SubmitScreen.-short #about { height: 2; }
    SubmitScreen #about { height: 3; padding: 0 1; color: $text-muted; border-top: none; }
    SubmitScreen StatusLine { display: none; }
    SubmitScreen StatusLine.-told { display: block; }
    """
    first_keys = ("send", "turn", "save", "edit")

    def __init__(self, copy_from: int | None = None, start: VersionRow | None = None, environment: str = "") -> None:
        """``copy_from``: number of the task to copy; ``start``: version to begin from; ``environment``: name of the
        training environment."""
        super().__init__()
        self._copy_from, self._start, self._environment = copy_from, start, environment
        self.form = Form()
        self.checked = Checked()
        self._early: list[str] | None = []
        """Letters that were typed before the fields were there."""
        self._estimated: Sequence[Submission] = ()
        self._waiting: Callable[[], None] | None = None
        """What is done as soon as all that was typed is checked."""
        self._asked = ""
        """The environment whose prompts are shown, with its parameters."""
        self._draft = ""
        """A task file with mistakes that came back from the editor: the next edit continues with it."""

    @property
    def marlaas(self) -> MarlaasApp:
        return cast("MarlaasApp", self.app)

    def compose(self) -> ComposeResult:
        with Horizontal(id="title"):
            what = f"Tasks like task {self._copy_from}" if self._copy_from is not None else "Add tasks"
            yield Static(what, id="what", markup=False)
            yield Static(id="state", markup=False)
        with Container(id="body"):
            yield Fields()
            yield Outlook()
        yield Static(id="beyond", markup=False)
        yield Static(id="about", markup=False)
        yield StatusLine()
        yield KeyBar()

    def on_mount(self) -> None:
        self.query_one(StatusLine).show_notices(self.marlaas.notices)
        home, outlook = self.marlaas.home, self.query_one(Outlook)
        self._checks = Latest(self, Form.checked, self._show_checked)
        self._prospects = Latest(self, partial(prospect, home), lambda answer: outlook.show_estimate(*answer))
        self._peeks = Latest(self, lambda wish: prompts(home, *wish), self._show_prompts)
        Latest(self, partial(read_sources, home), self._fill).ask(self._copy_from)

    async def _fill_fields(self) -> None:
        await self.query_one(Fields).show()
        self.call_after_refresh(self._type_early)
        self._checks.ask(self.form)

    def _type_early(self) -> None:
        early, self._early = self._early, None
        if early and isinstance(self.focused, Input):
            self.focused.insert_text_at_cursor("".join(early))

    def on_key(self, event: Key) -> None:
        if self._early is not None and event.is_printable and event.character:
            self._early.append(event.character)
            event.stop()

    def _fill(self, sources: Sources) -> None:
        if sources.problem:
            self.marlaas.say(sources.problem, bad=True)
        elif self._copy_from is not None and sources.table is None:
            self.marlaas.say(f"There is no task {self._copy_from}.", bad=True)
        self.form = Form.begun(sources)
        if self._start:
            self.form = self.form.beginning_with(self._start)
        if self._environment:
            self.form = self.form.typed("environment", self._environment, touched=False)
        self.run_worker(self._fill_fields())

    def typed(self, key: str, text: str) -> None:
        """A field's text has changed."""
        if text != self.form.texts.get(key, ""):
            self._draft = ""
            self._change(self.form.typed(key, text))

    def visited(self, field: FormField) -> None:
        """The cursor has come to a field."""
        for note in self.query("#about").results(Static):  # none while the form is being left
            note.update(Content(about(field, bool(self.form.choices(field)))))

    def _change(self, form: Form) -> None:
        before, self.form = self.form, form
        if (form.parameters, form.named, form.declared) != (before.parameters, before.named, before.declared):
            self.run_worker(self.query_one(Fields).renew(), exclusive=True, group="fields")
        self._checks.ask(form)

    def _once_checked(self, act: Callable[[], None]) -> None:
        """Do this with all that was typed before."""

        def take() -> None:
            for row in self.query(FieldRow):
                row.take_over()
            self._waiting = act
            self._go_on()

        (self.focused or self).call_later(take)  # after the letters that it has not read yet

    def _go_on(self) -> None:
        if self._waiting is not None and self._checks.current:
            act, self._waiting = self._waiting, None
            act()

    def _show_checked(self, checked: Checked) -> None:
        self.checked = checked
        self.query_one(Fields).tell()
        self.query_one("#state", Static).update(standing(checked))
        words, note = beyond_fields(self.form), self.query_one("#beyond", Static)
        note.display = bool(words)
        note.update(Content(words))
        outlook = self.query_one(Outlook)
        outlook.show("file", excerpt(checked.text, 8000, 120).rstrip())
        if not checked.submissions:
            outlook.show("takes", LATER)
        elif not self._estimated:
            outlook.show("takes", "is being estimated")
        self._estimated = checked.submissions
        if checked.submissions:
            self._prospects.ask(checked.submissions)
            self._ask_prompts(environments_of(checked.submissions[0])[0])
        self._go_on()

    def _ask_prompts(self, played: ToPlay) -> None:
        if (asked := repr(played)) != self._asked:
            self._asked = asked
            self._peeks.ask((played.name, played.config, played.data))

    def _show_prompts(self, found: Prompts) -> None:
        self.query_one(Outlook).show("prompts", "\n".join(found.lines))
        if not self.form.sources.environments and found.parameters:
            self._change(replace(self.form, looked_up=(found.environment, found.parameters)))

    @property
    def key_words(self) -> Mapping[str, str]:
        """The task file's key toggles."""
        return {"turn": "form"} if self.has_class("-turned") else {}

    def action_turn(self) -> None:
        self.toggle_class("-turned")
        self.refresh_bindings()
        if self.has_class("-turned"):
            self.query_one(Outlook).focus()
        else:
            self.query_one(Fields).focus_first()

    def action_send(self) -> None:
        self._once_checked(self._send)

    def _send(self) -> None:
        needed = f"{missing(self.checked)} must be given." if self.checked.missing else ""
        ready = "" if self.checked.submissions else "The form is still being read."
        if reason := self.marlaas.may_act() or next(iter(self.checked.problems.values()), "") or needed or ready:
            self.marlaas.say(reason, bad=True)
            if key := first_wrong(self.checked, self.form.fields):
                self.remove_class("-turned")
                self.refresh_bindings()
                self.run_worker(self.query_one(Fields).go_to(key), exclusive=True, group="wrong")
            return
        enter = partial(enqueue, self.marlaas.home, self.checked.submissions, notice=self.marlaas.say)
        self.marlaas.work(enter, self._sent, "Submitting …")  # starting an engine takes seconds

    def _sent(self, numbers: list[int]) -> None:
        many = f"Tasks {numbers[0]} to {numbers[-1]} are" if len(numbers) > 1 else f"Task {numbers[0]} is"
        self.marlaas.say(f"{many} in the queue.")
        self.dismiss()
        self.marlaas.go_to_task(numbers[0])

    def action_save(self) -> None:
        self._once_checked(self._ask_where)

    def _ask_where(self) -> None:
        from .dialogs import ask

        if self.marlaas.web:
            self.marlaas.say("In a browser no file is written; copy the task file instead.", bad=True)
            return
        name = self.form.texts.get("name", "").strip().replace(" ", "-").replace("/", "-") or "task"
        self.app.push_screen(ask("Save the task file as", f"{name}.toml", "save"), self._save)

    def _save(self, name: str | None) -> None:
        if not name:
            return
        path = Path(name).expanduser().absolute()
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(self.checked.text)
        except OSError as error:
            self.marlaas.say(f"{path} cannot be written: {error.strerror}. Nothing is overwritten.", bad=True)
        else:
            self.marlaas.say(f"Saved as {path}.")

    def action_edit(self) -> None:
        """A valid one is taken over."""
        self._once_checked(self._edit)

    def _edit(self) -> None:
        table, self._draft, sentence = edited_table(self.marlaas, self._draft or self.checked.text)
        if sentence:
            self.marlaas.say(sentence, bad=True)
        if table is not None:
            self.form = self.form.taken_over(table)
            self.run_worker(self._fill_fields())

    def action_leave(self) -> None:
        """Ask first if something was typed."""
        if self.has_class("-turned"):
            self.action_turn()
        elif self.form.touched:
            self.marlaas.confirm("Leave? What you typed is lost; ctrl+o saves it to a file.", self.dismiss)
        else:
            self.dismiss()
