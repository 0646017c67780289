"""The guide that an empty home shows: three ways to begin, with a key for each. It disappears with the first task."""

from __future__ import annotations

from typing import ClassVar, cast

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Static

from marlaas.engine.errors import MarlaasError

from ..context.application import Application

_TEXT = """Nothing has been trained here yet. Three ways to begin:

  d   Run the demo. Three tenants train on one small base at the same
      time, each on an environment of another shape.

  e   Write an environment. A template that runs as it is goes into the
      plugins folder and is opened in your editor.

  a   Add a task: choose an environment, see what it asks, submit.

Each of them is a command, too: marlaas demo, marlaas env new NAME,
marlaas submit FILE. `marlaas doctor` looks at this machine."""


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
        super().__init__(_TEXT, markup=False, id=id)
        self._begun = False

    @property
    def _marlaas(self) -> Application:
        return cast("Application", self.app)

    def action_demo(self) -> None:
        """Submit the demo's tasks to this home and start the engine."""
        if reason := self._marlaas.may_act():
            self._marlaas.say(reason, bad=True)
        elif not self._begun:
            self._begun = True
            self._marlaas.say("Starting the engine …")
            self.run_worker(self._demo, thread=True, exit_on_error=False)

    def _demo(self) -> None:
        from ..home.demo import begin

        app, in_its_thread = self._marlaas, self.app.call_from_thread
        try:
            begin(app.home, lambda text: in_its_thread(app.say, text))
        except MarlaasError as error:
            in_its_thread(app.say, str(error), True)
        finally:
            self._begun = False
            in_its_thread(app.poll)

    def action_environment(self) -> None:
        """Ask for a new environment, where one can be written."""
        if reason := self._marlaas.may_act():
            self._marlaas.say(reason, bad=True)
        elif self._marlaas.web:
            self._marlaas.say("An environment is a file: write it on the machine itself, `marlaas env new NAME`.", True)
        else:
            self.post_message(self.EnvironmentWanted())
