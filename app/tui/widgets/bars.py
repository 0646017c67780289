"""Lines around views: title, views, keys, status, notices, filters, guides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.events import Click
from textual.markup import escape
from textual.reactive import reactive
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, Static

from marlaas.engine.errors import ConfigError
from marlaas.engine.store.rows import PaceRow, TaskRow

from ...text.format import bar, cells, clip, count, duration, line, score
from ...text.learning import state_text
from ...text.metrics import value_text
from ...text.scores import held_out
from ...text.tasks import (
    Liveness,
    Part,
    is_rough,
    left_text,
    lost_words,
    remedy,
    seconds_left,
    shown_reason,
)
from ..context.feed import Notice

if TYPE_CHECKING:
    from ...app import MarlaasApp
    from ..frame.modes import Mode

Item = TypeVar("Item")


class Nothing(Static):
    """The next step in place of missing content. ``text``: our own, names a key or command."""

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
    """In place of an empty queue: three ways to begin."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "demo", "demo", id="guide.demo"),
        Binding("e", "environment", "environment", id="guide.environment"),
    ]
    DEFAULT_CSS = """
    Guide { width: 100%; height: 1fr; padding: 1 4; overflow-y: auto; }
    """

    def on_mount(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Show how to begin, or the next step after writing an environment."""
        files = self._marlaas.home.plugins.glob("[!._]*")
        written = sorted(path.stem for path in files if path.suffix in (".py", ".toml") or path.is_dir())
        names = clip(line(", ".join(written)), 48)
        self.update((_NEXT.format(names=escape(names)) if written else _FIRST) + _TEXT)

    @property
    def _marlaas(self) -> MarlaasApp:
        return cast("MarlaasApp", self.app)

    def action_demo(self) -> None:
        app = self._marlaas

        def begin() -> None:
            from ...operations.submitting import begin

            begin(app.home, app.say)

        if not app.refuses():
            app.work(begin, lambda done: app.poll(), "Starting the engine …")

    def action_environment(self) -> None:
        here = "An environment is a file: write it on the machine itself, `marlaas env new NAME`."
        if not self._marlaas.refuses(here if self._marlaas.web else "") and self._marlaas.view is not None:
            self._marlaas.view.write_environment("a adds a task that uses it.")


class FilterLine(Input):
    """Names enter itself: the input's own binding would hide the bar's."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "to the list", id="filter.leave"),
        Binding("down", "submit", "to the list", show=False, id="filter.down"),
    ]


class FilterBar(Horizontal):
    """A filter line above a list. Opens with /, filters while typing, closes with esc."""

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
        """``hint``: what can be typed, shown while empty."""
        super().__init__()
        self._hint = hint

    def compose(self) -> ComposeResult:
        yield Static("/", classes="prompt", markup=False)
        yield FilterLine(placeholder=self._hint, max_length=300, select_on_focus=False, compact=True)
        yield Static("", id="told", markup=False)

    @property
    def text(self) -> str:
        return self.query_one(Input).value

    def open(self) -> None:
        """Show and focus the line at once: the next letters may be on their way."""
        self.add_class("-open")
        self.screen.set_focus(self.query_one(Input))

    def tell(self, text: str, bad: bool = False) -> None:
        """Show the filter's result or error."""
        self.query_one("#told", Static).update(Content.styled(f" {line(text, 200)}", "$text-error" if bad else ""))

    def write(self, text: str) -> None:
        self.query_one(Input).value = text
        self.set_class(bool(text), "-open")

    @property
    def _filtered(self) -> Filtered:
        return cast("Filtered", self.screen)

    def action_clear(self) -> None:
        self.write("")
        self._filtered.leave_filter()

    def on_input_changed(self, event: Input.Changed) -> None:
        """An invalid filter keeps the list."""
        event.stop()
        self.tell("")
        try:
            self._filtered.filter(event.value)
        except ConfigError as error:
            self.tell(error.message, bad=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.set_class(bool(self.text), "-open")
        self._filtered.leave_filter()


class Filtered(Screen[Any]):
    """Shared by screens with a filter over a list."""

    LIST = "KeyedTable"

    def filter(self, text: str) -> None:
        """Show what passes a filter. Raises ``ConfigError`` for an invalid one."""

    def action_filter(self) -> None:
        self.query_one(FilterBar).open()

    def leave_filter(self) -> None:
        """Typing has ended: the list gets the keys."""
        self.query_one(self.LIST).focus()


_KEPT = ("help", "all panes", "close", "leave", "palette")
"""Descriptions of keys that are left out last: location and exit."""
_LAST = {"palette": 1, "close": 2}
"""Descriptions of keys at the end of the line."""


@dataclass(frozen=True)
class ShownKey:
    """A key in the line."""

    key: str
    display: str
    description: str
    enabled: bool

    @property
    def text(self) -> str:
        return f" {self.display} {self.description} "

    def drawn(self) -> Content:
        dim = "" if self.enabled else " dim"
        key, what = f" {self.display} ", f"{self.description} "
        return Content.assemble((key, f"bold $footer-key-foreground{dim}"), (what, dim.strip()))


def fitting(keys: Sequence[ShownKey], room: int) -> list[ShownKey]:
    """The keys that fit into ``room`` cells, in order: the kept ones, then the first."""
    room += 1  # the space behind the last one may be cut
    return within(keys, room, lambda key: cells(key.text), lambda key: key.description not in _KEPT)


def within(items: Sequence[Item], room: int, width: Callable[[Item], int], rank: Callable[[Item], int]) -> list[Item]:
    """The items that fit into ``room`` cells, in their order; those of low rank are chosen first."""
    chosen = []
    for item in sorted(items, key=rank):
        if width(item) <= room:
            chosen.append(item)
            room -= width(item)
    return [item for item in items if item in chosen]


class KeyBar(Widget):
    """Keys of a view or dialog, dim if impossible; clickable.

    Textual's footer remakes all its widgets when one key changes, at every cursor move.
    """

    DEFAULT_CSS = """
    KeyBar { dock: bottom; height: 1; background: $footer-background; color: $footer-foreground; }
    """
    ALLOW_SELECT = False

    keys: reactive[tuple[ShownKey, ...]] = reactive(())

    def __init__(self, enter: str = "") -> None:
        """``enter``: its action in the focused text line, if no binding says it."""
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
        """Read keys and their possibility.

        The screen's ``first_keys`` come first; its ``key_words`` rename some.
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
            named = binding.show or binding.action in first or binding.key == self.app.COMMAND_PALETTE_BINDING
            if named and binding.action not in shown:
                description = words.get(binding.action, binding.description)
                shown[binding.action] = ShownKey(binding.key, display(binding), description, enabled)
        rank = {action: place for place, action in enumerate(first)}
        ordered = sorted(shown, key=lambda each: (_LAST.get(shown[each].description, 0), rank.get(each, len(rank))))
        self.keys = tuple(shown[action] for action in ordered)

    def render(self) -> Content:
        return Content("").join([key.drawn() for key in fitting(self.keys, self.size.width)])

    def on_click(self, event: Click) -> None:
        place = 0
        for key in fitting(self.keys, self.size.width):
            place += cells(key.text)
            if event.x < place:
                self.app.simulate_key(key.key)
                return


class StatusLine(Static):
    """The line above the keys: a problem, a hint or a note; in its place notices while there are any.

    Covers nothing; grows with a long notice.
    """

    DEFAULT_CSS = """
    StatusLine { dock: bottom; height: 1; margin-bottom: 1; padding: 0 1; color: $text-muted;
                 text-wrap: nowrap; text-overflow: ellipsis; }
    StatusLine.-told { height: auto; max-height: 6; background: $panel; color: $foreground; text-wrap: wrap; }
    """

    def __init__(self) -> None:
        super().__init__("", markup=False)
        self._status = Content("")

    def show(self, problem: str, hint: str, note: str) -> None:
        """The first of these that is not empty."""
        style = "bold $text-error" if problem else "$text-warning" if hint else ""
        self._status = Content.styled(line(f"! {problem}" if problem else hint or note), style)
        if not self.has_class("-told"):
            self.update(self._status)

    def show_notices(self, notices: Sequence[Notice]) -> None:
        lines = [
            Content.styled(f"{'!' if notice.bad else '·'} {notice.text}", "bold $text-warning" if notice.bad else "")
            for notice in notices
        ]
        self.set_class(bool(notices), "-told")
        self.update(Content("\n").join(lines) if notices else self._status)


_REASON_LINES = 3
_RAGGED = 8
"""Most cells that word wrap may leave empty."""


class TaskLine(Widget):
    """A task in a few lines: tenant and name, then numbers, or why it waits, ended or fails.

    Grows with a long reason.
    """

    DEFAULT_CSS = """
    TaskLine { height: 2; padding: 0 1; box-sizing: content-box; }
    """

    row: reactive[TaskRow | None] = reactive(None)
    pace: reactive[PaceRow | None] = reactive(None)
    serving: reactive[bool] = reactive(True)
    policy: reactive[str] = reactive("")
    brief: reactive[bool] = reactive(False)
    """True: numbers are left out, as they stand below."""

    def _fit(self) -> None:
        room = max(1, self.content_size.width)
        reason, notice, _ = self._said()
        height = 1 + max(0 if self.brief else 1, _lines(reason, room)) + _lines(notice, room)
        if self.styles.height is None or self.styles.height.value != height:
            self.styles.height = height

    watch_row = watch_serving = watch_brief = on_resize = _fit

    def _said(self) -> tuple[str, str, str]:
        """Why the task waits or ended; error or advice; style of the former."""
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
    """A sentence's lines, at most ``_REASON_LINES``."""
    shown = line(sentence, _REASON_LINES * room)
    return min(_REASON_LINES, -(-cells(shown) // max(1, room - _RAGGED)))


_STYLES = {"alive": "bold $text-success", "silent": "bold $text-warning", "down": "bold $text-error"}
_MARKS = {"alive": "●", "silent": "!", "down": "✗", "stopped": "○", "never": "○"}
_BETWEEN = " · "
_HOME = 3
_LEAST_HOME = 24
"""Least cells of a shortened folder name."""


class TopBar(Widget):
    """Title and home left, engine right (never cut), the rest between as room allows."""

    DEFAULT_CSS = """
    TopBar { dock: top; height: 1; padding: 0 1; background: $panel; }
    """

    engine: reactive[Liveness] = reactive(Liveness("never", "never started"))
    overview: reactive[Sequence[Part]] = reactive(())

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
        parts = [home, *self.overview]
        kept = within(parts, room, lambda part: cells(part.text) + cells(_BETWEEN), lambda part: part.rank)
        folder = f"  {home.text}" if home in kept else ""
        middle = Content(_BETWEEN).join([Content.styled(part.text, part.style) for part in kept if part is not home])
        gap = max(0, width - cells(title) - cells(folder) - cells(engine) - middle.cell_length)
        after = " " * min(gap, 2)
        before = " " * (gap - len(after))
        style = _STYLES.get(self.engine.word, "$text-muted")
        return Content.assemble((title, "bold"), (folder, "$text-muted"), before, middle, after, (engine, style))


class ViewBar(Widget):
    """Numbers and names of views, the present one marked; clickable."""

    DEFAULT_CSS = """
    ViewBar { dock: top; height: 1; margin-top: 1; padding: 0 1; background: $surface; }
    """

    shown: reactive[tuple[str, int | None]] = reactive(("queue", None))

    def __init__(self, views: Sequence[Mode]) -> None:
        super().__init__()
        self._views = views

    def render(self) -> Content:
        texts, gap = self._texts()
        styles = ["bold reverse" if mode.name == self.shown[0] else "$text-muted" for mode in self._views]
        return Content(gap).join([Content.styled(text, style) for text, style in zip(texts, styles, strict=True)])

    def _texts(self) -> tuple[list[str], str]:
        """Names with the selected task; only this view's with it; only this view's name; or numbers. And their
        separator."""
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
