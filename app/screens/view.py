"""What every view has: the top bar, the status line, the footer, and a place for snapshots to arrive."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Footer

from ..feed import Snapshot
from ..views import liveness
from ..widgets.status_line import StatusLine
from ..widgets.top_bar import TopBar

if TYPE_CHECKING:
    from ..app import MarlaasApp


class View(Screen[None]):
    """A screen that shows snapshots."""

    @property
    def marlaas(self) -> MarlaasApp:
        """The application."""
        return cast("MarlaasApp", self.app)

    @abstractmethod
    def content(self) -> ComposeResult:
        """The view's own widgets, between the bars."""

    @abstractmethod
    def show_content(self, snapshot: Snapshot) -> None:
        """Bring the view's own widgets up to date."""

    def compose(self) -> ComposeResult:
        """Bars around the content."""
        yield TopBar(self.marlaas.title, self.marlaas.home_text)
        yield from self.content()
        yield StatusLine()
        yield Footer(show_command_palette=True)

    def on_mount(self) -> None:
        """Show what is known already."""
        self.show_again()

    def show_again(self) -> None:
        """Show the newest snapshot once more."""
        self.show(self.marlaas.snapshot)

    def show(self, snapshot: Snapshot) -> None:
        """Bring everything up to date."""
        alive = liveness(snapshot.engine, snapshot.now)
        self.query_one(TopBar).engine = alive
        status = self.query_one(StatusLine)
        status.problem, status.processes = snapshot.problem, snapshot.workers if alive.alive else ()
        stalled = snapshot.unfinished and alive.word in ("down", "never")
        status.hint = "No engine runs: ctrl+p, “Start the engine”, or `marlaas engine start`." if stalled else ""
        self.show_content(snapshot)
