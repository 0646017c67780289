"""What views share: their base, and that of views with a list of tasks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Key
from textual.timer import Timer

from marlaas.engine.errors import MarlaasError
from marlaas.engine.queue.submission.transitions import TRANSITIONS
from marlaas.engine.store.queries import machine
from marlaas.engine.store.rows import TaskRow

from ...questions import Question
from ...reading import reading
from ...text.format import line
from ...text.machine import yielding_hint, yielding_of
from ...text.tasks import liveness, mended_in_file, overview, task_json, tasks_named
from ..context.feed import Snapshot
from ..widgets.bars import Filtered, KeyBar, StatusLine, TopBar, ViewBar

if TYPE_CHECKING:
    from ...app import MarlaasApp

_NO_ENGINE = "No engine runs, so all tasks wait: S starts one, or `marlaas engine start`."
_REST = 0.08
"""Seconds of rest before a question, so that moving is free."""
_SILENT = "The engine is suspended or very busy; actions wait until it answers."
IN_A_TERMINAL = "This needs a terminal of its own: it is not offered in a browser."


class View(Filtered):
    """A screen of snapshots: bars, one question to the store, keys that explain refusals."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "back", show=False, key_display="esc", id="view.back"),
        Binding("z", "zoom", "zoom", show=False, id="view.zoom"),
        Binding("S", "start_engine", "start engine", id="view.start_engine"),
    ]

    ALLOW_IN_MAXIMIZED_VIEW = "TopBar, ViewBar, FilterBar, StatusLine, KeyBar"

    def __init__(self) -> None:
        super().__init__()
        self._reasons: tuple[object, ...] = ()
        self._rest: Timer | None = None

    @property
    def marlaas(self) -> MarlaasApp:
        return cast("MarlaasApp", self.app)

    def content(self) -> ComposeResult:
        raise NotImplementedError

    def show_content(self, snapshot: Snapshot, answer: Any) -> None:
        """Update the view's widgets; ``answer`` is None until the question is answered."""

    def question(self) -> Question | None:
        return None

    def why_not(self, action: str) -> str:
        """Why an action is not possible; empty: possible. Called often, so cheap."""
        return ""

    @property
    def first_keys(self) -> tuple[str, ...]:
        return ()

    @property
    def key_words(self) -> Mapping[str, str]:
        """The last line's words for actions, in place of the help's."""
        return {}

    def compose(self) -> ComposeResult:
        yield TopBar(self.marlaas.title, self.marlaas.home_text)
        yield ViewBar(self.marlaas.views)
        yield from self.content()
        yield StatusLine()
        yield KeyBar()

    def on_mount(self) -> None:
        self._css_update_count = self.app._css_update_count  # its styles are of the theme of now
        self.show_again()

    def on_screen_resume(self) -> None:
        self.ask_again()
        if self.is_mounted:
            self.query_one(StatusLine).show_notices(self.marlaas.notices)
            self.show_again()

    def on_resize(self) -> None:
        """Refit to the size; the question may depend on it."""
        self.call_after_refresh(self.renew)

    def renew(self) -> None:
        self.show_again()
        self.ask_again()

    def ask_again(self) -> None:
        self.marlaas.ask(self)

    def ask_at_rest(self) -> None:
        """Ask again once the cursor has rested: the question follows it."""
        if self._rest is not None:
            self._rest.stop()
        self._rest = self.set_timer(_REST, self.ask_again)

    def show_again(self) -> None:
        self.show(self.marlaas.snapshot)

    @property
    def serves(self) -> bool:
        return liveness(self.marlaas.snapshot.engine, self.marlaas.snapshot.now).serves

    def show(self, snapshot: Snapshot) -> None:
        alive = liveness(snapshot.engine, snapshot.now)
        top, base = self.query_one(TopBar), snapshot.engine.shown_base if snapshot.engine else ""
        top.engine = alive
        rest = yielding_hint(yielding_of(snapshot.engine), snapshot.now) if alive.alive else ""
        works = alive.alive and not rest
        top.overview = overview(snapshot.tasks, snapshot.speeds, base, snapshot.parameters, snapshot.turns, works)
        self.query_one(ViewBar).shown = (self.marlaas.current_mode, self.marlaas.selected)
        stalled = snapshot.unfinished and not alive.serves
        hint = _NO_ENGINE if stalled else _SILENT if alive.word == "silent" else rest
        self.query_one(StatusLine).show(snapshot.problem, hint, snapshot.note)
        question = self.question()
        self.show_content(snapshot, snapshot.answer if question and snapshot.question == question else None)
        self.renew_keys()

    # Impossible keys are dim, and explain themselves when pressed.

    def renew_keys(self) -> None:
        reasons = (
            self.serves,
            self.first_keys,
            dict(self.key_words),
            *(self.why_not(binding.action) for _, binding in self._bindings),
        )
        if reasons != self._reasons:
            self._reasons = reasons
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Textual's values: None dims a key, False hides it."""
        if action == "start_engine":
            return not self.serves
        return None if self.why_not(action) else True

    def on_key(self, event: Key) -> None:
        active = self.active_bindings.get(event.key)
        if active is not None and not active.enabled and (reason := self.why_not(active.binding.action)):
            self.marlaas.say(reason, bad=True)
            event.stop()

    def action_start_engine(self) -> None:
        self.marlaas.action_start_engine()

    def action_back(self) -> None:
        """From a zoomed pane to all panes, else to the previous view."""
        if self.maximized is not None:
            self.minimize()
        elif len(self.app.screen_stack) > 1:
            self.app.pop_screen()
        else:
            self.marlaas.go_back()

    def watch_maximized(self) -> None:
        self.refresh_bindings()  # the key that leaves the zoom comes or goes

    def action_zoom(self) -> None:
        if self.maximized is not None:
            self.minimize()
        elif self.focused is None or not self.maximize(self.focused):
            self.marlaas.say("There is nothing to zoom here.", bad=True)

    def write_environment(self, then: str = "", tell: Callable[[Path], None] = lambda path: None) -> None:
        """Ask for name and shape, write the template, open it in the editor; the notice ends with ``then``.

        ``tell`` gets the new files before the editor opens.
        """
        from ..context.editor import opened
        from .dialogs import new_environment

        def written(path: Path | None) -> None:
            if path is not None:
                tell(path)
                what = "saved" if opened(self.marlaas, path) else "written, and runs as it is"
                self.marlaas.say(f"{path} is {what}.{then and f' {then}'}")

        self.app.push_screen(new_environment(self.marlaas.home), written)

    def copied(self) -> tuple[str, Sequence[object], str]:
        """For copying: words, JSON, and its name as the start of a sentence."""
        raise NotImplementedError

    def action_copy_row(self) -> None:
        text, _, what = self.copied()
        self.marlaas.copy(text, what)

    def action_copy_json(self) -> None:
        _, records, what = self.copied()
        self.marlaas.copy(json.dumps(records[0] if len(records) == 1 else records, indent=2), what)


_VERBS = {"toggle_pause": ("pause", "resume"), "cancel": ("cancel",), "retry": ("retry",)}
_OTHERWISE = {
    "toggle_pause": "there is nothing to pause",
    "cancel": "there is nothing to cancel",
    "retry": "only failed and cancelled tasks can be retried",
}
_NEEDS_A_TASK = ("add_like", "open_rollouts", "open_logs", "edit_environment", "copy_row", "copy_json")


class TasksView(View):
    """Keys for the marked tasks or the current one; they explain refusals."""

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
    def targets(self) -> Sequence[TaskRow]:
        """The current one first."""
        raise NotImplementedError

    @property
    def first_keys(self) -> tuple[str, ...]:
        return ("edit_environment",) if self.targets and mended_in_file(self.targets[0]) else ()

    @property
    def key_words(self) -> Mapping[str, str]:
        """The effect of ``p``; short words, so that filtering and leaving fit at 80 columns."""
        resumes = self._fitting("resume") and not self._fitting("pause")
        return {"toggle_pause": "resume" if resumes else "pause", "edit_environment": "edit"}

    def why_not(self, action: str) -> str:
        """Needs a task in a fitting state."""
        verbs = _VERBS.get(action, ())
        if not verbs and action not in _NEEDS_A_TASK:
            return ""
        if action == "edit_environment" and self.marlaas.web:
            return IN_A_TERMINAL
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
        if moving := self._fitting("pause"):
            self.marlaas.command("pause", moving)
        elif paused := self._fitting("resume"):
            self.marlaas.command("resume", paused)

    def action_retry(self) -> None:
        self.marlaas.command("retry", self._fitting("retry"))

    def action_cancel(self) -> None:
        tasks = self._fitting("cancel")
        name = next(line(task.name, 40) for task in self.targets if task.id == tasks[0])
        named, ends = f"task {tasks[0]}, {name}", "It stops; its"
        if len(tasks) > 1:
            named, ends = f"{len(tasks)} tasks", "They stop; their"
        question = f"Cancel {named}? {ends} adapters stay, and retrying goes on from the last step."
        self.marlaas.confirm(question, partial(self.marlaas.command, "cancel", tasks))

    def action_add_like(self) -> None:
        self.marlaas.action_add(self.targets[0].id)

    def action_open_rollouts(self) -> None:
        self.marlaas.open_task(self.targets[0].id, "rollouts")

    def action_open_logs(self) -> None:
        self.marlaas.open_task(self.targets[0].id, "logs")

    def action_edit_environment(self) -> None:
        """At the wrong line."""
        from ...operations.environments.source_lines import task_place
        from ..context.editor import edit_source

        try:
            with reading(self.marlaas.home) as reader:
                known, use = (
                    (reader.environments(), machine.environment_use(reader, time.time())) if reader else ([], {})
                )
                path, place = task_place(self.targets[0], known, use)
        except MarlaasError as error:
            self.marlaas.say(str(error), bad=True)
            return
        edit_source(self.marlaas, path, place)

    def copied(self) -> tuple[str, Sequence[object], str]:
        rows = [f"{t.id}\t{t.tenant}\t{t.name}\t{t.environment}\t{t.state}\t{t.step}/{t.steps}" for t in self.targets]
        return "\n".join(rows), [task_json(task) for task in self.targets], tasks_named([t.id for t in self.targets])

    def _fitting(self, verb: str) -> list[int]:
        return [task.id for task in self.targets if task.state in TRANSITIONS[verb]]
