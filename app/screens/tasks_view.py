"""What all views with tasks under the cursor share: acting on tasks, opening other views of them, copying them."""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from marlaas.engine.errors import MarlaasError
from marlaas.engine.store import TaskRow
from marlaas.engine.submission import TRANSITIONS

from ..reading.opening import reading
from ..words.format import line
from ..words.tasks import mended_in_file, task_json, tasks_named
from .view import View

_VERBS = {"toggle_pause": ("pause", "resume"), "cancel": ("cancel",), "retry": ("retry",)}
_OTHERWISE = {
    "toggle_pause": "there is nothing to pause",
    "cancel": "there is nothing to cancel",
    "retry": "only failed and cancelled tasks can be retried",
}
_NEEDS_A_TASK = ("add_like", "open_rollouts", "open_logs", "edit_environment", "copy_row", "copy_json")


class TasksView(View):
    """Keys that act on the marked tasks, or on the one under the cursor; where they cannot, they say why."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "toggle_pause", "pause/resume", id="task.pause"),
        Binding("x", "cancel", "cancel", id="task.cancel"),
        Binding("r", "retry", "retry", show=False, id="task.retry"),
        Binding("A", "add_like", "add one like it", show=False, id="task.add_like"),
        Binding("t", "open_rollouts", "rollouts", show=False, id="task.rollouts"),
        Binding("l", "open_logs", "logs", show=False, id="task.logs"),
        Binding("E", "edit_environment", "edit code", show=False, id="task.edit"),
        Binding("y", "copy_row", "copy", show=False, id="task.copy"),
        Binding("Y", "copy_json", "copy JSON", show=False, id="task.copy_json"),
    ]

    @property
    @abstractmethod
    def targets(self) -> Sequence[TaskRow]:
        """The tasks that keys act on; the first is the one under the cursor."""

    @property
    def first_keys(self) -> tuple[str, ...]:
        """The key that mends what blocks the task under the cursor, where that is a line of its environment."""
        return ("edit_environment",) if self.targets and mended_in_file(self.targets[0]) else ()

    @property
    def key_words(self) -> Mapping[str, str]:
        """What ``p`` does with these tasks; and few words, so that filtering and leaving have room at 80 columns."""
        resumes = self._fitting("resume") and not self._fitting("pause")
        return {"toggle_pause": "resume" if resumes else "pause", "edit_environment": "edit"}

    def why_not(self, action: str) -> str:
        """Why an action is refused: it needs a task in a state that it can start from."""
        verbs = _VERBS.get(action, ())
        if not verbs and action not in _NEEDS_A_TASK:
            return ""
        if action == "edit_environment" and self.marlaas.web:
            return "This needs a terminal of its own: it is not offered in a browser."
        if (verbs or action == "edit_environment") and (reason := self.marlaas.may_act()):
            return reason
        targets = self.targets
        if not targets:
            return "There is no task under the cursor."
        if not verbs or any(self._fitting(verb) for verb in verbs):
            return ""
        if len(targets) > 1:
            return f"These {len(targets)} tasks: {_OTHERWISE[action]}."
        return f"Task {targets[0].id} is {line(targets[0].state, 20)}: {_OTHERWISE[action]}."

    def action_toggle_pause(self) -> None:
        """Pause active tasks; where none is active, resume paused ones."""
        if moving := self._fitting("pause"):
            self.marlaas.command("pause", moving)
        elif paused := self._fitting("resume"):
            self.marlaas.command("resume", paused)

    def action_retry(self) -> None:
        """Put failed or cancelled tasks back into the queue."""
        self.marlaas.command("retry", self._fitting("retry"))

    def action_cancel(self) -> None:
        """Ask, then cancel."""
        from .dialogs.questions import Confirm

        tasks = self._fitting("cancel")

        def act(yes: bool | None) -> None:
            if yes:
                self.marlaas.command("cancel", tasks)

        named = f"task {tasks[0]}, {line(self._row(tasks[0]).name, 40)}" if len(tasks) == 1 else f"{len(tasks)} tasks"
        ends = "It stops; its" if len(tasks) == 1 else "They stop; their"
        question = f"Cancel {named}? {ends} adapters stay, and retrying goes on from the last step."
        self.app.push_screen(Confirm(question), act)

    def action_add_like(self) -> None:
        """Open the form, filled with what the task under the cursor was submitted with."""
        self.marlaas.action_add(self.targets[0].id)

    def action_open_rollouts(self) -> None:
        """Open the rollouts of the task."""
        self.marlaas.open_task(self.targets[0].id, "rollouts")

    def action_open_logs(self) -> None:
        """Open the logs of the task."""
        self.marlaas.open_task(self.targets[0].id, "logs")

    def action_edit_environment(self) -> None:
        """Open the environment of the task under the cursor in the editor, at the line that is wrong where one is."""
        from ..home.environments.source_lines import task_place
        from .editing import edit_source

        try:
            with reading(self.marlaas.home) as reader:
                known, use = (reader.environments(), reader.environment_use(time.time())) if reader else ([], {})
                path, place = task_place(self.targets[0], known, use)
        except MarlaasError as error:
            self.marlaas.say(str(error), bad=True)
            return
        edit_source(self.marlaas, path, place)

    def action_copy_row(self) -> None:
        """Copy the tasks in words, a line each."""
        rows = [f"{t.id}\t{t.tenant}\t{t.name}\t{t.environment}\t{t.state}\t{t.step}/{t.steps}" for t in self.targets]
        self.marlaas.copy("\n".join(rows), self._named())

    def action_copy_json(self) -> None:
        """Copy all that is known of the tasks."""
        rows = [task_json(task) for task in self.targets]
        self.marlaas.copy(json.dumps(rows[0] if len(rows) == 1 else rows, indent=2), self._named())

    def _named(self) -> str:
        return tasks_named([task.id for task in self.targets])

    def _row(self, number: int) -> TaskRow:
        return next(task for task in self.targets if task.id == number)

    def _fitting(self, verb: str) -> list[int]:
        """The targets whose state the verb can start from."""
        return [task.id for task in self.targets if task.state in TRANSITIONS[verb]]
