"""What every view has: bars, a footer, one question to the store, and keys that say why they cannot act."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Key
from textual.screen import Screen
from textual.timer import Timer

from ..context.application import Application
from ..context.snapshot import Snapshot
from ..questions.question import Question
from ..widgets.key_bar import KeyBar
from ..widgets.notice_line import NoticeLine
from ..widgets.status_line import StatusLine
from ..widgets.top_bar import TopBar
from ..widgets.view_bar import ViewBar
from ..words.overview import overview
from ..words.tasks import liveness
from ..words.yielding import yielding_hint, yielding_of

_NO_ENGINE = "No engine runs, so all tasks wait: S starts one, or `marlaas engine start`."
_REST = 0.08
"""Seconds for which the cursor must rest before the store is asked about its line, so that moving costs nothing."""
_SILENT = "The engine is suspended or very busy; actions wait until it answers."


class View(Screen[None]):
    """A screen that shows snapshots."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "back", show=False, key_display="esc", id="view.back"),
        Binding("z", "zoom", "zoom", show=False, id="view.zoom"),
        Binding("S", "start_engine", "start engine", id="view.start_engine"),
    ]

    ALLOW_IN_MAXIMIZED_VIEW = "TopBar, ViewBar, FilterBar, StatusLine, NoticeLine, KeyBar"

    def __init__(self) -> None:
        super().__init__()
        self._reasons: tuple[object, ...] = ()
        self._stopped = False
        """Whether no engine runs."""
        self._rest: Timer | None = None

    @property
    def marlaas(self) -> Application:
        """The application."""
        return cast("Application", self.app)

    @abstractmethod
    def content(self) -> ComposeResult:
        """The view's own widgets, between the bars."""

    @abstractmethod
    def show_content(self, snapshot: Snapshot, answer: object) -> None:
        """Bring the view's own widgets up to date; ``answer`` is None until the question has been answered."""

    def question(self) -> Question | None:
        """What the view wants to know beyond the snapshot."""
        return None

    def why_not(self, action: str) -> str:
        """Why an action of this view is not possible; empty where it is. Asked often, so it must be cheap."""
        return ""

    @property
    def first_keys(self) -> tuple[str, ...]:
        """Actions whose keys come first in the last line, because of what is shown at the moment."""
        return ()

    @property
    def key_words(self) -> Mapping[str, str]:
        """Words for actions in the last line, in place of those of the help: shorter, or of what is shown now."""
        return {}

    def compose(self) -> ComposeResult:
        """Lay out the bars around the content."""
        yield TopBar(self.marlaas.title, self.marlaas.home_text)
        yield ViewBar(self.marlaas.views)
        yield from self.content()
        yield StatusLine()
        yield NoticeLine()
        yield KeyBar()

    def on_mount(self) -> None:
        """Show what is already known."""
        self._css_update_count = self.app._css_update_count  # its styles are of the theme of now
        self.show_again()

    def on_screen_resume(self) -> None:
        """Ask the view's question, and show what came while it was out of sight."""
        self.ask_again()
        if self.is_mounted:
            self.query_one(NoticeLine).show(self.marlaas.notices)
            self.show_again()

    def ask_again(self) -> None:
        """Ask again at once, because the question has changed."""
        self.marlaas.ask(self)

    def ask_at_rest(self) -> None:
        """Ask again once the cursor has rested, because the question follows it."""
        if self._rest is not None:
            self._rest.stop()
        self._rest = self.set_timer(_REST, self.ask_again)

    def show_again(self) -> None:
        """Show the newest snapshot once more."""
        self.show(self.marlaas.snapshot)

    def show(self, snapshot: Snapshot) -> None:
        """Bring everything up to date."""
        alive = liveness(snapshot.engine, snapshot.now)
        self._stopped = not alive.serves
        top, base = self.query_one(TopBar), snapshot.engine.shown_base if snapshot.engine else ""
        top.engine = alive
        rest = yielding_hint(yielding_of(snapshot.engine), snapshot.now) if alive.alive else ""
        works = alive.alive and not rest
        top.overview = overview(snapshot.tasks, snapshot.speeds, base, snapshot.parameters, snapshot.turns, works)
        self.query_one(ViewBar).shown = (self.marlaas.current_mode, self.marlaas.selected)
        status = self.query_one(StatusLine)
        status.problem, status.processes = snapshot.problem, snapshot.workers if alive.alive else ()
        status.note = snapshot.note
        stalled = snapshot.unfinished and self._stopped
        status.hint = _NO_ENGINE if stalled else _SILENT if alive.word == "silent" else rest
        question = self.question()
        self.show_content(snapshot, snapshot.answer if question and snapshot.question == question else None)
        self.renew_keys()

    # Keys that cannot act are dim in the footer, and say why when they are pressed.

    def renew_keys(self) -> None:
        """Update which keys can act, because something else is under the cursor."""
        reasons = (
            self._stopped,
            self.first_keys,
            dict(self.key_words),
            *(self.why_not(binding.action) for _, binding in self._bindings),
        )
        if reasons != self._reasons:  # Textual rebuilds the footer
            self._reasons = reasons
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether an action is possible; None is Textual's value for a dim key, False hides it."""
        if action == "start_engine":
            return self._stopped
        return None if self.why_not(action) else True

    def on_key(self, event: Key) -> None:
        """Say why a key that nothing reacted to cannot act."""
        active = self.active_bindings.get(event.key)
        if active is not None and not active.enabled and (reason := self.why_not(active.binding.action)):
            self.marlaas.say(reason, bad=True)
            event.stop()

    def action_start_engine(self) -> None:
        """Start an engine in the background."""
        self.marlaas.action_start_engine()

    def action_back(self) -> None:
        """Go back from a zoomed pane to all panes, or from this view to the one before."""
        if self.maximized is not None:
            self.minimize()
        elif len(self.app.screen_stack) > 1:
            self.app.pop_screen()
        else:
            self.marlaas.go_back()

    def watch_maximized(self) -> None:
        """Name the key that leaves the zoom, or no longer."""
        self.refresh_bindings()

    def action_zoom(self) -> None:
        """Zoom the pane with the focus, or show all panes again."""
        if self.maximized is not None:
            self.minimize()
        elif self.focused is None or not self.maximize(self.focused):
            self.marlaas.say("There is nothing to zoom here.", bad=True)
