"""Lines around views: title, views, keys, status, notices, filters, and texts in place of an empty list."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.events import Click
from textual.markup import escape
from textual.message import Message
from textual.reactive import reactive
from textual.screen import Screen
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input, Static

from marlaas.engine.errors import ConfigError, MarlaasError
from marlaas.engine.store.rows import PaceRow, TaskRow, WorkerRow

from ...text.format import bar, cells, clip, count, duration, line, score, share, size
from ...text.learning import state_text
from ...text.metrics import value_text
from ...text.scores import held_out
from ...text.tasks import (
    Liveness,
    Overview,
    Part,
    is_rough,
    left_text,
    lost_words,
    parts,
    remedy,
    seconds_left,
    shown_reason,
)
from ..context.feed import Notice, counting

if TYPE_CHECKING:
    from ...app import MarlaasApp
    from ..frame.modes import Mode


class Elapsed(Static):
    """Shows a text; while what it tells of is in progress, the seconds since then stand behind it."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__("", markup=False, id=id)
        self._text = Content("")
        self._since: float | None = None
        self._counting: Timer | None = None

    def on_mount(self) -> None:
        self._counting = self.set_interval(1.0, self._count, pause=self._since is None)

    def show(self, text: Content | str, under_way: bool = False) -> None:
        self._text = text if isinstance(text, Content) else Content(text)
        self._since = time.monotonic() if under_way else None
        if self._counting is not None:
            self._counting.resume() if under_way else self._counting.pause()
        self.update(self._text)

    def _count(self) -> None:
        if self._since is not None:
            self.update(self._text + counting("", time.monotonic() - self._since))


class Nothing(Static):
    """Shown in place of what is not there yet: the next step. ``text`` is our own, and names a key or a command."""

    DEFAULT_CSS = """
    Nothing { width: 100%; height: 1fr; padding: 2 4; color: $text-muted; }
    """

    def __init__(self, text: str, id: str | None = None) -> None:
        super().__init__(text, markup=False, id=id)


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
    """Shown in place of an empty queue: three ways to begin."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "demo", "demo", id="guide.demo"),
        Binding("e", "environment", "environment", id="guide.environment"),
    ]
    DEFAULT_CSS = """
    Guide { width: 100%; height: 1fr; padding: 1 4; overflow-y: auto; }
    """

    class EnvironmentWanted(Message):
        """The person wants to write an environment."""

    def on_mount(self) -> None:
        self._begun = False
        self.renew()

    def renew(self) -> None:
        """Show how to begin; if somebody wrote an environment, what comes next."""
        files = self._marlaas.home.plugins.glob("[!._]*")
        written = sorted(path.stem for path in files if path.suffix in (".py", ".toml") or path.is_dir())
        names = clip(line(", ".join(written)), 48)
        self.update((_NEXT.format(names=escape(names)) if written else _FIRST) + _TEXT)

    @property
    def _marlaas(self) -> MarlaasApp:
        return cast("MarlaasApp", self.app)

    def action_demo(self) -> None:
        if not self._marlaas.refuses() and not self._begun:
            self._begun = True
            self._ended = self._marlaas.under_way("Starting the engine …")
            self.run_worker(self._demo, thread=True, exit_on_error=False)

    def _demo(self) -> None:
        from ...operations.submitting import begin

        app = self._marlaas
        try:
            begin(app.home, app.say)
        except MarlaasError as error:
            app.say(str(error), True)
        finally:
            self._begun = False
            app.call_from_thread(self._ended)
            app.call_from_thread(app.poll)

    def action_environment(self) -> None:
        here = "An environment is a file: write it on the machine itself, `marlaas env new NAME`."
        if not self._marlaas.refuses(here if self._marlaas.web else ""):
            self.post_message(self.EnvironmentWanted())


class FilterLine(Input):
    """What is typed; it names enter itself, because a text's own key for it would hide the one of the bar."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "to the list", id="filter.leave"),
        Binding("down", "submit", "to the list", show=False, id="filter.down"),
    ]


class FilterBar(Horizontal):
    """A line to type a filter into, above a list. It opens with /, filters while one types, and goes with esc."""

    @dataclass
    class Changed(Message):
        """The filter has changed."""

        text: str

    class Left(Message):
        """The person is done typing: the list gets the keys again."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "clear", "clear filter", id="filter.clear"),
    ]
    DEFAULT_CSS = """
    FilterBar { height: 1; padding: 0 1; display: none; background: $surface; }
    FilterBar.-open { display: block; }
    FilterBar Input { width: 1fr; height: 1; border: none; padding: 0; background: $surface; }
    FilterBar .prompt { width: 2; color: $text-accent; }
    FilterBar #told { width: auto; max-width: 60%; color: $text-muted; }
    """

    def __init__(self, hint: str) -> None:
        """``hint`` is shown in the empty line: what can be typed."""
        super().__init__()
        self._hint = hint

    def compose(self) -> ComposeResult:
        yield Static("/", classes="prompt", markup=False)
        yield FilterLine(placeholder=self._hint, max_length=300, select_on_focus=False, compact=True)
        yield Static("", id="told", markup=False)

    @property
    def text(self) -> str:
        """What was typed."""
        return self.query_one(Input).value

    def open(self) -> None:
        """Show the line and focus it at once, because the next letters may be on their way."""
        self.add_class("-open")
        self.screen.set_focus(self.query_one(Input))

    def tell(self, text: str, bad: bool = False) -> None:
        """Show what the filter found, or what is wrong with it."""
        self.query_one("#told", Static).update(Content.styled(f" {line(text, 200)}", "$text-error" if bad else ""))

    def write(self, text: str) -> None:
        """Set the filter, as if it had been typed."""
        self.query_one(Input).value = text
        self.set_class(bool(text), "-open")

    def action_clear(self) -> None:
        self.write("")
        self.post_message(self.Left())

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Changed(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.set_class(bool(self.text), "-open")
        self.post_message(self.Left())


class Filtered(Screen[Any]):
    """What a screen with a filter over a list shares."""

    LIST = "KeyedTable"
    """The list."""

    def filter(self, text: str) -> None:
        """Show what passes a filter. Raises ``ConfigError`` while it makes no sense."""

    def action_filter(self) -> None:
        self.query_one(FilterBar).open()

    def on_filter_bar_changed(self, message: FilterBar.Changed) -> None:
        """Filter with every letter; while the filter makes no sense yet, the list stays."""
        self.query_one(FilterBar).tell("")
        try:
            self.filter(message.text)
        except ConfigError as error:
            self.query_one(FilterBar).tell(error.message, bad=True)

    def on_filter_bar_left(self) -> None:
        self.leave_filter()

    def leave_filter(self) -> None:
        """Go back to the list."""
        self.query_one(self.LIST).focus()


_KEPT = ("help", "all panes", "close", "leave")
"""Descriptions of the keys that are left out last: where one is, and how one gets away."""


@dataclass(frozen=True)
class ShownKey:
    """A key in the line."""

    key: str
    """The key as one presses it."""
    display: str
    description: str
    enabled: bool

    @property
    def text(self) -> str:
        return f" {self.display} {self.description} "

    def drawn(self) -> Content:
        """The same in its styles."""
        dim = "" if self.enabled else " dim"
        key, what = f" {self.display} ", f"{self.description} "
        return Content.assemble((key, f"bold $footer-key-foreground{dim}"), (what, dim.strip()))


def fitting(keys: Sequence[ShownKey], room: int) -> tuple[ShownKey, ...]:
    """The keys that fit into this many cells, in their order: those that are kept to the last, then the first ones."""
    shown: list[ShownKey] = []
    room += 1  # the space behind the last one may be cut
    for key in sorted(keys, key=lambda each: each.description not in _KEPT):
        if cells(key.text) <= room:
            shown.append(key)
            room -= cells(key.text)
    return tuple(key for key in keys if key in shown)


class KeyBar(Widget):
    """The keys that act in a view or dialog, dim if they cannot, and the palette; a click on a key presses it.

    Textual's own footer makes all of its widgets again whenever one key changes, with every move of a cursor.
    """

    DEFAULT_CSS = """
    KeyBar { dock: bottom; height: 1; background: $footer-background; color: $footer-foreground; }
    """
    ALLOW_SELECT = False

    keys: reactive[tuple[ShownKey, ...]] = reactive(())
    palette: reactive[ShownKey | None] = reactive(None)

    def __init__(self, enter: str = "") -> None:
        """``enter`` is what that key does in the line of text that has the focus, if no binding says it."""
        super().__init__()
        self._enter = enter
        self._will_look = False

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._changed)

    def _changed(self, screen: Screen[object]) -> None:
        if screen is self.screen and screen.app.app_focus and not self._will_look:
            self._will_look = True  # a change of the focus reports it several times
            self.call_after_refresh(self.look)

    def look(self) -> None:
        """Read which keys there are, and which of them can act.

        Those of the screen's ``first_keys`` come first, and its ``key_words`` name some in other words.
        """
        self._will_look = False
        if not self.is_attached:  # its screen may have been left meanwhile
            return
        active, display = self.screen.active_bindings, self.app.get_key_display
        first: Sequence[str] = getattr(self.screen, "first_keys", ())
        words: Mapping[str, str] = getattr(self.screen, "key_words", {})
        shown: dict[str, ShownKey] = {}
        if self._enter:
            shown["enter"] = ShownKey("enter", display(Binding("enter", "")), self._enter, True)
        zoom = next((each.binding for each in active.values() if each.binding.action == "zoom"), None)
        if zoom is not None and self.screen.maximized is not None:
            shown["zoom"] = ShownKey(zoom.key, f"esc {display(zoom)}", "all panes", True)
        for _, binding, enabled, _ in active.values():
            if (binding.show or binding.action in first) and binding.action not in shown:
                description = words.get(binding.action, binding.description)
                shown[binding.action] = ShownKey(binding.key, display(binding), description, enabled)
        rank = {action: place for place, action in enumerate(first)}
        ordered = sorted(shown, key=lambda each: (shown[each].description == "close", rank.get(each, len(rank))))
        self.keys = tuple(shown[action] for action in ordered)  # how to close comes last
        if palette := active.get(self.app.COMMAND_PALETTE_BINDING):
            binding = palette.binding
            self.palette = ShownKey(binding.key, display(binding), binding.description, palette.enabled)

    @property
    def _room(self) -> int:
        """Cells next to the palette's key, which is there if the keys that are kept leave room for it."""
        kept = sum(cells(key.text) for key in self.keys if key.description in _KEPT)
        room = self.size.width - (cells(self.palette.text) if self.palette else 0)
        return room if room + 1 >= kept else self.size.width

    def render(self) -> Content:
        room = self._room
        keys = Content("").join([key.drawn() for key in fitting(self.keys, room)]).truncate(max(0, room), pad=True)
        if not self.palette or room == self.size.width:
            return keys
        return Content("").join([keys, Content.styled("▏", "$foreground 20%"), self.palette.drawn()[1:]])

    def on_click(self, event: Click) -> None:
        place, room = 0, self._room
        if self.palette and event.x >= room:
            self.app.simulate_key(self.palette.key)
            return
        for key in fitting(self.keys, room):
            place += cells(key.text)
            if event.x < place:
                self.app.simulate_key(key.key)
                return


class NoticeLine(Static):
    """Notices, in the place of the status line, so that they cover nothing; it grows with a long sentence."""

    DEFAULT_CSS = """
    NoticeLine { display: none; dock: bottom; height: auto; max-height: 6; margin-bottom: 1; padding: 0 1;
                 background: $panel; }
    NoticeLine.-told { display: block; }
    """

    def __init__(self) -> None:
        super().__init__("", markup=False)

    def show(self, notices: Sequence[Notice]) -> None:
        lines = [
            Content.styled(f"{'!' if notice.bad else '·'} {notice.text}", "bold $text-warning" if notice.bad else "")
            for notice in notices
        ]
        self.update(Content("\n").join(lines))
        self.set_class(bool(notices), "-told")
        for status in self.screen.query(StatusLine):
            status.display = not notices


_FIRST_WORKERS = ("rollout", "training", "engine")


class StatusLine(Widget):
    """The line above the keys: a problem, or what to do next, or a note and as many workers as fit."""

    DEFAULT_CSS = """
    StatusLine { dock: bottom; margin-bottom: 1; height: 1; padding: 0 1; color: $text-muted; }
    """

    problem: reactive[str] = reactive("")
    processes: reactive[Sequence[WorkerRow]] = reactive(())
    hint: reactive[str] = reactive("")
    """What to do next; shown if there is no problem."""
    note: reactive[str] = reactive("")
    """What continues next to the engine; before the workers."""

    def render(self) -> Content:
        width = self.content_size.width
        if self.problem or self.hint:
            text = f"! {self.problem}" if self.problem else self.hint
            return Content.styled(line(text, width), "bold $text-error" if self.problem else "$text-warning")
        text = line(self.note, width)
        for part in worker_texts(self.processes):
            longer = f"{text} · {part}" if text else part
            if cells(longer) > width - 2:
                return Content(clip(f"{text} · …", width))
            text = longer
        return Content(text)


def worker_texts(workers: Sequence[WorkerRow]) -> list[str]:
    """Each worker in a few words: rollout and training first, then the engine, and all environments together."""
    environments = [worker for worker in workers if worker.name.startswith("env")]
    others = sorted((worker for worker in workers if worker not in environments), key=_rank)
    texts = []
    for worker in [*others, *(environments if len(environments) == 1 else [])]:
        state = "" if worker.state == "running" else f" {line(worker.state, 12)}"
        load = "" if worker.pid is None else f" {size(worker.rss or 0)} {share(worker.busy or 0)}"
        texts.append(f"{line(worker.name, 24)}{state}{load}")
    if len(environments) > 1:
        texts.append(f"{len(environments)} environments {size(sum(worker.rss or 0 for worker in environments))}")
    return texts


def _rank(worker: WorkerRow) -> tuple[int, str]:
    known = worker.name in _FIRST_WORKERS
    return _FIRST_WORKERS.index(worker.name) if known else len(_FIRST_WORKERS), worker.name


_REASON_LINES = 3
_RAGGED = 8
"""Cells of a line that wrapping at words may leave empty."""


class TaskLine(Widget):
    """A task in a few lines: its tenant and name, then its numbers, or why it waits or has ended, or what is wrong.

    Grows with a long reason.
    """

    DEFAULT_CSS = """
    TaskLine { height: 2; padding: 0 1; box-sizing: content-box; }
    """

    row: reactive[TaskRow | None] = reactive(None)
    pace: reactive[PaceRow | None] = reactive(None)
    """The speed of its last steps, from which the time left is computed."""
    serving: reactive[bool] = reactive(True)
    """Whether an engine works on the tasks."""
    policy: reactive[str] = reactive("")
    """Which of its policies is meant, in words."""
    brief: reactive[bool] = reactive(False)
    """Whether its numbers are left out, if they stand below."""

    def _fit(self) -> None:
        room = max(1, self.content_size.width)
        reason, notice, _ = self._said()
        height = 1 + max(0 if self.brief else 1, _lines(reason, room)) + _lines(notice, room)
        if self.styles.height is None or self.styles.height.value != height:
            self.styles.height = height

    watch_row = watch_serving = watch_brief = on_resize = _fit

    def _said(self) -> tuple[str, str, str]:
        """Why the task waits or has ended; what is wrong, or what to do about it; and the style of the former."""
        task = self.row
        if task is None:
            return "", "", ""
        reason = shown_reason(task, self.serving)
        if task.state == "blocked":
            return reason, remedy(task), "$text-error"
        known = (lost_words(task), "" if reason else task.warning)
        return reason, " ".join(filter(None, known)), "$text-muted"

    def render(self) -> Content:
        task = self.row
        if task is None:
            return Content("")
        width = self.content_size.width
        numbers = [
            f"reward {score(task.reward)}",
            f"held-out {held_out(task.score, task.basis)}",
            f"staleness {value_text('staleness', task.staleness)}",
            f"{count(task.tokens)} tokens",
            duration(task.seconds),
        ]
        state = f"{state_text(task, self.serving)}  {bar(task.step, task.steps, 10)} {task.step}/{task.steps}"
        left = seconds_left(task, self.pace)
        state += "" if left is None else f"  {left_text(left, is_rough(self.pace))} left"
        whose = f"{task.name} · {self.policy}" if self.policy else task.name
        name = line(f"{task.id}  {task.tenant} / {whose}  ({task.environment})", max(0, width - cells(state) - 2))
        gap = " " * max(1, width - cells(name) - cells(state))
        reason, notice, style = self._said()
        below = line(reason, _REASON_LINES * width) if reason else line(" · ".join(numbers), width)
        parts: list[str | tuple[str, str]] = [(name, "bold"), gap, state]
        parts += ["\n", (below, style)] if reason or not self.brief else []
        parts += ["\n", (line(notice, _REASON_LINES * width), "$text-warning")] if notice else []
        return Content.assemble(*parts)


def _lines(sentence: str, room: int) -> int:
    """Lines that a sentence takes, at most ``_REASON_LINES``."""
    shown = line(sentence, _REASON_LINES * room)
    return min(_REASON_LINES, -(-cells(shown) // max(1, room - _RAGGED)))


_STYLES = {"alive": "bold $text-success", "silent": "bold $text-warning", "down": "bold $text-error"}
_MARKS = {"alive": "●", "silent": "!", "down": "✗", "stopped": "○", "never": "○"}
_BETWEEN = " · "
_HOME = 3
"""The rank of the home's folder among the parts."""
_LEAST_HOME = 24
"""Cells from which on a long folder's name is cut, to make room for others."""


class TopBar(Widget):
    """Title and home at the left, engine at the right, which is never cut; between them what there is room for."""

    DEFAULT_CSS = """
    TopBar { dock: top; height: 1; padding: 0 1; background: $panel; }
    """

    engine: reactive[Liveness] = reactive(Liveness("never", "never started"))
    overview: reactive[Overview] = reactive(Overview())

    def __init__(self, title: str, home: str) -> None:
        super().__init__()
        self._title = title
        self._home = home

    def render(self) -> Content:
        engine = f"engine: {_MARKS.get(self.engine.word, '')} {self.engine.text}"
        width = self.content_size.width
        title = clip(self._title, max(0, width - cells(engine) - 2))
        room = width - cells(engine) - cells(title) - 4
        home = Part(clip(line(self._home), max(_LEAST_HOME, room // 3)), _HOME)
        kept = fitting_top_bar([home, *parts(self.overview)], room, cells(_BETWEEN))
        folder = f"  {home.text}" if home in kept else ""
        middle = Content(_BETWEEN).join([Content.styled(part.text, part.style) for part in kept if part is not home])
        gap = max(0, width - cells(title) - cells(folder) - cells(engine) - middle.cell_length)
        after = " " * min(gap, 2)
        before = " " * (gap - len(after))
        style = _STYLES.get(self.engine.word, "$text-muted")
        return Content.assemble((title, "bold"), (folder, "$text-muted"), before, middle, after, (engine, style))


def fitting_top_bar(found: Sequence[Part], room: int, between: int) -> list[Part]:
    """Those parts that there is room for, chosen by rank, in the order in which they were given."""
    kept: list[Part] = []
    for part in sorted(found, key=lambda part: part.rank):
        room -= cells(part.text) + between
        if room < 0:
            break
        kept.append(part)
    return [part for part in found if part in kept]


class ViewBar(Widget):
    """Numbers and names of the views, with the present one marked; a click opens one."""

    DEFAULT_CSS = """
    ViewBar { dock: top; height: 1; margin-top: 1; padding: 0 1; background: $surface; }
    """

    shown: reactive[tuple[str, int | None]] = reactive(("queue", None))
    """The view in sight, and the selected task."""

    def __init__(self, views: Sequence[Mode]) -> None:
        super().__init__()
        self._views = views

    def render(self) -> Content:
        texts, gap = self._texts()
        styles = ["bold reverse" if mode.name == self.shown[0] else "$text-muted" for mode in self._views]
        return Content(gap).join([Content.styled(text, style) for text, style in zip(texts, styles, strict=True)])

    def _texts(self) -> tuple[list[str], str]:
        """The names with the selected task if there is room; else with it in this view only; else this view's name
        among numbers; else only numbers. And what is between them."""
        name, task = self.shown
        numbers = [str(place) for place in range(1, len(self._views) + 1)]
        names = [f"{number} {mode.name}" for number, mode in zip(numbers, self._views, strict=True)]
        tasks = [f"{text} {task}" if task and m.of_task else text for text, m in zip(names, self._views, strict=True)]
        here = [mode.name == name for mode in self._views]
        present = [tasks[place] if here[place] else text for place, text in enumerate(names)]
        only = [tasks[place] if here[place] else text for place, text in enumerate(numbers)]
        choices = ((tasks, "  "), (present, "  "), (present, " "), (only, "  "))
        room = self.content_size.width
        return next(((texts, gap) for texts, gap in choices if cells(gap.join(texts)) <= room), (numbers, " "))

    def on_click(self, event: Click) -> None:
        place = 1
        texts, gap = self._texts()
        for mode, text in zip(self._views, texts, strict=True):
            if place <= event.x < place + cells(text):
                self.app.run_worker(self.app.run_action(f"open_view('{mode.name}')"))
            place += cells(text) + len(gap)
