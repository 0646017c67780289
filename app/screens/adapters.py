"""The view of adapters: which versions are on the disk, their scores, and their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.events import Resize
from textual.widgets import Static

from marlaas.engine.home import home_size
from marlaas.engine.store import KeptVersion

from ..context.snapshot import Snapshot
from ..lists.queue_lines import Learner, learner, learners
from ..lists.version_lines import SORTS, Choice, VersionLine, lines, summary
from ..questions.views import AdaptersAnswer, AdaptersQuestion
from ..reading.opening import opened
from ..widgets.chat_column import VersionDetail, VersionHead, VersionList
from ..widgets.filter_bar import FilterBar
from ..widgets.nothing import Nothing
from ..widgets.queue_table import Preview
from ..widgets.virtual_list import VirtualList
from ..words.format import line, size
from ..words.tasks import shown_state
from .versions_view import VersionsView

_EMPTY = """No adapters yet: a task's first version appears when it starts.

Submit a task (a, or `marlaas submit FILE`), and talk with what it learns here."""


class AdaptersScreen(VersionsView):
    """The list of versions, with details of the current one below it; where there is room, how its task learned."""

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
        """All versions on the disk, and the task of the one under the cursor, where there is room for it."""
        return AdaptersQuestion(self._asked if self.has_class("-wide") else None, self._answer)

    def content(self) -> ComposeResult:
        """The list with its head and its sums; or a hint where there are no versions."""
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
