"""What all views with a task under the cursor share: pausing, resuming, retrying and cancelling it."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from textual.binding import Binding, BindingType

from ..format import line
from .confirm import Confirm
from .view import View


class TasksView(View):
    """Keys that act on ``current``; where they cannot, they say why."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "toggle_pause", "pause/resume", id="task.pause"),
        Binding("x", "cancel", "cancel", id="task.cancel"),
        Binding("r", "retry", "retry", show=False, id="task.retry"),
    ]

    @property
    @abstractmethod
    def current(self) -> int | None:
        """The number of the task that keys act on."""

    def action_toggle_pause(self) -> None:
        """Pause what moves, resume what is paused."""
        task = self.marlaas.snapshot.task(self.current or 0)
        if task is None:
            self._say("There is no task to pause.")
        elif not task.unfinished:
            self._say(f"Task {task.id} is {task.state}: there is nothing to pause.")
        else:
            self.marlaas.steer("resume" if task.state == "paused" else "pause", task.id)

    def action_retry(self) -> None:
        """Put what failed or was cancelled back into the queue."""
        task = self.marlaas.snapshot.task(self.current or 0)
        if task is None:
            self._say("There is no task to retry.")
        elif task.state not in ("failed", "cancelled"):
            self._say(f"Task {task.id} is {task.state}: only failed and cancelled tasks can be retried.")
        else:
            self.marlaas.steer("retry", task.id)

    def action_cancel(self) -> None:
        """Ask, then cancel."""
        task = self.marlaas.snapshot.task(self.current or 0)
        if task is None:
            self._say("There is no task to cancel.")
            return
        if not task.unfinished:
            self._say(f"Task {task.id} is {task.state} already.")
            return

        def act(yes: bool | None) -> None:
            if yes:
                self.marlaas.steer("cancel", task.id)

        question = f"Cancel task {task.id}, {line(task.name, 40)}? It stops for good; its adapters stay."
        self.app.push_screen(Confirm(question), act)

    def _say(self, text: str) -> None:
        self.notify(line(text, 300), severity="warning", markup=False)
