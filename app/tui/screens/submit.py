"""The form for new tasks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual.app import ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal
from textual.content import Content
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from marlaas.engine.errors import ConfigError, MarlaasError
from marlaas.engine.queue.submission import taskfile
from marlaas.engine.queue.submission.taskfile import environments_of
from marlaas.engine.store.rows import VersionRow

from ...operations.submitting import enqueue
from ..context.editor import edited, editor, line_of
from ..context.snapshot import Latest
from ..form.form import (
    Checked,
    Form,
    Prompts,
    Prospect,
    Sources,
    about,
    beyond_fields,
    first_wrong,
    missing,
    prompts,
    prospect,
    read_sources,
    standing,
)
from ..widgets.bars import Elapsed, KeyBar, NoticeLine
from ..widgets.submit_form import LATER, FieldRow, Fields, Outlook

if TYPE_CHECKING:
    from ...app import MarlaasApp


# Opens a task file in the person's editor, which gets the terminal meanwhile.
#
# What comes back is a table, or the text with its mistake.

WHERE = "the task file"


def why_no_editor(app: MarlaasApp) -> str:
    """Why no editor can be opened; empty if one can."""
    if app.web or app.readonly:
        return "There is no editor in the read-only mode, nor in a browser."
    try:
        editor()
    except ConfigError as error:
        return str(error)
    return ""


def edited_table(app: MarlaasApp, text: str) -> tuple[dict[str, Any] | None, str, str]:
    """(the table, the text to go on with, what is wrong with it); the last two are empty if the file is valid."""
    if reason := why_no_editor(app):
        return None, "", reason
    try:
        with app.suspend():
            saved = edited(text)
    except SuspendNotSupported:
        return None, "", "This terminal cannot be given to an editor."
    except ConfigError as error:
        return None, "", str(error)
    try:
        table = taskfile.table_of(saved, WHERE)
        taskfile.tasks_of(table, WHERE, Path.cwd())
    except ConfigError as error:
        line = line_of(saved, (error.path, *error.also))
        return None, saved, f"{f'Line {line}: ' if line else ''}{error} ctrl+e goes on editing."
    return table, "", ""


# The form for tasks: fields of the task file and of the environment, with what the tasks will take.
#
# Opened on top of a view. It writes what the command line would write, and only on request.


class SubmitScreen(ModalScreen[None]):
    """The form; ctrl+s submits its tasks."""

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
    """

    def __init__(self, copy_from: int | None = None, start: VersionRow | None = None, environment: str = "") -> None:
        """``copy_from``: the number of the task that the form begins as a copy of; ``start``: the version that the new
        task is to begin from; ``environment``: the name of the one that it is to train on."""
        super().__init__()
        self._copy_from = copy_from
        self._start = start
        self._environment = environment
        self._form = Form()
        self._checked = Checked()
        self._sending = False
        self._early: list[str] | None = []
        """Letters that were typed before the fields were there."""
        self._asked: tuple[str, str] = ("", "")
        self._draft = ""
        """A task file with mistakes that came back from the editor: the next edit continues with it."""

    @property
    def marlaas(self) -> MarlaasApp:
        """The application."""
        return cast("MarlaasApp", self.app)

    def compose(self) -> ComposeResult:
        """Lay out title, form and outlook, a sentence about the current field, and keys."""
        with Horizontal(id="title"):
            what = f"Tasks like task {self._copy_from}" if self._copy_from is not None else "Add tasks"
            yield Static(what, id="what", markup=False)
            yield Elapsed(id="state")
        with Container(id="body"):
            yield Fields(lambda field: self._form.choices(field))
            yield Outlook()
        yield Static(id="beyond", markup=False)
        yield Static(id="about", markup=False)
        yield NoticeLine()
        yield KeyBar()

    def on_mount(self) -> None:
        """Read what the form is filled from."""
        self.query_one(NoticeLine).show(self.marlaas.notices)
        home = self.marlaas.home
        self._checks = Latest(self, Form.checked, self._show_checked)
        self._prospects = Latest(self, partial(prospect, home), self._show_prospect)
        self._peeks: Latest[tuple[str, dict[str, Any], dict[str, Any] | None], Prompts]
        self._peeks = Latest(self, lambda wish: prompts(home, *wish), self._show_prompts)
        begin: Latest[int | None, Sources] = Latest(self, partial(read_sources, home), self._fill)
        begin.ask(self._copy_from)

    async def _fill_fields(self) -> None:
        await self.query_one(Fields).show(self._form)
        self.call_after_refresh(self._type_early)
        self._look()

    def _type_early(self) -> None:
        early, self._early = self._early, None
        if early and isinstance(self.focused, Input):
            self.focused.insert_text_at_cursor("".join(early))

    def on_key(self, event: Key) -> None:
        """Keep letters that are typed before there are fields."""
        if self._early is not None and event.is_printable and event.character:
            self._early.append(event.character)
            event.stop()

    def _fill(self, sources: Sources) -> None:
        if sources.problem:
            self.marlaas.say(sources.problem, bad=True)
        elif self._copy_from is not None and sources.table is None:
            self.marlaas.say(f"There is no task {self._copy_from}.", bad=True)
        self._form = Form.begun(sources)
        if self._start:
            self._form = self._form.beginning_with(self._start)
        if self._environment:
            self._form = self._form.on(self._environment)
        self.run_worker(self._fill_fields())

    # What is typed.

    def on_field_row_typed(self, message: FieldRow.Typed) -> None:
        """Take over a letter, or what a field was filled with."""
        if message.text == self._form.texts.get(message.key, ""):
            return
        before = self._form
        self._form, self._draft = before.typed(message.key, message.text), ""
        if self._form.parameters != before.parameters:
            self._show_parameters()
        if (self._form.named, self._form.declared) != (before.named, before.declared):
            self._show_policies()
        self._look()

    def _show_parameters(self) -> None:
        self.run_worker(self.query_one(Fields).show_parameters(self._form), exclusive=True, group="parameters")

    def _show_policies(self) -> None:
        self.run_worker(self.query_one(Fields).show_policies(self._form), exclusive=True, group="policies")

    def on_field_row_visited(self, message: FieldRow.Visited) -> None:
        """Show what the field is."""
        chosen = bool(self._form.choices(message.field))
        self.query_one("#about", Static).update(Content(about(message.field, chosen)))

    def _look(self) -> None:
        self._checks.ask(self._form)

    def _show_checked(self, checked: Checked) -> None:
        self._checked = checked
        self.query_one(Fields).tell(checked, self._form.texts)
        self.query_one("#state", Elapsed).show(standing(checked))
        said, note = beyond_fields(self._form), self.query_one("#beyond", Static)
        note.display = bool(said)
        note.update(Content(said))
        outlook = self.query_one(Outlook)
        outlook.show_file(checked.text)
        if not checked.ready:
            outlook.show_estimate((), LATER)
            return
        outlook.show_estimating()
        self._prospects.ask(checked.submissions)
        first = checked.submissions[0]
        one = environments_of(first)[0]
        wish = (one.name, repr((one.config, one.data)))
        if wish != self._asked:
            self._asked = wish
            self._peeks.ask((one.name, one.config, one.data))

    def _show_prospect(self, found: Prospect) -> None:
        self.query_one(Outlook).show_estimate(found.rows, found.problem)

    def _show_prompts(self, found: Prompts) -> None:
        self.query_one(Outlook).show_prompts(found.lines)
        if not self._form.sources.environments and found.parameters:
            self._form = self._form.found(found.environment, found.parameters)
            self._show_parameters()
            self._look()

    # What the keys do.

    @property
    def key_words(self) -> Mapping[str, str]:
        """The key that turns to the task file turns back from it."""
        return {"turn": "form"} if self.has_class("-turned") else {}

    def action_turn(self) -> None:
        """Switch between form and task file, on a narrow screen."""
        self.toggle_class("-turned")
        self.refresh_bindings()
        if self.has_class("-turned"):
            self.query_one(Outlook).focus()
        else:
            self.query_one(Fields).focus_first()

    def action_send(self) -> None:
        """Submit."""
        if self._sending:
            return
        if reason := self._why_not_sent():
            self.marlaas.say(reason, bad=True)
            if key := first_wrong(self._checked, self._form.fields):
                self.remove_class("-turned")
                self.refresh_bindings()
                self.run_worker(self.query_one(Fields).go_to(key), exclusive=True, group="wrong")
            return
        self._sending = True
        self.query_one("#state", Elapsed).show("submitting …", under_way=True)  # starting an engine takes seconds
        self.run_worker(self._send, thread=True, exit_on_error=False)

    def _why_not_sent(self) -> str:
        if reason := self.marlaas.may_act():
            return reason
        if self._checked.problems:
            return next(iter(self._checked.problems.values()))
        if self._checked.missing:
            return f"{missing(self._checked)} must be given."
        return "" if self._checked.ready else "The form is still being read."

    def _send(self) -> None:
        said = partial(self.app.call_from_thread, self.marlaas.say)
        try:
            numbers = enqueue(self.marlaas.home, self._checked.submissions, notice=said)
        except MarlaasError as error:
            self.app.call_from_thread(self._refused, str(error))
        else:
            self.app.call_from_thread(self._sent, numbers)

    def _refused(self, sentence: str) -> None:
        self._sending = False
        self.query_one("#state", Elapsed).show(standing(self._checked))
        self.marlaas.say(sentence, bad=True)

    def _sent(self, numbers: list[int]) -> None:
        many = f"Tasks {numbers[0]} to {numbers[-1]} are" if len(numbers) > 1 else f"Task {numbers[0]} is"
        self.marlaas.say(f"{many} in the queue.")
        self.dismiss()
        self.marlaas.go_to_task(numbers[0])

    def action_save(self) -> None:
        """Ask for a name, and save the task file there."""
        from .dialogs.questions import Ask

        if self.marlaas.web:
            self.marlaas.say("In a browser no file is written; copy the task file instead.", bad=True)
            return
        name = self._form.texts.get("name", "").strip().replace(" ", "-").replace("/", "-") or "task"
        self.app.push_screen(Ask("Save the task file as", f"{name}.toml", "save"), self._save)

    def _save(self, name: str | None) -> None:
        if not name:
            return
        path = Path(name).expanduser().absolute()
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(self._checked.text)
        except OSError as error:
            self.marlaas.say(f"{path} cannot be written: {error.strerror}. Nothing is overwritten.", bad=True)
        else:
            self.marlaas.say(f"Saved as {path}.")

    def action_edit(self) -> None:
        """Open the task file in the person's editor; a valid one is taken over."""
        table, self._draft, sentence = edited_table(self.marlaas, self._draft or self._checked.text)
        if sentence:
            self.marlaas.say(sentence, bad=True)
        if table is not None:
            self._form = self._form.taken_over(table)
            self.run_worker(self._fill_fields())

    def action_leave(self) -> None:
        """Go back to the view; ask first if something was typed."""
        from .dialogs.questions import Confirm

        if self.has_class("-turned"):
            self.action_turn()
        elif self._form.touched:
            self.app.push_screen(Confirm("Leave? What you typed is lost; ctrl+o saves it to a file."), self._leave)
        else:
            self.dismiss()

    def _leave(self, yes: bool | None) -> None:
        if yes:
            self.dismiss()
