"""Actions of the application: a command is a row that the engine answers; its outcome comes with a later snapshot.

Keys and the palette call it; which view asked is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from marlaas.engine.errors import MarlaasError
from marlaas.engine.home import Home

from ..context.snapshot import Snapshot
from ..words.tasks import liveness
from .feed import Feed
from .noticing import Noticing
from .sender import Sender


class Acting(Noticing):
    """What a person can do to a home, with the notices about it."""

    def __init__(self, home: Home, feed: Feed, snapshot: Snapshot, readonly: bool) -> None:
        """``readonly`` refuses every action."""
        super().__init__()
        self.home = home
        self.readonly = readonly
        self.snapshot = snapshot
        self._sender = Sender(self, home.database, feed)

    def may_act(self) -> str:
        """Why no action is possible; empty where actions are."""
        return "This is the read-only mode: nothing can be changed." if self.readonly else ""

    def command(self, kind: str, tasks: Sequence[int] = (), done: str = "", **arguments: Any) -> None:
        """Send a command to the engine; the text ``done`` is shown once it is carried out."""
        reason = self.may_act()
        if not reason and not liveness(self.snapshot.engine, self.snapshot.now).serves:
            reason = "No engine runs: S starts one."
        if reason:
            self.say(reason, bad=True)
        else:
            self._sender.send(kind, tasks, done, **arguments)

    def on_sender_sent(self, message: Sender.Sent) -> None:
        """Say that commands were written, or why they could not be."""
        if message.problem:
            self._sender.unsent(message.act)
            self.say(message.problem, bad=True)
        else:
            self._sender.sent(message.act)

    def action_add(self, copy_from: int | None = None) -> None:
        """Open the form for tasks, empty or as a copy of one."""
        from ..screens.submit import SubmitScreen

        if reason := self.may_act():
            self.say(reason, bad=True)
        else:
            self.push_screen(SubmitScreen(copy_from))

    def action_undo(self) -> None:
        """Undo the last action; one that the engine has not answered yet is undone once it has."""
        if notice := self._sender.undo():
            self.say(notice.text, notice.bad)

    def action_start_engine(self) -> None:
        """Start an engine in the background."""
        if reason := self.may_act():
            self.say(reason, bad=True)
            return
        ended = self.under_way("Starting the engine …")
        self.run_worker(partial(self._start_engine, ended), thread=True, group="engine", exit_on_error=False)

    def _start_engine(self, ended: Callable[[], None]) -> None:
        from marlaas.engine.daemon import control

        try:
            control.create_database(self.home)
            control.ensure_running(self.home)
        except MarlaasError as error:
            self.call_from_thread(partial(self.say, str(error), bad=True))
        finally:
            self.call_from_thread(ended)
