"""The guide that an empty home shows: three ways to begin, with a key for each. It disappears with the first task."""

from __future__ import annotations

import time
from typing import ClassVar, cast

from textual.binding import Binding, BindingType
from textual.markup import escape
from textual.message import Message
from textual.widgets import Static

from marlaas.engine.errors import MarlaasError

from ..context.application import Application
from ..words.format import clip, line

_FIRST = "Nothing has been trained here yet. Three ways to begin:"
_NEXT = """In the plugins folder: [b]{names}[/]. Next, [b $text-accent]a[/] adds a task that uses it.
`marlaas env check NAME` looks for mistakes before."""
_TEXT = """

  [b $text-accent]d[/]   Run the demo. Three tenants train on one small base at the same
      time, each on an environment of another shape.

  [b $text-accent]e[/]   Write an environment. A template that runs as it is goes into the
      plugins folder and is opened in your editor.

  [b $text-accent]a[/]   Add a task: choose an environment, see what it asks, submit.

Each of them is a command, too: `marlaas demo`, `marlaas env new NAME`,
`marlaas submit FILE`. `marlaas doctor` looks at this machine."""


class Guide(Static, can_focus=True):
    """Shown in place of an empty queue."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "demo", "demo", id="guide.demo"),
        Binding("e", "environment", "environment", id="guide.environment"),
    ]
    DEFAULT_CSS = """
    Guide { width: 100%; height: 1fr; padding: 1 4; overflow-y: auto; }
    """

    class EnvironmentWanted(Message):
        """The person wants to write an environment."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._begun: float | None = None
        """When the demo's start began, while that is under way."""

    def on_mount(self) -> None:
        """Count the seconds of a start."""
        self.set_interval(1.0, self._count)
        self.renew()

    def renew(self) -> None:
        """Show how to begin; where somebody wrote an environment, what comes next."""
        if self._begun is not None:
            return
        files = self._marlaas.home.plugins.glob("[!._]*")
        written = sorted(path.stem for path in files if path.suffix in (".py", ".toml") or path.is_dir())
        names = clip(line(", ".join(written)), 48)
        self.update((_NEXT.format(names=escape(names)) if written else _FIRST) + _TEXT)

    def _count(self) -> None:
        if self._begun is not None:
            self.update(f"Starting the engine … {time.monotonic() - self._begun:.0f} s{_TEXT}")

    @property
    def _marlaas(self) -> Application:
        return cast("Application", self.app)

    def action_demo(self) -> None:
        """Submit the demo's tasks to this home and start the engine."""
        if reason := self._marlaas.may_act():
            self._marlaas.say(reason, bad=True)
        elif self._begun is None:
            self._begun = time.monotonic()
            self.update(f"Starting the engine …{_TEXT}")
            self.run_worker(self._demo, thread=True, exit_on_error=False)

    def _demo(self) -> None:
        from ..home.demo import begin

        app, in_its_thread = self._marlaas, self.app.call_from_thread
        try:
            begin(app.home, lambda text: in_its_thread(app.say, text))
        except MarlaasError as error:
            in_its_thread(app.say, str(error), True)
        finally:
            self._begun = None
            in_its_thread(self.renew)
            in_its_thread(app.poll)

    def action_environment(self) -> None:
        """Ask for a new environment, where one can be written."""
        if reason := self._marlaas.may_act():
            self._marlaas.say(reason, bad=True)
        elif self._marlaas.web:
            self._marlaas.say("An environment is a file: write it on the machine itself, `marlaas env new NAME`.", True)
        else:
            self.post_message(self.EnvironmentWanted())
