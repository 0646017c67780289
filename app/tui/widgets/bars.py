"""Lines around views: title, views, keys, status, notices, filters, and texts in place of an empty list."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import ActiveBinding, Binding, BindingType
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

from marlaas.engine.errors import MarlaasError
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
from ..context.snapshot import Notice, counting

if TYPE_CHECKING:
    from ...app import MarlaasApp
    from ..frame.modes import Mode


# A line that explains what is in progress, and for how many seconds by now.


class Elapsed(Static):
    """Shows a text; while what it tells of is in progress, the seconds since then stand behind it."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__("", markup=False, id=id)
        self._text = Content("")
        self._since: float | None = None
        self._counting: Timer | None = None

    def on_mount(self) -> None:
        """Be ready to count."""
        self._counting = self.set_interval(1.0, self._count, pause=self._since is None)

    def show(self, text: Content | str, under_way: bool = False) -> None:
        """Show a text at once."""
        self._text = text if isinstance(text, Content) else Content(text)
        self._since = time.monotonic() if under_way else None
        if self._counting is not None:
            self._counting.resume() if under_way else self._counting.pause()
        self.update(self._text)

    def _count(self) -> None:
        if self._since is not None:
            self.update(self._text + counting("", time.monotonic() - self._since))


# What an empty view shows: the next step.


class Nothing(Static):
    """Shown in place of what is not there yet. ``text`` is our own, and names a key or a command."""

    DEFAULT_CSS = """
    Nothing { width: 100%; height: 1fr; padding: 2 4; color: $text-muted; }
    """

    def __init__(self, text: str, id: str | None = None) -> None:
        super().__init__(text, markup=False, id=id)


# The guide that an empty home shows: three ways to begin, with a key for each. It disappears with the first task.

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
        """When the demo's start began, while that is in progress."""

    def on_mount(self) -> None:
        """Count the seconds of a start."""
        self.set_interval(1.0, self._count)
        self.renew()

    def renew(self) -> None:
        """Show how to begin; if somebody wrote an environment, what comes next."""
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
    def _marlaas(self) -> MarlaasApp:
        return cast("MarlaasApp", self.app)

    def action_demo(self) -> None:
        """Submit the demo's tasks to this home and start the engine."""
        if reason := self._marlaas.may_act():
            self._marlaas.say(reason, bad=True)
        elif self._begun is None:
            self._begun = time.monotonic()
            self.update(f"Starting the engine …{_TEXT}")
            self.run_worker(self._demo, thread=True, exit_on_error=False)

    def _demo(self) -> None:
        from ...operations.submitting import begin

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
        """Ask for a new environment, if one can be written."""
        if reason := self._marlaas.may_act():
            self._marlaas.say(reason, bad=True)
        elif self._marlaas.web:
            self._marlaas.say("An environment is a file: write it on the machine itself, `marlaas env new NAME`.", True)
        else:
            self.post_message(self.EnvironmentWanted())


# A line to type a filter into, above a list. It opens with /, filters while one types, and goes with esc.

LONGEST = 300
"""Most characters: nobody types more, and somebody may paste a megabyte."""


class FilterLine(Input):
    """What is typed; it names enter itself, because a text's own key for it would hide the one of the bar."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "to the list", id="filter.leave"),
        Binding("down", "submit", "to the list", show=False, id="filter.down"),
    ]


class FilterBar(Horizontal):
    """Hidden while it is empty and nobody types."""

    @dataclass
    class Changed(Message):
        """The filter has changed."""

        text: str

    @dataclass
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
        """Lay out a prompt, the text, and a place for the result."""
        yield Static("/", classes="prompt", markup=False)
        yield FilterLine(placeholder=self._hint, max_length=LONGEST, select_on_focus=False, compact=True)
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

    def clear(self) -> None:
        """Remove the filter."""
        self.query_one(Input).value = ""
        self.remove_class("-open")

    def action_clear(self) -> None:
        """Remove the filter, and go back to the list."""
        self.clear()
        self.post_message(self.Left())

    def on_input_changed(self, event: Input.Changed) -> None:
        """Report every letter."""
        event.stop()
        self.post_message(self.Changed(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Go back to the list, which stays filtered."""
        event.stop()
        if not self.text:
            self.remove_class("-open")
        self.post_message(self.Left())


# The last line of every view and dialog: the keys that act here, dim if they cannot, and the palette at the right.
#
# A view may name keys that come first, because of what it shows at the moment (``first_keys``), and other words for
# keys (``key_words``).
#
# Where there is no room for all, whole keys are left out, the last first. How to get help and how to leave stays.
#
# Textual's own footer makes a widget for each key, and makes all of them again whenever one changes. With a cursor
# that moves over tasks in different states, that would be the most expensive part of a key press. This one is a
# single line.

_EDGE = "▏"
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
        """What the key shows in the line."""
        return f" {self.display} {self.description} "


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
    """Shows the bindings of its screen; a click on a key presses it."""

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
        """Listen to changes of the bindings."""
        self.screen.bindings_updated_signal.subscribe(self, self._changed)

    def _changed(self, screen: Screen[object]) -> None:
        if screen is self.screen and screen.app.app_focus and not self._will_look:
            self._will_look = True  # a change of the focus reports it several times
            self.call_after_refresh(self.look)

    def look(self) -> None:
        """Read which keys there are, and which of them can act."""
        self._will_look = False
        if not self.is_attached:  # its screen may have been left meanwhile
            return
        active = self.screen.active_bindings
        first: Sequence[str] = getattr(self.screen, "first_keys", ())
        words: Mapping[str, str] = getattr(self.screen, "key_words", {})
        shown: dict[str, ShownKey] = {}
        if self._enter:
            display = self.app.get_key_display(Binding("enter", ""))
            shown["enter"] = ShownKey("enter", display, self._enter, True)
        zoom = next((each.binding for each in active.values() if each.binding.action == "zoom"), None)
        if zoom is not None and self.screen.maximized is not None:
            shown["zoom"] = ShownKey(zoom.key, f"esc {self.app.get_key_display(zoom)}", "all panes", True)
        for binding, enabled in self._in_order(active):
            if (binding.show or binding.action in first) and binding.action not in shown:
                display = self.app.get_key_display(binding)
                description = words.get(binding.action, binding.description)
                shown[binding.action] = ShownKey(binding.key, display, description, enabled)
        ordered = sorted(shown, key=lambda action: (shown[action].description == "close", action not in first))
        self.keys = tuple(shown[action] for action in ordered)  # how to close comes last
        palette = active.get(self.app.COMMAND_PALETTE_BINDING)
        if palette is not None:
            display = self.app.get_key_display(palette.binding)
            self.palette = ShownKey(palette.binding.key, display, palette.binding.description, palette.enabled)

    def _in_order(self, active: Mapping[str, ActiveBinding]) -> list[tuple[Binding, bool]]:
        """The bindings from the focus outwards, those of a widget as it declares them.

        Textual has one that takes a key from a widget below it at the place of what it takes.
        """
        chain = list((self.screen.focused or self.screen).ancestors_with_self)
        depths = {key: chain.index(one.node) if one.node in chain else len(chain) for key, one in active.items()}
        nearest, early = len(chain), set()
        for key in reversed(depths):
            nearest = min(nearest, depths[key])
            if depths[key] > nearest:  # before one of a nearer widget
                early.add(depths[key])

        def place(key: str) -> tuple[int, int]:
            one = active[key]
            declared = [each.id for each in type(one.node).BINDINGS if isinstance(each, Binding)]
            known = depths[key] in early and one.binding.id in declared
            return depths[key], declared.index(one.binding.id) if known else len(declared)

        return [(active[key].binding, active[key].enabled) for key in sorted(active, key=place)]

    @property
    def _room(self) -> int:
        """Cells next to the palette's key, which is there where the keys that are kept leave room for it."""
        kept = sum(cells(key.text) for key in self.keys if key.description in _KEPT)
        beside = self.size.width - (cells(self.palette.text) if self.palette else 0)
        return beside if beside + 1 >= kept else self.size.width

    def render(self) -> Content:
        """As many keys as fit next to the palette's key."""
        room = self._room
        left = Content("").join([_drawn(key) for key in fitting(self.keys, room)]).truncate(max(0, room), pad=True)
        if not self.palette or room == self.size.width:
            return left
        return Content("").join([left, Content.styled(_EDGE, "$foreground 20%"), _drawn(self.palette)[1:]])

    def on_click(self, event: Click) -> None:
        """Press the key under the mouse."""
        place, room = 0, self._room
        if self.palette and event.x >= room:
            self._press(self.palette)
            return
        for key in fitting(self.keys, room):
            place += cells(key.text)
            if event.x < place:
                self._press(key)
                return

    def _press(self, key: ShownKey) -> None:
        self.app.simulate_key(key.key)


def _drawn(key: ShownKey) -> Content:
    dim = "" if key.enabled else " dim"
    return Content.assemble(
        (f" {key.display} ", f"bold $footer-key-foreground{dim}"),
        (f"{key.description} ", dim.strip()),
    )


# Where notices are shown: in the place of the status line, so that they cover nothing of what one reads.


class NoticeLine(Static):
    """Above the line of keys; takes no room while there is nothing to tell. It grows with a long sentence, and what is
    above it makes room."""

    DEFAULT_CSS = """
    NoticeLine { display: none; dock: bottom; height: auto; max-height: 6; margin-bottom: 1; padding: 0 1;
                 background: $panel; }
    NoticeLine.-told { display: block; }
    """

    def __init__(self) -> None:
        super().__init__("", markup=False)

    def show(self, notices: Sequence[Notice]) -> None:
        """Show these, or nothing."""
        parts = [
            part
            for notice in notices
            for part in (("! " if notice.bad else "· ", _style(notice)), (notice.text, _style(notice)), "\n")
        ]
        self.update(Content.assemble(*parts[:-1]))
        self.set_class(bool(notices), "-told")
        for status in self.screen.query(StatusLine):
            status.display = not notices


def _style(notice: Notice) -> str:
    return "bold $text-warning" if notice.bad else ""


# The line above the footer: what the workers do, or why nothing can be read.

_FIRST_STATUS_LINE = ("rollout", "training", "engine")


class StatusLine(Widget):
    """A problem if there is one, else a note and one part for each worker, as many as fit."""

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
        """The line."""
        width = self.content_size.width
        if self.problem:
            return Content.styled(line(f"! {self.problem}", width), "bold $text-error")
        if self.hint:
            return Content.styled(line(self.hint, width), "$text-warning")
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
    for worker in others:
        state = "" if worker.state == "running" else f" {line(worker.state, 12)}"
        load = "" if worker.pid is None else f" {_load(worker)}"
        texts.append(f"{line(worker.name, 24)}{state}{load}")
    if len(environments) == 1:
        texts.append(f"{line(environments[0].name, 24)} {_load(environments[0])}")
    elif environments:
        texts.append(f"{len(environments)} environments {size(sum(worker.rss or 0 for worker in environments))}")
    return texts


def _rank(worker: WorkerRow) -> tuple[int, str]:
    return (
        _FIRST_STATUS_LINE.index(worker.name) if worker.name in _FIRST_STATUS_LINE else len(_FIRST_STATUS_LINE),
        worker.name,
    )


def _load(worker: WorkerRow) -> str:
    return f"{size(worker.rss or 0)} {share(worker.busy or 0)}"


# A task in a few lines: its tenant and name, then its numbers, or why it waits or has ended, or what is wrong.

_REASON_LINES = 3
_RAGGED = 8
"""Cells of a line that wrapping at words may leave empty."""


class TaskLine(Widget):
    """What the table has no room for, and the head of a task's own view. Grows with a long reason."""

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

    def watch_row(self) -> None:
        """Make room for another reason or warning; other numbers need none."""
        room = max(1, self.content_size.width)
        reason, notice, _ = self._said()
        height = 1 + max(0 if self.brief else 1, _lines(reason, room)) + _lines(notice, room)
        if self.styles.height is None or self.styles.height.value != height:
            self.styles.height = height

    def watch_serving(self) -> None:
        """Make room for another reason."""
        self.watch_row()

    def watch_brief(self) -> None:
        """Give the line of numbers away, or take it back."""
        self.watch_row()

    def on_resize(self) -> None:
        """Make room for the reason at the new width."""
        self.watch_row()

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
        """The lines."""
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
        if notice:
            parts += ["\n", (line(notice, _REASON_LINES * width), "$text-warning")]
        return Content.assemble(*parts)


def _lines(sentence: str, room: int) -> int:
    """Lines that a sentence takes, at most ``_REASON_LINES``."""
    shown = line(sentence, _REASON_LINES * room)
    return min(_REASON_LINES, -(-cells(shown) // max(1, room - _RAGGED)))


# The first line of every screen: which home, what happens in it, and whether an engine serves it.

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
        """The line."""
        engine = f"engine: {_MARKS.get(self.engine.word, '')} {self.engine.text}"
        width = self.content_size.width
        title = clip(self._title, max(0, width - cells(engine) - 2))
        room = width - cells(engine) - cells(title) - 4
        home = Part(clip(line(self._home), max(_LEAST_HOME, room // 3)), _HOME)
        kept = fitting_top_bar([home, *parts(self.overview)], room, cells(_BETWEEN))
        folder = f"  {home.text}" if home in kept else ""
        middle = Content(_BETWEEN).join([Content.styled(part.text, part.style) for part in kept if part is not home])
        gap = max(0, width - cells(title) - cells(folder) - cells(engine) - middle.cell_length)
        after = min(gap, 2)
        return Content.assemble(
            (title, "bold"),
            (folder, "$text-muted"),
            " " * (gap - after),
            middle,
            " " * after,
            (engine, _STYLES.get(self.engine.word, "$text-muted")),
        )


def fitting_top_bar(found: Sequence[Part], room: int, between: int) -> list[Part]:
    """Those parts that there is room for, chosen by rank, in the order in which they were given."""
    kept: list[Part] = []
    for part in sorted(found, key=lambda part: part.rank):
        room -= cells(part.text) + between
        if room < 0:
            break
        kept.append(part)
    return [part for part in found if part in kept]


# The second line of every screen: the views, with the present one marked.


class ViewBar(Widget):
    """Numbers and names of the views; a click opens one."""

    DEFAULT_CSS = """
    ViewBar { dock: top; height: 1; margin-top: 1; padding: 0 1; background: $surface; }
    """

    shown: reactive[tuple[str, int | None]] = reactive(("queue", None))
    """The view in sight, and the selected task."""

    def __init__(self, views: Sequence[Mode]) -> None:
        super().__init__()
        self._views = views

    def render(self) -> Content:
        """The line with the present view marked."""
        parts: list[tuple[str, str] | str] = []
        texts, gap = self._texts()
        for mode, text in zip(self._views, texts, strict=True):
            parts += [(text, "bold reverse" if mode.name == self.shown[0] else "$text-muted"), gap]
        return Content.assemble(*parts[:-1])

    def _texts(self) -> tuple[list[str], str]:
        """The names with the selected task if there is room; else with it in this view only; else this view's name
        among numbers; else only numbers. And what is between them: one space where two have no room."""
        numbers = [str(place) for place in range(1, len(self._views) + 1)]
        room = self.content_size.width
        present = self._named(lambda mode: mode.name == self.shown[0])
        here = [
            name if mode.name == self.shown[0] else number
            for mode, name, number in zip(self._views, present, numbers, strict=True)
        ]
        choices = ((self._named(lambda mode: True), "  "), (present, "  "), (present, " "), (here, "  "))
        return next(((texts, gap) for texts, gap in choices if cells(gap.join(texts)) <= room), (numbers, " "))

    def _named(self, with_task: Callable[[Mode], bool]) -> list[str]:
        task = self.shown[1]
        return [
            f"{place} {mode.name}{f' {task}' if task and mode.of_task and with_task(mode) else ''}"
            for place, mode in enumerate(self._views, 1)
        ]

    def on_click(self, event: Click) -> None:
        """Open the view under the mouse."""
        place = 1
        texts, gap = self._texts()
        for mode, text in zip(self._views, texts, strict=True):
            if place <= event.x < place + cells(text):
                self.app.run_worker(self.app.run_action(f"open_view('{mode.name}')"))
            place += cells(text) + len(gap)
