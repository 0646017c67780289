"""The view of environments: which are broken and where, what the checks found, how their episodes end."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import Container

from marlaas.engine.environments import Finding
from marlaas.engine.errors import MarlaasError
from marlaas.engine.store import EnvironmentRow, EnvironmentUse

from ..context.child_verb import verb_command, verb_output
from ..context.editor import hand_over
from ..context.snapshot import Snapshot
from ..home.environments.source_lines import place_to_mend
from ..questions.views import EnvironmentsAnswer, EnvironmentsQuestion
from ..widgets.environment_table import Asked, EnvironmentDetail, EnvironmentsTable
from ..widgets.keyed_table import KeyedTable
from ..widgets.nothing import Nothing
from ..words.environments.facts import plugin_of, spoken, trouble, verdict
from ..words.format import line
from .view import View

CHECK_SECONDS = 300.0
"""A check that takes longer is ended."""
_TOUCHING = ("reload", "edit", "new", "allow")
"""Actions that change files or the engine."""
_EMPTY = """No environments are known yet: no engine has looked into the plugins folder.

S starts one, N writes a template that runs at once. Or from a shell

    marlaas engine start
    marlaas env new my_env"""


class EnvironmentsScreen(View):
    """A table and, beside or below it, the details of one environment."""

    HELP = """Environments: Python files in the plugins folder. A saved file serves at once, or says here why not.
Broken ones come first.

C checks one before you train on it.
v shows its first prompts, P lets you play in the model's place.
a opens the form for a task on it.
E opens your editor on it, at the line that is wrong; N writes a template of another one.
i shows which libraries one waits for, and installs them if you agree."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("N", "new", "new", id="environments.new"),
        Binding("R", "reload", "reload", show=False, id="environments.reload"),
        Binding("C", "check", "check", id="environments.check"),
        Binding("v", "prompts", "prompts", id="environments.prompts"),
        Binding("P", "play", "play", id="environments.play"),
        Binding("a", "add", "add task", id="environments.add"),
        Binding("E", "edit", "edit", show=False, id="environments.edit"),
        Binding("i", "allow", "allow libraries", show=False, id="environments.allow"),
        Binding("y", "copy", "copy", show=False, id="environments.copy"),
    ]
    AUTO_FOCUS = "EnvironmentsTable"

    def __init__(self) -> None:
        super().__init__()
        self._answer = EnvironmentsAnswer()
        self._answered = False
        self._asked: dict[str, Asked] = {}
        self._checks: dict[str, EnvironmentRow] = {}
        """Environments with the findings of checks by hand, in place of those that the engine stored."""
        self._awaited = ""
        """A plugin to which the cursor goes as soon as it is listed: a new one, or one whose name has changed."""

    @property
    def current(self) -> EnvironmentRow | None:
        """The environment under the cursor."""
        key = self.query_one(EnvironmentsTable).key
        return next((row for row in self._answer.rows if row.name == key), None)

    def question(self) -> EnvironmentsQuestion:
        """A question about all environments."""
        return EnvironmentsQuestion(lambda: self.marlaas.snapshot.now)

    def content(self) -> ComposeResult:
        """Two panes; or a hint where there are no environments."""
        with Container(id="environments", classes="panes"):
            yield EnvironmentsTable()
            yield EnvironmentDetail()
        yield Nothing(_EMPTY)

    def show_content(self, snapshot: Snapshot, answer: object) -> None:
        """Show table and details."""
        if isinstance(answer, EnvironmentsAnswer):
            self._answer, self._answered = self._with_checks(answer), True
            versions = {row.name: row.version for row in answer.rows}
            self._asked = {name: each for name, each in self._asked.items() if each.version == versions.get(name)}
        known = bool(self._answer.rows)
        self.query_one("#environments").display = known
        self.query_one(Nothing).display = not known and (self._answered or snapshot.engine is None)
        rows = [(row, self._answer.use_of(row)) for row in self._answer.rows]
        table = self.query_one(EnvironmentsTable)
        names = {row.name: plugin_of(row) for row in self._answer.rows}
        if not self._awaited and table.key is not None and table.key not in names:
            self._awaited = table.key.partition("/")[0]  # a plugin that has never loaded is listed under its own name
        table.show(rows, snapshot.tasks)
        new = next((name for name, plugin in names.items() if plugin == self._awaited), None)
        if new is not None:
            table.go_to(new, scroll=True)
            self._awaited = ""
        self._show_current()

    def _with_checks(self, answer: EnvironmentsAnswer) -> EnvironmentsAnswer:
        """The answer with what was found by hand, where that is of the same version and newer than what is stored."""
        rows = []
        for row in answer.rows:
            own = self._checks.get(row.name, row)
            newer = own.version == row.version and (own.checked or 0.0) > (row.checked or 0.0)
            rows.append(replace(row, findings=own.findings, checked=own.checked) if newer else row)
        return replace(answer, rows=tuple(rows))

    def _show_current(self) -> None:
        row, snapshot = self.current, self.marlaas.snapshot
        use = self._answer.use_of(row) if row else EnvironmentUse()
        asked = self._asked.get(row.name) if row else None
        code = self._answer.lines.get(row.name, {}) if row else {}
        defined = self._answer.definitions.get(row.name) if row else None
        self.query_one(EnvironmentDetail).show(row, use, snapshot.tasks, asked, snapshot.now, code, defined)

    def on_keyed_table_moved(self, message: KeyedTable.Moved) -> None:
        """Show the environment under the cursor."""
        self._show_current()
        self.query_one(EnvironmentDetail).scroll_home(animate=False)
        self.renew_keys()

    def on_keyed_table_opened(self, message: KeyedTable.Opened) -> None:
        """Focus the details."""
        self.query_one(EnvironmentDetail).focus()

    @property
    def first_keys(self) -> tuple[str, ...]:
        """What mends the environment under the cursor, where something is wrong with it."""
        row = self.current
        if row is None or self.marlaas.web:
            return ()
        if row.state == "waiting":
            return ("allow",)
        return ("edit",) if trouble(row, self._answer.use_of(row)) else ()

    def why_not(self, action: str) -> str:
        """Why an action is refused: reading alone, or a browser, allows fewer of them."""
        if action == "add":
            return self.marlaas.may_act()
        if action not in (*_TOUCHING, "check", "prompts", "play", "copy"):
            return ""
        if action in ("play", "edit", "new", "allow") and self.marlaas.web:
            return "This needs a terminal of its own: it is not offered in a browser."
        if action in _TOUCHING and (reason := self.marlaas.may_act()):
            return reason
        if action == "new":
            return ""
        if self.current is None:
            return "There is no environment under the cursor."
        return "It is not waiting for libraries." if action == "allow" and self.current.state != "waiting" else ""

    def action_back(self) -> None:
        """Go back from requested findings or prompts to the details, then to the view before."""
        row = self.current
        if self.maximized is None and row is not None and row.name in self._asked:
            del self._asked[row.name]
            self._show_current()
        else:
            super().action_back()

    def action_copy(self) -> None:
        """Copy what is shown."""
        if row := self.current:
            self.marlaas.copy(self.query_one(EnvironmentDetail).text, f"What is known of {row.name}")

    def action_reload(self) -> None:
        """Have the engine read the plugin again."""
        if row := self.current:
            plugin = plugin_of(row)
            self.marlaas.command("reload", done=f"The plugin {plugin} was read again.", plugin=plugin)

    # Slow work runs in a thread; its result is shown among the details until the next one.

    def action_check(self) -> None:
        """Check whether the environment is fit to train on."""
        self._find_out("Checking it; this takes some seconds …", self._checked)

    def action_prompts(self) -> None:
        """Show what the model would be asked."""
        self._find_out("Looking at its first prompts …", self._peeked)

    def _find_out(self, meanwhile: str, how: Callable[[EnvironmentRow], Asked]) -> None:
        if row := self.current:
            self._tell(row.name, Asked(meanwhile, checks=how == self._checked))
            self.run_worker(partial(self._ask, row, how), thread=True, exclusive=True, exit_on_error=False)

    def _ask(self, row: EnvironmentRow, how: Callable[[EnvironmentRow], Asked]) -> None:
        try:
            asked = how(row)
        except MarlaasError as error:
            asked = Asked(f"That did not work: {error}")
        self.app.call_from_thread(self._tell, row.name, asked)

    def _tell(self, name: str, asked: Asked) -> None:
        version = next((row.version for row in self._answer.rows if row.name == name), "")
        self._asked[name] = replace(asked, version=version)
        self._answer = self._with_checks(self._answer)
        self.show_again()

    def _checked(self, row: EnvironmentRow) -> Asked:
        told = json.loads(verb_output(self.marlaas.home, "env", "check", row.name, "--json", seconds=CHECK_SECONDS))
        found = [Finding(**finding) for each in told["environments"] for finding in each["findings"]]
        self._checks[row.name] = replace(row, findings=tuple(found), checked=self.marlaas.snapshot.now)
        return Asked(f"Checked by hand: {verdict(found)}", tuple(map(spoken, found)), checks=True)

    def _peeked(self, row: EnvironmentRow) -> Asked:
        from ..home.environments.peeking import peeked, prompt_lines

        peek = peeked(self.marlaas.home, row.name, {})
        lines = [text for place, ask in enumerate(peek.asks, 1) for text in ("", f"{place}.", *prompt_lines(ask))]
        title = "Its first prompts" if not peek.problem else f"Its prompts cannot be shown: {peek.problem}"
        return Asked(title, tuple(lines))

    def action_add(self) -> None:
        """Open the form for a task on the environment under the cursor."""
        from .submit import SubmitScreen

        if row := self.current:
            self.app.push_screen(SubmitScreen(environment=row.name))
        else:
            self.marlaas.action_add()

    # Actions that need the whole terminal get it.

    def action_play(self) -> None:
        """Play the environment in the model's place."""
        if row := self.current:
            self._hand_over(verb_command(self.marlaas.home, "env", "play", row.name), f"Loading {line(row.name)} …")

    def action_allow(self) -> None:
        """Show which libraries it needs, and install them on consent."""
        if row := self.current:
            plugin = plugin_of(row)
            self._hand_over(verb_command(self.marlaas.home, "env", "allow", plugin), f"Reading {line(plugin)} …")

    def action_edit(self) -> None:
        """Open the plugin in an editor, at the line at which something is wrong."""
        from .editing import edit_source

        if row := self.current:
            edit_source(self.marlaas, *place_to_mend(row, self._answer.use_of(row)))

    def action_new(self) -> None:
        """Ask for name and shape, write the template, open it in the editor."""
        from .dialogs.new_environment import write_environment

        write_environment(self.marlaas, tell=self._await)

    def _await(self, path: Path) -> None:
        self._awaited = path.stem

    def _hand_over(self, command: Sequence[str], meanwhile: str) -> None:
        try:
            with self.app.suspend():
                hand_over(command, meanwhile)
        except SuspendNotSupported:
            self.marlaas.say(f"This needs a terminal: {shlex.join(command)}", bad=True)
        except OSError as error:
            self.marlaas.say(f"That could not be started: {error}", bad=True)
