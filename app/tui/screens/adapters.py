"""The view of adapters: versions on disk with scores; chat, export, rollback, deletion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from marlaas.engine.adapters.use import USE
from marlaas.engine.queue.submission.transitions import TRANSITIONS
from marlaas.engine.store.queries.learning import KeptVersion
from marlaas.engine.store.rows import FINISHED, VersionRow

from ...lists.lines import (
    SORTS,
    Choice,
    Column,
    Learner,
    Row,
    chosen_versions,
    learner,
    learners,
    summary,
    version_columns,
    version_row,
)
from ...operations.commands import arguments, owner, reference
from ...questions import AdaptersAnswer, Question, adapters
from ...reading import opened
from ...text.format import counted, line, size
from ...text.tasks import shown_state
from ..context.feed import Snapshot
from ..widgets.bars import FilterBar, Nothing
from ..widgets.tables import GUTTER, MARKS, KeyedTable, moves
from .queue import Preview
from .view import View


class VersionTable(KeyedTable, inherit_bindings=False):
    """A row per version, with marks and the keys of a list. Only rows in sight are formatted."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "chat", id="adapters.chat"),
        *moves("list"),
        MARKS,
    ]
    GUTTER = GUTTER

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.versions: Mapping[str, KeptVersion] = {}
        self._now = 0.0

    def show_versions(self, versions: Sequence[KeptVersion], columns: tuple[Column, ...], now: float) -> None:
        self.versions = {str(kept.row.id): kept for kept in versions}
        self._now = now
        self.show_rows(columns, [Row(key, ()) for key in self.versions])

    def row_text(self, row: Row, width: int, below: bool = False) -> Content:
        kept = self.versions[row.key]
        return super().row_text(version_row(kept, self.columns, self._now), width)


_NEED_A_VERSION = ("chat", "beside", "export", "delete", "roll_back", "begin", "copy_row", "copy_json")
_ACTS = ("chat", "beside", "delete", "roll_back", "begin")
_EMPTY = """No adapters yet: a task's first version appears when it starts.

Submit a task (a, or `marlaas submit FILE`), and talk with what it learns here."""


class AdaptersScreen(View):
    """Versions, and, with room, the curve of the current one's task."""

    HELP = """Adapter versions on the disk, with their newest held-out score. Enter talks with one; c talks with it
beside the marked one (space), or beside the base.

e writes a PEFT folder, or a whole model.
f begins a new task from it, b lets its own task go on from it, x deletes it.
o shows the selected task alone, / filters by number, name, tenant and label."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "beside", "beside", id="adapters.beside"),
        Binding("e", "export", "export", id="adapters.export"),
        Binding("b", "roll_back", "roll back", id="adapters.roll_back"),
        Binding("f", "begin", "train on", id="adapters.begin"),
        Binding("x", "delete", "delete", show=False, id="adapters.delete"),
        Binding("y", "copy_row", "copy", show=False, id="adapters.copy"),
        Binding("Y", "copy_json", "copy JSON", show=False, id="adapters.copy_json"),
        Binding("slash", "filter", "filter", show=False, key_display="/", id="adapters.filter"),
        Binding("s", "sort", "sort", show=False, id="adapters.sort"),
        Binding("o", "only", "this task, all tasks", show=False, id="adapters.only"),
    ]
    DEFAULT_CSS = """
    AdaptersScreen #sums { height: 1; padding: 0 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
    AdaptersScreen #beside { height: 1fr; }
    AdaptersScreen VersionTable { width: 3fr; height: 1fr; }
    AdaptersScreen Preview { width: 2fr; height: 100%; border-left: solid $panel-lighten-2; }
    AdaptersScreen.-wide Preview { display: block; }
    AdaptersScreen Preview VerdictLine, AdaptersScreen Preview VerdictLine.-wrong { height: 3; }
    AdaptersScreen Preview Horizontal { layout: vertical; }
    AdaptersScreen Preview Horizontal > * { width: 100%; height: 1fr; }
    AdaptersScreen Preview NewestRollout { border-left: none; border-top: solid $panel-lighten-2; }
    """
    AUTO_FOCUS = LIST = "VersionTable"

    def __init__(self) -> None:
        super().__init__()
        self._choice = Choice()
        self._answer: AdaptersAnswer | None = None
        self._chosen: Sequence[KeptVersion] = ()
        self._shown_task: int | None = None
        self._asked: Learner | None = None

    @property
    def table(self) -> VersionTable:
        return self.query_one(VersionTable)

    @property
    def current(self) -> KeptVersion | None:
        return self.table.versions.get(self.table.current)

    @property
    def marked(self) -> Sequence[KeptVersion]:
        return [kept for key, kept in self.table.versions.items() if key in self.table.marks]

    def question(self) -> Question:
        about = self._asked if self.has_class("-wide") else None
        return Question(adapters, (about, self.marlaas.clock), self._answer)

    def content(self) -> ComposeResult:
        yield FilterBar("17 name tenant best")
        with Horizontal(id="beside"):
            yield VersionTable(id="versions")
            yield Preview()
        yield Static("", id="sums", markup=False)
        yield Nothing(_EMPTY)

    def show_content(self, snapshot: Snapshot, answer: Any) -> None:
        self._answer = known = answer or self._answer
        versions = known.versions if known else ()
        self._chosen = chosen_versions(versions, self._choice)
        for widget in self.query("#sums, #beside"):
            widget.display = bool(versions)
        self.query_one(Nothing).display = not versions and (known is not None or snapshot.engine is None)
        width = (self.app.size.width * 3 // 5 if self.has_class("-wide") else self.app.size.width) - 4 - GUTTER
        self.table.show_versions(self._chosen, version_columns(width), snapshot.now)
        if self._shown_task != self.marlaas.selected and versions:
            self._shown_task = self.marlaas.selected
            mine = [kept for kept in self._chosen if kept.row.task == self._shown_task]
            best = next((kept for kept in mine if "best" in kept.label), mine[0] if mine else None)
            self.table.go(str(best.row.id) if best else None)
        self.query_one("#sums", Static).update(summary(self._chosen, versions))
        self._show_current()
        if self._choice.words:
            self.query_one(FilterBar).tell(f"{len(self._chosen)} of {len(versions)}")

    def _show_current(self) -> None:
        """Ask for more once the cursor rests."""
        kept, snapshot = self.current, self.marlaas.snapshot
        task = snapshot.task(kept.row.task) if kept is not None else None
        asked = learner(task, kept.row.policy) if task is not None and kept is not None else None
        serving = snapshot.serving
        rows = {asked: replace(learners(task)[asked], state=shown_state(task, serving))} if task and asked else {}
        preview = self._answer.preview if self._answer is not None else None
        self.query_one(Preview).show(rows, preview, snapshot.now, snapshot.problem)
        if asked != self._asked:
            self._asked = asked
            self.ask_at_rest()

    def on_virtual_list_moved(self) -> None:
        self._show_current()
        self.renew_keys()

    def on_virtual_list_opened(self) -> None:
        if reason := self.why_not("chat"):
            self.marlaas.say(reason, bad=True)
        else:
            self.action_chat()

    def _choose(self, **choice: Any) -> None:
        self._choice = replace(self._choice, **choice)
        self.show_again()

    def action_sort(self) -> None:
        field = SORTS[(SORTS.index(self._choice.sort) + 1) % len(SORTS)]
        self._choose(sort=field)
        self.marlaas.say(f"Sorted by {field}." if field != "task" else "The newest task comes first.")

    def action_only(self) -> None:
        wanted = self.current.row.task if self.current else self.marlaas.selected
        self._choose(task=None if self._choice.task is not None else wanted)

    def filter(self, text: str) -> None:
        self._choose(words=tuple(text.lower().split()))

    def why_not(self, action: str) -> str:
        """Needs a version, and a fitting state of its task."""
        if action not in _NEED_A_VERSION:
            return ""
        kept = self.current
        if kept is None:
            return "There is no version under the cursor."
        task, state = kept.row.task, line(kept.task_state, 20)
        match action:
            case "export" if self.marlaas.web or self.marlaas.readonly:
                return "This writes files on the engine's machine: not in a browser, and not in the read-only mode."
            case _ if action in _ACTS and (reason := self.marlaas.may_act()):
                return reason
            case "delete" if kept.task_state not in FINISHED:
                return f"Task {task} is {state} and goes on from its versions; those of finished tasks can be deleted."
            case "roll_back" if kept.task_state not in TRANSITIONS["rollback"]:
                return f"Task {task} is {state}: pause it first (p in the queue)."
            case "roll_back" if kept.row.number >= kept.steps:
                return f"Version {kept.row.number} is the last of task {task}: no step would be left to make."
        return ""

    # The chat's screen is imported on demand, in a thread: its imports are slow.

    def action_chat(self) -> None:
        if kept := self.current:
            self._open_chat([kept.row])

    def action_beside(self) -> None:
        """Chat with the version next to the marked one, else next to the base."""
        if kept := self.current:
            others = [each for each in self.marked if each.row.id != kept.row.id]
            self._open_chat([kept.row, others[0].row if others else None])

    def _open_chat(self, versions: Sequence[VersionRow | None]) -> None:
        """``versions``: sides; None is the base."""

        def load() -> Screen[Any]:
            from ..chat.talking import Side
            from .chat import ChatScreen

            return ChatScreen([Side(version) for version in versions])

        def show(chat: Screen[Any]) -> None:
            if self.is_current:
                self.app.push_screen(chat)

        self.marlaas.work(load, show, "Opening the chat …")

    def action_roll_back(self) -> None:
        if (kept := self.current) is None:
            return
        row, task = kept.row, self.marlaas.snapshot.task(kept.row.task)
        made = learners(task)[learner(task, row.policy)].step if task else 0
        later = max(0, made - row.number)
        lost = f"Its {later} later step{' is' if later == 1 else 's are'} void" if later else "No step is lost"
        anew = "" if row.resumable else " It begins with a new optimizer: the old one's moments are gone."
        question = (
            f"Let task {owner(row)}, {line(row.task_name, 40)}, go on from version {row.number}? {lost}; later versions"
            f" lose their files and scores.{anew}"
        )
        done = f"Task {owner(row)} goes on from version {row.number}."
        self.marlaas.confirm(question, partial(self.marlaas.command, "rollback", [row.task], done, **arguments(row)))

    def action_delete(self) -> None:
        """Ask for the task's number, then delete the marked versions, or the current one."""
        if (kept := self.current) is None:
            return
        doomed = list(self.marked) or [kept]
        task, name = doomed[0].row.task, line(doomed[0].row.task_name, 40)
        if any(each.row.task != task or each.task_state not in FINISHED for each in doomed):
            self.marlaas.say("Mark versions of one finished task: they are deleted together.", bad=True)
            return
        several = len({each.row.policy for each in doomed}) > 1
        which = ", ".join(reference(each.row) if several else str(each.row.number) for each in doomed)
        whose = str(task) if several else owner(doomed[0].row)
        named = f"{counted(len(doomed), 'version').partition(' ')[2]} {which} of task {whose}, {name}"
        taken = size(sum(each.row.size for each in doomed))
        question = f"Delete {named} ({taken})? Nothing brings back what was not exported."

        def act() -> None:
            for each in doomed:
                done = f"Version {each.row.number} of task {owner(each.row)} is deleted."
                self.marlaas.command("delete", [task], done, **arguments(each.row))

        self.marlaas.confirm(question, act, typed=str(task))

    def action_export(self) -> None:
        from ...operations.results import no_gain
        from ...report.export import export
        from .dialogs import export_adapter, exported

        if (kept := self.current) is None:
            return

        def write(folder: Path, gguf: bool, merge: bool) -> tuple[str, str]:
            files = export(self.marlaas.home, kept.row, folder, gguf, merge)
            with opened(self.marlaas.home) as reader:
                warning = no_gain(reader, kept.row)
            return next(file for file in files if file.name == USE).read_text(encoding="utf-8"), warning

        def show(folder: Path, gguf: bool, merge: bool, written: tuple[str, str]) -> None:
            text, warning = written
            library = "transformers" if merge else "PEFT"
            programs = f"{library}, vLLM, llama.cpp and Ollama" if gguf else f"{library} and vLLM"
            words = f"{folder.name} is there, for {programs}: {USE} says how. {warning}".rstrip()
            self.marlaas.say(words, bad=bool(warning))
            self.app.push_screen(exported(self.marlaas, folder, text))

        def act(wish: tuple[Path, bool, bool] | None) -> None:
            if wish:
                self.marlaas.say(f"Writing {wish[0]} …")
                self.marlaas.work(partial(write, *wish), partial(show, *wish))

        folder = Path.cwd() / f"task-{owner(kept.row).replace('/', '-')}-v{kept.row.number}"
        names = chain([folder], (folder.with_name(f"{folder.name}-{again}") for again in count(2)))
        unused = next(name for name in names if not name.exists())
        self.app.push_screen(export_adapter(f"{named_version(kept)}, {line(kept.row.task_name, 40)},", unused), act)

    def action_begin(self) -> None:
        """Open the form for a similar task that begins from the version."""
        from .submit import SubmitScreen

        if kept := self.current:
            self.app.push_screen(SubmitScreen(copy_from=kept.row.task, start=kept.row))

    def copied(self) -> tuple[str, Sequence[object], str]:
        kept = self.current
        assert kept is not None  # why_not sees to it
        return kept.row.name, [asdict(kept)], named_version(kept).capitalize()


def named_version(kept: KeptVersion) -> str:
    """The version in words, for the middle of a sentence."""
    return f"version {kept.row.number} of task {owner(kept.row)}"
