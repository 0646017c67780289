"""The view of adapters: versions, chat, export, rollback."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Static

from marlaas.engine.adapters.use import USE
from marlaas.engine.errors import MarlaasError
from marlaas.engine.home.disk import home_size
from marlaas.engine.queue.submission.transitions import TRANSITIONS
from marlaas.engine.store.queries.learning import KeptVersion
from marlaas.engine.store.rows import FINISHED, TrajectoryRow, VersionRow

from ...lists.filters import Listing
from ...lists.lines import SORTS, Choice, Learner, VersionLine, head, learner, learners, lines, summary, text
from ...operations.commands import arguments, owner, reference
from ...questions import AdaptersAnswer, AdaptersQuestion
from ...reading import opened
from ...text.format import excerpt, line, size
from ...text.scores import held_out
from ...text.tasks import shown_state
from ..context.snapshot import Snapshot
from ..widgets.bars import FilterBar, Nothing
from ..widgets.tables import GUTTER, OpenReader, VirtualList
from .queue import NewestRollout, Preview
from .view import View

if TYPE_CHECKING:
    from marlaas.engine.rollout.talk import Speech

    from .dialogs.questions import ExportWish


# The versions of the view of adapters, and a conversation with one.

# The version under the cursor in a few lines: what it is, its score, and what can be done with it.


class VersionDetail(Widget):
    """The details of a version that the list has no room for."""

    DEFAULT_CSS = """
    VersionDetail { height: 4; padding: 0 1; border-top: solid $panel-lighten-2; }
    """

    kept: reactive[KeptVersion | None] = reactive(None)
    about: reactive[str] = reactive("")
    """The version's task, in a few safe words."""

    def render(self) -> Content:
        """Three lines."""
        if self.kept is None:
            return Content("")
        row, width = self.kept.row, self.content_size.width
        measured = "not measured" if row.basis is None else f"held-out {held_out(row.score, row.basis)}"
        resumable = f"resumable: {'yes' if row.resumable else 'no'}"
        name = line(f"{row.name}  {row.tenant} / {row.task_name}  ({self.kept.environment})", width)
        words = (f"version {row.number}", self.kept.label, measured, size(row.size), resumable)
        numbers = line(" · ".join(filter(None, words)), width)
        return Content.assemble((name, "bold"), "\n", numbers, "\n", (line(self.about, width), "$text-muted"))


# The versions as a list; keys act on the line under the cursor.


class VersionHead(Widget):
    """The names of the list's columns, above it."""

    DEFAULT_CSS = """
    VersionHead { height: 1; padding: 0 3 0 1; color: $text-muted; }  /* the list's scrollbar is two cells */
    """

    def render(self) -> Content:
        """In the width that there is."""
        return Content(" " * GUTTER + head(max(1, self.content_size.width - GUTTER)))


class VersionList(VirtualList[VersionLine]):
    """All rows are in memory: few versions of a task are kept."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "open", "chat", id="adapters.chat")]

    def __init__(self, open_reader: OpenReader, **options: Any) -> None:
        super().__init__(open_reader, **options)
        self._now = 0.0
        self._sort = ""

    def show_lines(self, lines: Sequence[VersionLine], now: float, sort: str) -> None:
        """Show these lines; the cursor stays on its version."""
        self._now, self._sort = now, sort
        self.show(Listing.of({each.row.id: each for each in lines}))

    @property
    def current_version(self) -> KeptVersion | None:
        """The version under the cursor."""
        row = self.current_row
        return row.kept if row else None

    @property
    def marked(self) -> list[KeptVersion]:
        """The marked versions, in the list's order."""
        rows = (self.pages.row(place) for place in range(self.count))
        return [row.kept for row in rows if row and row.row.id in self.marks]

    def row_text(self, row: VersionLine, width: int) -> Content:
        """The line of a version; best and final ones stand out."""
        label = row.kept.label
        style = "$text-success" if "best" in label else "$text-primary" if "final" in label else ""
        return Content.styled(text(row, width, self._now, self._sort), style)


# The conversation with one side as it continues: questions, thoughts (dimmed) and answers, scrolled to the newest.
#
# What a model wrote is cleaned here, and cut if it is too long to read.

CHARACTERS, LINES = 20_000, 400
"""Most characters and lines of one answer; more is counted and not drawn."""
KEPT = 200
"""Messages that are shown."""
_ENDS = {"length": "cut at the limit of tokens", "full": "The conversation is full: ctrl+n begins another one."}


class ChatColumn(VerticalScroll, can_focus=True):
    """The conversation with one side."""

    ALLOW_MAXIMIZE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", "down", show=False, id="chat.down"),
        Binding("k", "scroll_up", "up", show=False, id="chat.up"),
        Binding("g", "scroll_home", "top", show=False, id="chat.top"),
        Binding("G", "scroll_end", "bottom", show=False, id="chat.bottom"),
    ]
    DEFAULT_CSS = """
    ChatColumn { width: 1fr; height: 1fr; padding: 0 1; border-top: solid $panel-lighten-2; }
    ChatColumn:focus { border-top: solid $primary; }
    ChatColumn Static { margin-bottom: 1; }
    ChatColumn NewestRollout { height: 100%; padding: 0; border-left: none; }
    """

    def __init__(self, title: str, **options: Any) -> None:
        """``title``: safe text."""
        super().__init__(**options)
        self._title = title
        self.border_title = Content(title)  # a plain text would be read as markup
        self._answer: Static | None = None
        self._text = ""
        self._lines: list[str] = []

    def compose(self) -> ComposeResult:
        """Begin without messages."""
        yield from ()

    @property
    def transcript(self) -> str:
        """The whole conversation, for the clipboard."""
        return "\n".join([f"# {self._title}", *self._lines, *([self._text] if self._text else [])])

    def begin(self, example: TrajectoryRow) -> None:
        """Show what the version's task asked it last, and what it answered, until somebody says something."""
        shown = NewestRollout()
        shown.row = example
        self.mount(shown)

    def ask(self, words: str) -> None:
        """Add what the person says; an answer will follow."""
        self._close()
        self.query(NewestRollout).remove()
        question = Static(Content.styled(f"you> {excerpt(words, CHARACTERS, LINES)}", "bold"), markup=False)
        self._lines.append(f"you> {words}")
        self._answer = Static(Content.styled("…", "$text-muted"), markup=False)
        self.mount_all([question, self._answer])
        for old in list(self.children)[:-KEPT]:
            old.remove()
        self.call_after_refresh(self.scroll_end, animate=False)

    def show_reply(self, speech: Speech, problem: str = "") -> None:
        """Show what has been said so far."""
        if self._answer is None:
            return
        follows = self.scroll_offset.y >= self.max_scroll_y - 1
        self._text = speech.text
        self._answer.update(_shown(speech, problem))
        if follows:
            self.call_after_refresh(self.scroll_end, animate=False)

    def withdraw(self) -> None:
        """Remove a message that was never said."""
        if self._answer is not None:
            self._answer.update(Content.styled("(not sent: it was cancelled, or failed)", "$text-muted"))
            self._lines[-1:] = []
        self._answer, self._text = None, ""

    def clear(self) -> None:
        """Remove all messages."""
        self._answer, self._text, self._lines = None, "", []
        self.remove_children()

    def _close(self) -> None:
        if self._text:
            self._lines.append(self._text)
        self._answer, self._text = None, ""


def _shown(speech: Speech, problem: str) -> Content:
    """Thought, answer, and how it ended; an answer without words reports it."""
    parts: list[Content | tuple[str, str]] = []
    if speech.thinking:
        parts += [(excerpt(speech.thinking, CHARACTERS, LINES), "$text-muted italic"), ("\n", "")]
    parts.append((excerpt(speech.text, CHARACTERS, LINES), ""))
    if problem:
        parts.append((f"{' ' if speech.text else ''}{excerpt(problem, 1000, 5)}", "$text-error"))
    elif end := _ENDS.get(speech.ended, ""):
        parts.append((f"{' ' if speech.text else ''}[{end}]", "$text-warning"))
    elif speech.ended and not speech.text.strip():
        parts.append(("(an empty answer)", "$text-muted"))
    elif not speech.ended:
        parts.append(("▌", "$text-muted"))
    return Content.assemble(*parts)


# What a person does with the version under the cursor: export, roll back to, begin from, delete, or chat with it.
#
# Actions only; which version that is, and what is drawn, is up to the view of adapters.

_NEED_A_VERSION = ("chat", "beside", "export", "delete", "roll_back", "begin", "copy_row", "copy_json")
_ACTS = ("chat", "beside", "delete", "roll_back", "begin")


class VersionsView(View):
    """Keys that act on a version; if they cannot, they explain why."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "beside", "beside", id="adapters.beside"),
        Binding("e", "export", "export", id="adapters.export"),
        Binding("b", "roll_back", "roll back", id="adapters.roll_back"),
        Binding("f", "begin", "train on", id="adapters.begin"),
        Binding("x", "delete", "delete", show=False, id="adapters.delete"),
        Binding("y", "copy_row", "copy", show=False, id="adapters.copy"),
        Binding("Y", "copy_json", "copy JSON", show=False, id="adapters.copy_json"),
    ]

    @property
    @abstractmethod
    def current(self) -> KeptVersion | None:
        """The version under the cursor."""

    @property
    @abstractmethod
    def marked(self) -> Sequence[KeptVersion]:
        """The marked versions."""

    def why_not(self, action: str) -> str:
        """Why an action is refused: it needs a version, and a state of its task that it can start from."""
        if action not in _NEED_A_VERSION:
            return ""
        kept = self.current
        if kept is None:
            return "There is no version under the cursor."
        if action == "export" and (self.marlaas.web or self.marlaas.readonly):
            return "This writes files on the engine's machine: not in a browser, and not in the read-only mode."
        if action in _ACTS and (reason := self.marlaas.may_act()):
            return reason
        task, state = kept.row.task, line(kept.task_state, 20)
        if action == "delete" and kept.task_state not in FINISHED:
            return f"Task {task} is {state} and goes on from its versions; those of finished tasks can be deleted."
        if action == "roll_back" and kept.task_state not in TRANSITIONS["rollback"]:
            return f"Task {task} is {state}: pause it first (p in the queue)."
        if action == "roll_back" and kept.row.number >= kept.steps:
            return f"Version {kept.row.number} is the last of task {task}: no step would be left to make."
        return ""

    # Chat. The pane is loaded on demand, and next to the screen, because it imports what the other views do not.

    def action_chat(self) -> None:
        """Open the chat with the version by itself."""
        if kept := self.current:
            self._open_chat([kept.row])

    def action_beside(self) -> None:
        """Open the chat with the version next to the marked one, or else next to the base."""
        if kept := self.current:
            others = [each for each in self.marked if each.row.id != kept.row.id]
            self._open_chat([kept.row, others[0].row if others else None])

    def _open_chat(self, versions: Sequence[VersionRow | None]) -> None:
        """``versions``: whom to talk with; None is the base."""
        ended = self.marlaas.under_way("Opening the chat …")
        self.run_worker(partial(self._load_chat, versions, ended), thread=True, exclusive=True, group="chat")

    def _load_chat(self, versions: Sequence[VersionRow | None], ended: Callable[[], None]) -> None:
        from ..chat.talking import Side
        from .chat import ChatScreen

        def show() -> None:
            ended()
            if self.is_current:
                self.app.push_screen(ChatScreen([Side(version) for version in versions]))

        self.app.call_from_thread(show)

    # What the engine does.

    def action_roll_back(self) -> None:
        """Ask, then roll the task back to this version."""
        from .dialogs.questions import Confirm

        kept = self.current
        if kept is None:
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

        def act(yes: bool | None) -> None:
            if yes:
                done = f"Task {owner(row)} goes on from version {row.number}."
                self.marlaas.command("rollback", [row.task], done, **arguments(row))

        self.app.push_screen(Confirm(question), act)

    def action_delete(self) -> None:
        """Ask for the task's number, then delete the marked versions, or the one under the cursor."""
        from .dialogs.questions import Confirm

        kept = self.current
        if kept is None:
            return
        doomed = list(self.marked) or [kept]
        task, name = doomed[0].row.task, line(doomed[0].row.task_name, 40)
        if any(each.row.task != task or each.task_state not in FINISHED for each in doomed):
            self.marlaas.say("Mark versions of one finished task: they are deleted together.", bad=True)
            return
        several = len({each.row.policy for each in doomed}) > 1
        which = ", ".join(reference(each.row) if several else str(each.row.number) for each in doomed)
        whose = str(task) if several else owner(doomed[0].row)
        named = f"version{'' if len(doomed) == 1 else 's'} {which} of task {whose}, {name}"
        taken = size(sum(each.row.size for each in doomed))
        question = f"Delete {named} ({taken})? Nothing brings back what was not exported."

        def act(yes: bool | None) -> None:
            for each in doomed if yes else ():
                done = f"Version {each.row.number} of task {owner(each.row)} is deleted."
                self.marlaas.command("delete", [task], done, **arguments(each.row))

        self.app.push_screen(Confirm(question, typed=str(task)), act)

    # What needs no engine.

    def action_export(self) -> None:
        """Ask where to, then export in a thread."""
        from .dialogs.questions import ExportDialog

        kept = self.current
        if kept is None:
            return

        def write(wish: ExportWish | None) -> None:
            if wish:
                self.marlaas.say(f"Writing {wish.folder} …")
                self.run_worker(partial(self._export, kept, wish), thread=True, exit_on_error=False)

        folder = _unused(Path.cwd() / f"task-{owner(kept.row).replace('/', '-')}-v{kept.row.number}")
        self.app.push_screen(ExportDialog(f"{named_version(kept)}, {line(kept.row.task_name, 40)},", folder), write)

    def _export(self, kept: KeptVersion, wish: ExportWish) -> None:
        from ...operations.results import export, no_gain
        from ...reading import reading

        try:
            files = export(self.marlaas.home, kept.row, wish.folder, wish.gguf)
            with reading(self.marlaas.home) as reader:
                warning = no_gain(reader, kept.row) if reader else ""
        except (MarlaasError, OSError) as error:
            self.app.call_from_thread(partial(self.marlaas.say, str(error), bad=True))
            return
        text = next(file for file in files if file.name == USE).read_text(encoding="utf-8")
        self.app.call_from_thread(self._exported, wish, text, warning)

    def _exported(self, wish: ExportWish, text: str, warning: str) -> None:
        """Say where it is, and show how to use it."""
        from .dialogs.questions import Exported

        programs = "PEFT, vLLM, llama.cpp and Ollama" if wish.gguf else "PEFT and vLLM"
        told = f"{wish.folder.name} is there, for {programs}: {USE} says how."
        self.marlaas.say(f"{told} {warning}".rstrip(), bad=bool(warning))
        self.app.push_screen(Exported(wish.folder, text))

    def action_begin(self) -> None:
        """Open the form for a task like this one's that begins from the version."""
        from .submit import SubmitScreen

        if kept := self.current:
            self.app.push_screen(SubmitScreen(copy_from=kept.row.task, start=kept.row))

    def action_copy_row(self) -> None:
        """Copy the version's name."""
        if kept := self.current:
            self.marlaas.copy(kept.row.name, f"The name of {named_version(kept)}")

    def action_copy_json(self) -> None:
        """Copy all that is known of the version."""
        if kept := self.current:
            self.marlaas.copy(json.dumps(asdict(kept), indent=2), f"What is known of {named_version(kept)}")


def named_version(kept: KeptVersion) -> str:
    """The version in words, for the middle of a sentence."""
    return f"version {kept.row.number} of task {owner(kept.row)}"


def _unused(folder: Path) -> Path:
    names = chain([folder], (folder.with_name(f"{folder.name}-{again}") for again in count(2)))
    return next(name for name in names if not name.exists())


# The view of adapters: which versions are on the disk, their scores, and their sizes.

_EMPTY = """No adapters yet: a task's first version appears when it starts.

Submit a task (a, or `marlaas submit FILE`), and talk with what it learns here."""


class AdaptersScreen(VersionsView):
    """The list of versions, with details of the current one below it; if there is room, how its task learned."""

    HELP = """Adapter versions on the disk, with their newest held-out score. Enter talks with one; c talks with it
beside the marked one (space), or beside the base.

e writes a PEFT folder.
f begins a new task from it, b lets its own task go on from it, x deletes it.
o shows the selected task alone, / filters by number, name, tenant and label."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", show=False, key_display="/", id="adapters.filter"),
        Binding("s", "sort", "sort", show=False, id="adapters.sort"),
        Binding("o", "only", "this task, all tasks", show=False, id="adapters.only"),
    ]
    DEFAULT_CSS = """
    AdaptersScreen #sums { height: 1; padding: 0 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
    AdaptersScreen VersionList { padding: 0 1; }
    AdaptersScreen #beside { height: 1fr; }
    AdaptersScreen #versions-left { width: 3fr; }
    AdaptersScreen Preview { width: 2fr; height: 100%; border-left: solid $panel-lighten-2; }
    AdaptersScreen.-wide Preview { display: block; }
    AdaptersScreen Preview VerdictLine, AdaptersScreen Preview VerdictLine.-wrong { height: 3; }
    AdaptersScreen Preview Horizontal { layout: vertical; }
    AdaptersScreen Preview Horizontal > * { width: 100%; height: 1fr; }
    AdaptersScreen Preview NewestRollout { border-left: none; border-top: solid $panel-lighten-2; }
    """
    AUTO_FOCUS = "VersionList"

    def __init__(self) -> None:
        super().__init__()
        self._versions: tuple[KeptVersion, ...] = ()
        self._lines: Sequence[VersionLine] = ()
        self._made: object = None
        self._choice = Choice()
        self._home = ""
        self._shown_task: int | None = None
        self._answer: AdaptersAnswer | None = None
        self._asked: Learner | None = None

    @property
    def current(self) -> KeptVersion | None:
        """The version under the cursor."""
        return self.query_one(VersionList).current_version

    @property
    def marked(self) -> Sequence[KeptVersion]:
        """The marked versions."""
        return self.query_one(VersionList).marked

    def question(self) -> AdaptersQuestion:
        """All versions on the disk, and the task of the one under the cursor, if there is room for it."""
        return AdaptersQuestion(self._asked if self.has_class("-wide") else None, self._answer)

    def content(self) -> ComposeResult:
        """The list with its head and its sums; or a hint if there are no versions."""
        yield FilterBar("17 name tenant best")
        with Horizontal(id="beside"):
            with Vertical(id="versions-left"):
                yield VersionHead()
                yield VersionList(partial(opened, self.marlaas.home), id="versions")
            yield Preview()
        yield VersionDetail()
        yield Static("", id="sums", markup=False)
        yield Nothing(_EMPTY)

    def on_screen_resume(self) -> None:
        """Move the cursor to the selected task, and measure the disk in a thread."""
        super().on_screen_resume()
        self.run_worker(self._measure, thread=True, exclusive=True, group="disk", exit_on_error=False)

    def _measure(self) -> None:
        taken = home_size(self.marlaas.home)
        self._home = f"home {size(taken.total)}, {size(taken.adapters)} of it adapters"
        self.app.call_from_thread(self.show_again)

    def show_content(self, snapshot: Snapshot, answer: object) -> None:
        """Show list, version and sums."""
        if isinstance(answer, AdaptersAnswer):
            self._answer, self._versions = answer, answer.versions
        if self._made != (self._versions, self._choice):
            self._made, self._lines = (self._versions, self._choice), lines(self._versions, self._choice)
        empty = not self._versions
        for widget in self.query("#sums, VersionDetail, #beside"):
            widget.display = not empty
        self.query_one(Nothing).display = empty and (self._answer is not None or snapshot.engine is None)
        self.query_one(VersionList).show_lines(self._lines, snapshot.now, self._choice.sort)
        if self._shown_task != self.marlaas.selected and self._versions:
            self._shown_task = self.marlaas.selected
            self._go_to_task()
        sums = " · ".join(filter(None, (summary(self._lines, self._versions), self._home)))
        self.query_one("#sums", Static).update(sums)
        self._show_current()
        if self._choice.words:
            self.query_one(FilterBar).tell(f"{len(self._lines)} of {len(self._versions)}")

    def _show_current(self) -> None:
        kept, detail = self.current, self.query_one(VersionDetail)
        detail.kept, detail.about = kept, self._about_task(kept.row.task) if kept else ""
        self._show_task(kept)

    def _show_task(self, kept: KeptVersion | None) -> None:
        """Show what is known of how the version's task learned, and ask for more once the cursor rests on it."""
        snapshot = self.marlaas.snapshot
        task = snapshot.task(kept.row.task) if kept is not None else None
        own = learner(task, kept.row.policy) if task is not None and kept is not None else None
        rows = {own: replace(learners(task)[own], state=shown_state(task, snapshot.serving))} if task and own else {}
        preview = self._answer.preview if self._answer is not None else None
        known = preview if preview is not None and own in preview.curves else None
        self.query_one(Preview).show(rows, known, snapshot.now, snapshot.problem)
        if own != self._asked:
            self._asked = own
            self.ask_at_rest()

    def _about_task(self, number: int) -> str:
        """The task's state, and the size of all of its versions."""
        own = [each.row.size for each in self._versions if each.row.task == number]
        together = f"its {len(own)} versions take {size(sum(own))}" if len(own) > 1 else "its only version"
        task = self.marlaas.snapshot.task(number)
        if task is None:
            return ""
        state = shown_state(task, self.marlaas.snapshot.serving)
        return f"Task {number} is {line(state, 20)}, step {task.step}/{task.steps}; {together}."

    def _go_to_task(self) -> None:
        """Move the cursor to the selected task's best version."""
        own = [each for each in self._lines if each.row.task == self.marlaas.selected]
        if own:
            best = next((each for each in own if "best" in each.kept.label), own[0])
            self.query_one(VersionList).go(best.row.id)

    def on_virtual_list_moved(self, message: VirtualList.Moved) -> None:
        """Show the version, and which keys can act on it."""
        self._show_current()
        self.renew_keys()

    def on_virtual_list_opened(self, message: VirtualList.Opened) -> None:
        """Open the chat with the version."""
        if reason := self.why_not("chat"):
            self.marlaas.say(reason, bad=True)
        else:
            self.action_chat()

    def on_resize(self, event: Resize) -> None:
        """Fit the columns to the new width."""
        self.call_after_refresh(self._fit)

    def _fit(self) -> None:
        self.show_again()
        self.ask_again()

    # What is shown.

    def _choose(self, choice: Choice) -> None:
        self._choice = choice
        self.show_again()

    def action_sort(self) -> None:
        """Sort by the next field."""
        field = SORTS[(SORTS.index(self._choice.sort) + 1) % len(SORTS)]
        self._choose(replace(self._choice, sort=field))
        self.marlaas.say(f"Sorted by {field}." if field != "task" else "The newest task comes first.")

    def action_only(self) -> None:
        """Show only the task under the cursor, or all tasks."""
        wanted = self.current.row.task if self.current else self.marlaas.selected
        self._choose(replace(self._choice, task=None if self._choice.task is not None else wanted))

    def action_filter(self) -> None:
        """Open the filter."""
        self.query_one(FilterBar).open()

    def on_filter_bar_changed(self, message: FilterBar.Changed) -> None:
        """Filter with every letter."""
        self.query_one(FilterBar).tell("")
        self._choose(replace(self._choice, words=tuple(message.text.lower().split())))

    def on_filter_bar_left(self, message: FilterBar.Left) -> None:
        """Go back to the list."""
        self.query_one(VersionList).focus()
