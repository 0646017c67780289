"""The terminal application: screens, global keys, the poll, and commands to the engine.

It reads the store through ``Feed`` and writes nothing but commands; closing it stops nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.timer import Timer
from textual.worker import get_current_worker

from marlaas.engine.errors import MarlaasError
from marlaas.engine.paths import Home
from marlaas.engine.queue import PAST
from marlaas.engine.store.submissions import command

from .feed import Feed, Snapshot
from .format import line
from .screens.queue import QueueScreen
from .screens.view import View
from .views import liveness


class MarlaasApp(App[None]):
    """The application of one home."""

    CSS_PATH = "app.tcss"
    TITLE = "marlaas"
    ENABLE_COMMAND_PALETTE = True
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-normal"), (160, "-wide")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "help", key_display="?", id="app.help"),
        Binding("q", "quit", "quit", id="app.quit"),
        Binding("colon", "palette", "palette", show=False, id="app.palette"),
    ]

    @dataclass
    class Sent(Message):
        """A command is in the store, or could not be put there."""

        kind: str
        task: int
        number: int | None
        problem: str = ""

    def __init__(
        self, home: Home, demo: bool = False, interval: float = 1.0, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__()
        self.animation_level = "none"
        self.title = "marlaas demo" if demo else "marlaas"
        self.home_text = _short(home.root)
        self.snapshot = Snapshot(now=clock())
        self.has_read = False
        self.farewell = ""
        self._home = home
        self._interval = interval
        self._feed = Feed(home.database, clock)
        self._timer: Timer | None = None
        self._sent: dict[int, tuple[str, int]] = {}

    def on_mount(self) -> None:
        """Open the queue and begin to read."""
        self.push_screen(QueueScreen())
        self.poll()

    def on_unmount(self) -> None:
        """Close the connection."""
        self._feed.close()

    # Reading: a thread polls the feed, its snapshot goes to every open view, then the next poll is due.

    def poll(self) -> None:
        """Read now."""
        if self._timer is not None:
            self._timer.stop()
        self.run_worker(self._poll, thread=True, group="feed", exit_on_error=False)

    def _poll(self) -> None:
        snapshot = self._feed.poll()
        if not get_current_worker().is_cancelled:
            self.post_message(Feed.Updated(snapshot))

    def on_feed_updated(self, message: Feed.Updated) -> None:
        """Show a snapshot."""
        self.snapshot, self.has_read = message.snapshot, True
        for screen in self.screen_stack:
            if isinstance(screen, View) and screen.is_mounted:
                screen.show(self.snapshot)
        for number, outcome in self.snapshot.outcomes.items():
            self._report(number, outcome)
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(self._interval, self.poll)

    def follow(self, task: int | None) -> None:
        """Read one task's detail from now on."""
        self._feed.watch(task)
        if self.is_running and task is not None:
            self.poll()

    # Acting: a command is a row that the engine answers; its outcome comes with a later snapshot.

    def steer(self, kind: str, task: int) -> None:
        """Ask the engine to pause, resume, retry or cancel a task."""
        if liveness(self.snapshot.engine, self.snapshot.now).word in ("down", "never"):
            self.notify("No engine runs; ctrl+p, “Start the engine”.", severity="warning", markup=False)
            return
        self.run_worker(partial(self._send, kind, task), thread=True, exit_on_error=False)

    def _send(self, kind: str, task: int) -> None:
        try:
            self.post_message(self.Sent(kind, task, command(self._home.database, kind, task)))
        except MarlaasError as error:
            self.post_message(self.Sent(kind, task, None, str(error)))

    def on_marlaas_app_sent(self, message: Sent) -> None:
        """Wait for the outcome."""
        if message.number is None:
            self.notify(line(message.problem, 300), severity="error", markup=False)
            return
        self._sent[message.number] = (message.kind, message.task)
        self._feed.expect(message.number)

    def _report(self, number: int, outcome: str) -> None:
        kind, task = self._sent.pop(number, ("", 0))
        if outcome:
            self.notify(f"Task {task}: {line(outcome, 300)}", severity="error", markup=False)
        elif kind:
            self.notify(f"Task {task} {PAST[kind]}.", markup=False)

    def action_start_engine(self) -> None:
        """Start an engine in the background."""
        self.notify("Starting the engine …", markup=False)
        self.run_worker(self._start_engine, thread=True, group="engine", exit_on_error=False)

    def _start_engine(self) -> None:
        from marlaas.engine.daemon import control

        try:
            control.create_database(self._home)
            control.ensure_running(self._home)
        except MarlaasError as error:
            self.notify(line(str(error), 300), severity="error", markup=False)

    # Global keys.

    def action_help(self) -> None:
        """Show or hide the keys of this view."""
        if self.screen.query("HelpPanel"):
            self.action_hide_help_panel()
        else:
            self.action_show_help_panel()

    def action_palette(self) -> None:
        """The palette has ctrl+p of its own; a binding of ours to its action would take that away."""
        self.action_command_palette()

    async def action_quit(self) -> None:
        """Leave; say what goes on without us."""
        unfinished = self.snapshot.unfinished
        if unfinished and liveness(self.snapshot.engine, self.snapshot.now).alive:
            tasks = "1 task goes" if unfinished == 1 else f"{unfinished} tasks go"
            self.farewell = f"{tasks} on running; `marlaas engine stop` stops the engine."
        self.exit()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette: ours first, then Textual's."""
        yield SystemCommand("Start the engine", "In the background; it outlives this program", self.action_start_engine)
        yield from super().get_system_commands(screen)


def _short(path: Path) -> str:
    """A path with the user's own folder as ``~``."""
    try:
        return line(f"~/{path.relative_to(Path.home())}")
    except ValueError:
        return line(str(path))
