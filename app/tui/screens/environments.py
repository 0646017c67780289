"""The view of environments: states, errors, findings."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual.app import ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from marlaas.engine.environments.conformance.finding import Finding
from marlaas.engine.errors import MarlaasError
from marlaas.engine.spec.task import TOGETHER
from marlaas.engine.store.queries.machine import EnvironmentUse
from marlaas.engine.store.rows import EnvironmentRow, TaskRow

from ...lists.filters import MANY, short_names
from ...lists.lines import Cell, Column, Row, table_cells
from ...operations.environments.source_lines import place_to_mend
from ...questions import EnvironmentsAnswer, Question, environments
from ...text.environments import (
    Fact,
    facts,
    failed_share,
    mark,
    plugin_of,
    spoken,
    takes,
    trouble,
    trouble_words,
    verdict,
)
from ...text.format import cells, line, plain
from ..context.editor import edit_source, hand_over, verb_command, verb_output
from ..context.feed import Snapshot
from ..widgets.bars import Nothing
from ..widgets.tables import KeyedTable
from .engine import labelled
from .view import IN_A_TERMINAL, View

_STATES = {
    "ready": ("●", "$text-success"),
    "loading": ("·", ""),
    "broken": ("✗", "bold $text-error"),
    "stale": ("!", "$text-warning"),
    "failing": ("!", "bold $text-error"),
    "hidden": ("⊘", "dim"),
    "waiting": ("‖", "$text-warning"),
    "building": ("·", ""),
}
_COLUMNS = (
    Column("environment", 30),
    Column("state", 10),
    Column("version", 8),
    Column("checks", 6),
    Column("tasks", 5, right=True),
    Column("episodes", 8, right=True),
    Column("failed", 6, right=True),
    Column("median", 6, right=True),
    Column("p95", 7, right=True),
)
_FIRST_TO_GO = ("p95", "episodes", "median", "version", "checks")
_WRONG, _LEAST_WRONG = "what is wrong", 30


def _columns_within(room: int, wrong: bool, longest: int) -> tuple[Column, ...]:
    """As many columns as fit; what is ``wrong``, if anything, gets the rest.

    ``longest``: cells of the longest name.
    """
    columns = [replace(_COLUMNS[0], width=min(_COLUMNS[0].width, max(11, longest))), *_COLUMNS[1:]]
    for name in _FIRST_TO_GO:
        if table_cells(columns) + (_LEAST_WRONG if wrong else 0) > room:
            columns = [column for column in columns if column.name != name]
    return (*columns, Column(_WRONG, max(1, room - table_cells(columns) - 1))) if wrong else tuple(columns)


def used_by(row: EnvironmentRow, tasks: Sequence[TaskRow]) -> list[TaskRow]:
    """Unfinished tasks that name the environment, with or without its plugin."""
    names = {row.name, row.name.rpartition("/")[2]}
    return [task for task in tasks if task.unfinished and not names.isdisjoint(task.environment.split(TOGETHER))]


def _row(
    columns: Sequence[Column], row: EnvironmentRow, use: EnvironmentUse, tasks: Sequence[TaskRow], name: str
) -> Row:
    glyph, style = _STATES.get(row.state, ("?", ""))
    many, checks, timed = use.failed > MANY, mark(row), bool(use.statuses.get("ok"))
    shown = {
        "environment": Cell(line(name, 30)),
        "state": Cell(f"{glyph} {line(row.state, 10)}", style),
        "version": Cell(line(row.version)[:8]),
        "checks": Cell(checks, "$text-error" if checks.startswith("✗") else ""),
        "tasks": Cell(str(len(used_by(row, tasks)) or "")),
        "failed": Cell(failed_share(use) if use.episodes > 0 else "", "$text-error" if many else ""),
        "episodes": Cell(f"{use.episodes:,}" if use.episodes > 0 else ""),
        "median": Cell(takes(use.median) if timed else ""),
        "p95": Cell(takes(use.slow) if timed else ""),
        _WRONG: Cell(
            trouble_words(row, use), "$text-error" if row.state in ("broken", "failing") or many else "$text-warning"
        ),
    }
    return Row(row.name, tuple(shown[column.name] for column in columns))


_LABEL = 13
_LEVELS = {
    "error": "$text-error",
    "warning": "$text-warning",
    "code": "bold",
    "hint": "$text-muted",
    "wrong": "bold $text-error",
}


@dataclass(frozen=True)
class Asked:
    """Requested prompts or findings of an environment."""

    title: str
    lines: tuple[str, ...] = ()
    checks: bool = False
    """True: findings, then shown only here."""
    version: str = ""
    """They do not apply to later versions."""


class EnvironmentDetail(VerticalScroll, can_focus=True):
    """Details as one text: the last request and errors come first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", "down", show=False, id="detail.down"),
        Binding("k", "scroll_up", "up", show=False, id="detail.up"),
    ]
    DEFAULT_CSS = """
    EnvironmentDetail { height: 1fr; padding: 0 1; scrollbar-gutter: stable; border-top: solid $panel-lighten-2; }
    EnvironmentDetail:focus { border-top: solid $primary; }
    """

    lines: Sequence[Fact] = ()

    def compose(self) -> ComposeResult:
        yield Static("", markup=False)

    @property
    def text(self) -> str:
        return "\n".join(
            each.text if each.label is None else f"{each.label:<{_LABEL}}{each.text}" for each in self.lines
        )

    def show(self, title: str, lines: Sequence[Fact]) -> None:
        self.border_title = Content(title)  # a plain text is read as markup
        self.lines = lines
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        outer = self.outer_size.width or self.app.size.width
        width = outer - self.gutter.width - self.styles.scrollbar_size_vertical  # the scrollbar may come and go
        shown = (part for each in self.lines for part in _shown(each, width))
        self.query_one(Static).update(Content("\n").join(shown))


def _shown(fact: Fact, width: int) -> list[Content]:
    """Text is aligned after the label."""
    style = _LEVELS.get(fact.level, "")
    if fact.label is None:
        return [Content.styled(fact.text, style)]
    return [Content.assemble(*parts) for parts in labelled(fact.label, fact.text, style, _LABEL, width)]


def detail_lines(row: EnvironmentRow, answer: EnvironmentsAnswer, asked: Asked | None, now: float) -> list[Fact]:
    """All facts of an environment. Every part is foreign text."""
    use, code, defined = answer.use_of(row), answer.lines.get(row.name, {}), answer.definitions.get(row.name)
    lines: list[Fact] = []
    if asked is not None:
        lines.append(Fact(None, line(asked.title, 100), "code"))
        if any(text.startswith("✗") for text in asked.lines):
            lines.append(Fact(None, "E opens your editor on it", "hint"))
        lines += [Fact(None, text) for text in (*asked.lines, "")]
    known = list(facts(row, use, now, code, not (asked and asked.checks)))
    if place := next((place for place, fact in enumerate(known, 1) if fact.level == "code"), 0):
        known.insert(place, Fact("", "E opens your editor there", "hint"))
    lines += known
    if row.state == "waiting":
        lines.append(Fact("libraries", "i shows them, and installs them if you agree"))
    if description := plain(row.description).strip():
        lines += [Fact(None, text) for text in ("", *description.split("\n")[:12])]
    if defined is not None:
        wrong, digits = trouble(row, use), len(str(defined.first + len(defined.lines)))
        at = wrong.line if wrong and wrong.file.endswith(defined.file) else 0
        lines += [Fact(None, ""), Fact(None, line(defined.file, 60), "code")]
        lines += [
            Fact(None, f"{number:>{digits}} │ {plain(text)}", "wrong" if number == at else "")
            for number, text in enumerate(defined.lines, defined.first)
        ]
    return lines


CHECK_SECONDS = 300.0
"""Longest check."""
_EMPTY = """No environments are known yet: no engine has looked into the plugins folder.

S starts one, N writes a template that runs at once. Or from a shell

    marlaas engine start
    marlaas env new my_env"""


class EnvironmentsScreen(View):
    """A table, and the details of one environment next to it or below."""

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
    AUTO_FOCUS = "KeyedTable"

    def __init__(self) -> None:
        super().__init__()
        self._answer = EnvironmentsAnswer()
        self._answered = False
        self._asked: dict[str, Asked] = {}
        self._awaited = ""
        """A plugin to which the cursor goes as soon as it is listed: a new one, or one whose name has changed."""

    @property
    def current(self) -> EnvironmentRow | None:
        key = self.query_one(KeyedTable).key
        return next((row for row in self._answer.rows if row.name == key), None)

    def question(self) -> Question:
        return Question(environments, (self.marlaas.clock,))

    def content(self) -> ComposeResult:
        with Container(id="environments", classes="panes"):
            yield KeyedTable()
            yield EnvironmentDetail()
        yield Nothing(_EMPTY)

    def show_content(self, snapshot: Snapshot, answer: Any) -> None:
        if answer is not None:
            self._answer, self._answered = answer, True
            versions = {row.name: row.version for row in answer.rows}
            self._asked = {name: each for name, each in self._asked.items() if each.version == versions.get(name)}
        rows = self._answer.rows
        self.query_one("#environments").display = bool(rows)
        self.query_one(Nothing).display = not rows and (self._answered or snapshot.engine is None)
        table = self.query_one(KeyedTable)
        plugins = {plugin_of(row): row.name for row in reversed(rows)}
        if not self._awaited and table.key is not None and all(row.name != table.key for row in rows):
            self._awaited = table.key.partition("/")[0]  # one that has never loaded is listed under its own name
        room = 100 if self.has_class("-wide") else self.app.size.width - 4
        used, names = [(row, self._answer.use_of(row)) for row in rows], short_names([row.name for row in rows])
        longest = max((cells(line(name)) for name in names.values()), default=0)
        columns = _columns_within(room, any(trouble_words(row, use) for row, use in used), longest)
        table.show_rows(columns, [_row(columns, row, use, snapshot.tasks, names[row.name]) for row, use in used])
        if self._awaited in plugins:
            table.go(plugins[self._awaited])
            self._awaited = ""
        self._show_current()

    def _show_current(self) -> None:
        row, snapshot, detail = self.current, self.marlaas.snapshot, self.query_one(EnvironmentDetail)
        if row is None:
            detail.show("environments", ())
        else:
            lines = detail_lines(row, self._answer, self._asked.get(row.name), snapshot.now)
            detail.show(line(row.name, 60), lines)

    def on_virtual_list_moved(self) -> None:
        self._show_current()
        self.query_one(EnvironmentDetail).scroll_home(animate=False)
        self.renew_keys()

    def on_virtual_list_opened(self) -> None:
        self.query_one(EnvironmentDetail).focus()

    @property
    def first_keys(self) -> tuple[str, ...]:
        row = self.current
        if row is None or self.marlaas.web:
            return ()
        if row.state == "waiting":
            return ("allow",)
        return ("edit",) if trouble(row, self._answer.use_of(row)) else ()

    def why_not(self, action: str) -> str:
        """Read-only mode and browsers allow fewer actions."""
        match action:
            case "play" | "edit" | "new" | "allow" if self.marlaas.web:
                return IN_A_TERMINAL
            case "add" | "reload" | "edit" | "new" | "allow" if reason := self.marlaas.may_act():
                return reason
            case "reload" | "edit" | "allow" | "check" | "prompts" | "play" | "copy" if self.current is None:
                return "There is no environment under the cursor."
            case "allow" if self.current is not None and self.current.state != "waiting":
                return "It is not waiting for libraries."
        return ""

    def action_back(self) -> None:
        row = self.current
        if self.maximized is None and row is not None and row.name in self._asked:
            del self._asked[row.name]
            self._show_current()
        else:
            super().action_back()

    def action_copy(self) -> None:
        if row := self.current:
            self.marlaas.copy(self.query_one(EnvironmentDetail).text, f"What is known of {row.name}")

    def action_reload(self) -> None:
        if row := self.current:
            plugin = plugin_of(row)
            self.marlaas.command("reload", done=f"The plugin {plugin} was read again.", plugin=plugin)

    # Slow work runs in a thread; its result stays until the next one.

    def action_check(self) -> None:
        self._find_out("Checking it; this takes some seconds …", self._checked)

    def action_prompts(self) -> None:
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
        self.show_again()

    def _checked(self, row: EnvironmentRow) -> Asked:
        told = json.loads(verb_output(self.marlaas.home, "env", "check", row.name, "--json", seconds=CHECK_SECONDS))
        found = [Finding(**finding) for each in told["environments"] for finding in each["findings"]]
        return Asked(f"Checked by hand: {verdict(found)}", tuple(map(spoken, found)), checks=True)

    def _peeked(self, row: EnvironmentRow) -> Asked:
        from ...operations.environments.peeking import peeked, prompt_lines

        peek = peeked(self.marlaas.home, row.name, {})
        lines = [text for place, ask in enumerate(peek.asks, 1) for text in ("", f"{place}.", *prompt_lines(ask))]
        title = "Its first prompts" if not peek.problem else f"Its prompts cannot be shown: {peek.problem}"
        return Asked(title, tuple(lines))

    def action_add(self) -> None:
        from .submit import SubmitScreen

        self.app.push_screen(SubmitScreen(environment=self.current.name if self.current else ""))

    def action_play(self) -> None:
        if row := self.current:
            self._hand_over(verb_command(self.marlaas.home, "env", "play", row.name), f"Loading {line(row.name)} …")

    def action_allow(self) -> None:
        if row := self.current:
            plugin = plugin_of(row)
            self._hand_over(verb_command(self.marlaas.home, "env", "allow", plugin), f"Reading {line(plugin)} …")

    def action_edit(self) -> None:
        """Open the plugin in an editor, at the wrong line."""
        if row := self.current:
            edit_source(self.marlaas, *place_to_mend(row, self._answer.use_of(row)))

    def action_new(self) -> None:
        """Ask for name and shape, write the template, open it in the editor."""
        self.write_environment(tell=self._await)

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
