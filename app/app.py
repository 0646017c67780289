"""The terminal application.

Reads the store through ``Feed`` and writes only commands; closing it stops nothing.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, ClassVar, Literal, cast

from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.filter import NoColor
from textual.screen import Screen
from textual.timer import Timer
from textual.worker import get_current_worker

from marlaas.engine.errors import MarlaasError
from marlaas.engine.home.paths import Home

from .lists.lines import Learner, learner
from .text.format import line, short_path
from .text.tasks import liveness, state_word
from .text.terms import TERMS, sentence
from .tui.context.feed import Feed, Notice, Sender, Snapshot, current, lasting
from .tui.frame.first_frame import title_of
from .tui.frame.looks import DEFAULT, THEMES, Ascii, Legible, legible_theme
from .tui.frame.preferences import Preferences
from .tui.frame.terminal import KeyOrder, copy
from .tui.screens.view import View
from .tui.widgets.bars import StatusLine

_REMEMBERED = 100
_SECOND = 1.0
_CHARACTERS = 400
TEXTUALS = ("Theme", "Quit", "Screenshot")
"""Textual's commands in the palette; the others have keys."""


@dataclass(frozen=True)
class Mode:
    """A view of a number key."""

    name: str
    summary: str
    of_task: bool = False
    """True: shows the selected task."""

    def make(self) -> View:
        """Loads its module on first use."""
        module = import_module(f".tui.screens.{self.name}", __package__)
        return cast("View", getattr(module, f"{self.name.capitalize()}Screen")())


ALL_MODES = (
    Mode("queue", "All tasks: what runs, what waits and why"),
    Mode("task", "One task: is it learning?", of_task=True),
    Mode("rollouts", "What the model writes, from the trend down to its tokens", of_task=True),
    Mode("environments", "Plugins: which serve, which are broken, and where"),
    Mode("adapters", "Versions on the disk: chat with them, export them, roll back, train on"),
    Mode("engine", "Is the machine busy, and who uses how much of it? Start, drain, stop"),
    Mode("logs", "What happened, and what the engine and its workers say", of_task=True),
    Mode("api", "Programs from outside: at which address they ask, with which keys; open, close"),
)


class MarlaasApp(KeyOrder):
    """The application of one home."""

    CSS_PATH = "app.tcss"
    TITLE = "marlaas"
    ENABLE_COMMAND_PALETTE = True
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-normal"), (160, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (20, "-tall")]  # noqa: RUF012
    MODES = {mode.name: mode.make for mode in ALL_MODES}  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(place), f"open_view('{mode.name}')", mode.name, show=False, id=f"view.{mode.name}")
            for place, mode in enumerate(ALL_MODES, 1)
        ),
        Binding("question_mark", "help", "help", key_display="?", id="app.help"),
        Binding("q", "quit", "quit", id="app.quit"),
        Binding("a", "add", "add", show=False, id="app.add"),
        Binding("u", "undo", "undo", show=False, id="app.undo"),
        Binding("colon", "palette", "palette", show=False, id="app.palette"),
        Binding("ctrl+z", "suspend_process", "to the shell; fg comes back", show=False, id="app.suspend"),
    ]

    def __init__(
        self,
        home: Home,
        demo: bool = False,
        *,
        preferences: Preferences = Preferences(),  # noqa: B008
        readonly: bool = False,
        web: bool = False,
        interval: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``readonly`` refuses every action; ``web`` also hides editors and file paths. ``interval``: poll seconds."""
        super().__init__()
        self.home, self.readonly, self.web = home, readonly, web
        self.snapshot = Snapshot(now=clock())
        self.clock = clock
        self._feed = Feed(home, clock)
        self._sender = Sender(self, self._feed)
        self.told: deque[Notice] = deque(maxlen=_REMEMBERED)
        """The last notices, the newest last."""
        self._going: dict[str, float] = {}
        """What is in progress, with the moment at which it began."""
        self._renewal: Timer | None = None
        self.animation_level = "none"
        self.title = title_of(demo, readonly)
        self.home_text = short_path(home.root)
        self.views = ALL_MODES
        self.selected: int | None = None
        self.policy = ""
        """Which policy of the selected task is looked at, if it trains several; empty: the first."""
        self.marked: frozenset[int] = frozenset()
        """Tasks that are marked in the queue."""
        self.beside: Sequence[int] = ()
        """Tasks that the task view is to lay over the selected one, until it has done so."""
        self.awaited: int | None = None
        """A task that the queue's cursor is to go to as soon as the store has it."""
        self.farewell = ""
        self.begun: Callable[[], None] = lambda: None
        """Called once a view of the home is painted."""
        self._interval = interval
        self._timer: Timer | None = None
        self._before = "queue"
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = preferences.theme or DEFAULT
        self.set_keymap(dict(preferences.keys))
        self._filters += [
            Legible(),
            *([NoColor()] if self.no_color else []),
            *([Ascii()] if preferences.ascii else []),
        ]
        self._styled_for = self.get_css_variables()
        """The theme variables that styles were last read with."""
        self.stylesheet.set_variables(self._styled_for)  # before the first style is read

    def get_css_variables(self) -> dict[str, str]:
        return legible_theme(super().get_css_variables())

    def refresh_css(self, animate: bool = True) -> None:
        """Read styles only after a theme change.

        Textual reads all twice per opened view; new widgets get theirs as they are mounted.
        """
        variables, view = self.get_css_variables(), self.view
        missed = view is not None and view.is_mounted and view._css_update_count != self._css_update_count
        if missed or variables != self._styled_for:
            self._styled_for = variables
            super().refresh_css(animate)

    def on_mount(self) -> None:
        """Open the queue with content: otherwise an empty one is drawn first."""
        self.app_resume_signal.subscribe(self, lambda app: app.refresh(layout=True))  # the shell has drawn over it
        if not self.is_web and not self.is_headless:  # else the terminal would stay on the alternate screen
            end = partial(self.exit, return_code=128 + signal.SIGTERM)
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
        self.snapshot = self._feed.poll()
        self.switch_mode("queue")
        self.poll()

    def on_unmount(self) -> None:
        self._feed.close()

    # Dialogs have no line for notices, so use toasts.

    @property
    def notices(self) -> tuple[Notice, ...]:
        now = time.monotonic()
        seconds = {text: now - began for text, began in self._going.items()}
        going = (Notice(f"{text} {since:.0f} s" if since >= 1 else text) for text, since in seconds.items())
        return (*current(self.told, now), *going)

    def under_way(self, text: str) -> Callable[[], None]:
        self._going[text] = time.monotonic()
        self._show_notices()

        def end() -> None:
            self._going.pop(text, None)
            self._show_notices()

        return end

    def say(self, text: str, bad: bool = False) -> None:
        """``text`` may be foreign. Callable from any thread."""
        self.notify(text, severity="warning" if bad else "information", markup=False)

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: Literal["information", "warning", "error"] = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None:
        """Without markup. Callable from any thread."""
        text = line(f"{title}: {message}" if title else message, _CHARACTERS)
        until = time.monotonic() + (lasting(text) if timeout is None else timeout)
        self.call_later(self._notice, Notice(text, severity != "information", until))

    def _notice(self, notice: Notice) -> None:
        self.told.append(notice)
        self._show_notices()
        if self.screen_stack and not self.screen.query(StatusLine):
            severity: Literal["information", "warning"] = "warning" if notice.bad else "information"
            super().notify(notice.text, severity=severity, timeout=lasting(notice.text), markup=False)

    def _show_notices(self) -> None:
        notices = self.notices
        if self.screen_stack:  # a view below a dialog shows them once it is in sight again
            for each in self.screen.query(StatusLine):
                each.show_notices(notices)
        if self._renewal is not None:
            self._renewal.stop()
        if notices:
            now = time.monotonic()
            left = min(notice.until - now if notice.until else _SECOND for notice in notices)
            self._renewal = self.set_timer(max(0.05, left), self._show_notices)

    def may_act(self) -> str:
        """Why no action is possible; empty: possible."""
        return "This is the read-only mode: nothing can be changed." if self.readonly else ""

    def refuses(self, reason: str = "") -> bool:
        reason = self.may_act() or reason
        if reason:
            self.say(reason, bad=True)
        return bool(reason)

    def confirm(self, question: str, act: Callable[[], object], typed: str = "") -> None:
        """Ask, and act on a yes; ``typed``: word to type."""
        from .tui.screens.dialogs import Confirm

        def answered(yes: bool | None) -> None:
            if yes:
                act()

        self.push_screen(Confirm(question, typed), answered)

    def command(self, kind: str, tasks: Sequence[int] = (), done: str = "", **arguments: Any) -> None:
        """Send a command; show ``done`` after success."""
        if not self.refuses(self.why_no_engine):
            self._sender.send(kind, tasks, done, **arguments)

    @property
    def why_no_engine(self) -> str:
        """Empty: one serves."""
        serves = liveness(self.snapshot.engine, self.snapshot.now).serves
        return "" if serves else "No engine runs: S starts one."

    def work(
        self,
        do: Callable[[], Any],
        then: Callable[[Any], object] = lambda done: None,
        meanwhile: str = "",
    ) -> None:
        """Run ``do`` in a thread, then ``then`` with its result in the event loop; an error is a notice.

        ``meanwhile``: shown until then; a second request with the same text is dropped.
        """
        if meanwhile in self._going:
            return
        ended = self.under_way(meanwhile) if meanwhile else lambda: None

        def run() -> None:
            try:
                done = do()
            except (MarlaasError, OSError) as error:
                self.say(str(error), bad=True)
            else:
                self.call_from_thread(then, done)
            finally:
                self.call_from_thread(ended)

        self.run_worker(run, thread=True, exit_on_error=False)

    def action_add(self, copy_from: int | None = None) -> None:
        from .tui.screens.submit import SubmitScreen

        if not self.refuses():
            self.push_screen(SubmitScreen(copy_from))

    def action_undo(self) -> None:
        """An unanswered action is undone once answered."""
        self._sender.undo()

    def action_start_engine(self) -> None:
        from marlaas.engine.daemon import control

        def start() -> None:
            control.create_database(self.home)
            control.ensure_running(self.home)

        if not self.refuses():
            self.work(start, meanwhile="Starting the engine …")

    @property
    def view(self) -> View | None:
        """The view in sight; a dialog may lie on it."""
        return next((screen for screen in reversed(self.screen_stack) if isinstance(screen, View)), None)

    def poll(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        self.run_worker(self._poll, thread=True, group="feed", exit_on_error=False)

    def _poll(self) -> None:
        snapshot = self._feed.poll()
        if not get_current_worker().is_cancelled:
            self.call_later(self._updated, snapshot)

    def _updated(self, snapshot: Snapshot) -> None:
        first, self.snapshot = self._timer is None, snapshot
        if self.view is not None and self.view.is_mounted:
            self.view.show(snapshot)
        if first:
            self.call_after_refresh(self.begun)
        self._sender.take(snapshot.outcomes, snapshot.now)
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(self._interval, self.poll)

    def ask(self, view: View) -> None:
        if view is not self.view:
            return
        question = view.question()
        self._feed.ask(question)
        if self.is_running and question is not None and question != self.snapshot.question:
            self.poll()

    def action_open_view(self, name: str) -> None:
        if name != self.current_mode:
            self._before = self.current_mode
            self.switch_mode(name)

    def open_task(self, task: int, view: str = "task", beside: Sequence[int] = ()) -> None:
        """Select and show a task; its chart also shows those in ``beside``."""
        self.selected, self.beside = task, beside
        if view == self.current_mode and self.view is not None:
            self.view.ask_again()
        self.action_open_view(view)

    def go_to_task(self, task: int) -> None:
        self.awaited = task
        self.action_open_view("queue")
        self.poll()

    def go_back(self) -> None:
        self.action_open_view(self._before if self._before != self.current_mode else "queue")

    @property
    def learner(self) -> Learner | None:
        """The selected task, or the policy chosen in it."""
        task = self.snapshot.task(self.selected)
        if task is not None:
            return learner(task, self.policy)
        return None if self.selected is None else Learner(self.selected)

    def why_no_other_policy(self) -> str:
        task = self.snapshot.task(self.selected)
        return "" if task and len(task.trained) > 1 else "This task trains one policy."

    def next_policy(self) -> None:
        task, shown = self.snapshot.task(self.selected), self.learner
        if task and shown and shown.policy in task.trained:
            self.policy = task.trained[(task.trained.index(shown.policy) + 1) % len(task.trained)]

    def copy(self, text: str, what: str) -> None:
        """``what`` begins the notice: Task 17."""
        file = None if self.web else self.home.root / "copied.txt"
        self.say(f"{what} is copied {copy(self, text, file)}.")

    def deliver_screenshot(
        self, filename: str | None = None, path: str | None = None, time_format: str | None = None
    ) -> str | None:
        """Save a picture in the home, or hand it to the browser."""
        if self.web:
            return super().deliver_screenshot(filename, path, time_format)
        try:
            self.home.screenshots.mkdir(mode=0o700, parents=True, exist_ok=True)  # it may show what models wrote
            file = self.save_screenshot(path=str(self.home.screenshots))
        except OSError as error:
            self.say(f"The screenshot cannot be saved: {error.strerror}: {error.filename}.", bad=True)
        else:
            self.say(f"The screenshot is saved: {file}")
        return None

    def action_help(self) -> None:
        from .tui.screens.dialogs import KeysHelp, key_lines

        active = [(each, self.get_key_display(each.binding)) for each in self.screen.active_bindings.values()]
        self.push_screen(KeysHelp(f"keys of {self.current_mode}", self.screen.HELP or "", key_lines(active)))

    def action_explain(self, word: str = "") -> None:
        from .tui.screens.dialogs import Explain

        self.push_screen(Explain(word))

    def action_palette(self) -> None:
        """A binding of ours to its action would take ctrl+p away."""
        self.action_command_palette()

    async def action_quit(self) -> None:
        unfinished = self.snapshot.unfinished
        if unfinished and liveness(self.snapshot.engine, self.snapshot.now).alive:
            tasks = "1 task goes" if unfinished == 1 else f"{unfinished} tasks go"
            self.farewell = f"{tasks} on running; `marlaas engine stop` stops the engine."
        self.exit()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        def later(module: str, function: str) -> Callable[[], None]:  # the first paint does not need these
            return lambda: getattr(import_module(f".tui.screens.{module}", __package__), function)(self)

        ours = {
            "Start the engine": ("It goes on when this program is closed", self.action_start_engine),
            "Yield the machine": ("Free cards and memory for others, for some time", later("engine", "ask_yield")),
            "Take the machine back": ("End a yield; tasks go on from their last commit", later("engine", "take_back")),
            "Open the API": ("Programs on this machine may ask the base and adapters", later("api", "open_api")),
            "Close the API": ("Programs get no more answers; their keys stay", later("api", "close_api")),
            "New key for the API": ("For a program; it is shown once", later("api", "ask_key")),
            "Add tasks": ("Fill in a form; the command line has `marlaas submit FILE`", self.action_add),
            "Explain a word or a metric": ("What it means and what is healthy", self.action_explain),
            "Keys": ("What the keys of this view do", self.action_help),
        }
        yield from (SystemCommand(title, *rest) for title, rest in ours.items())
        for number, mode in enumerate(ALL_MODES, 1):
            yield SystemCommand(f"View {number}: {mode.name}", mode.summary, partial(self.action_open_view, mode.name))
        for task in sorted(self.snapshot.tasks, key=lambda task: task.id):  # task 2 comes before task 20
            title = _safe(f"Open task {task.id}: {line(task.name, 40)}")
            about = _safe(f"{line(task.tenant, 30)}, {state_word(task.state)}")
            yield SystemCommand(title, about, partial(self.open_task, task.id), discover=False)
        for term in TERMS:
            about = _safe(sentence(term.line))
            title = _safe(f"Explain: {', '.join((term.name, *term.names))}")
            yield SystemCommand(title, about, partial(self.action_explain, term.name), discover=False)
        yield from (each for each in super().get_system_commands(screen) if each.title in TEXTUALS)


def _safe(text: str) -> str:
    """Without the brackets of markup: the palette has no other way to show a text as it is."""
    return text.replace("[", "(").replace("]", ")")
