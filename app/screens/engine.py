"""The view of the engine: is the machine busy, who uses how much of it, what is left; and keys to start and stop it."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.events import Resize

from marlaas.engine.store import held_by

from ..context.snapshot import Snapshot
from ..questions.views import EngineAnswer, EngineQuestion
from ..widgets import engine_panes
from ..widgets.engine_panes import (
    Pane,
    UsedLately,
    cards,
    disk,
    flow,
    head,
    nodes,
    processes,
    shares,
    starts,
    stop_question,
)
from ..words.format import short_duration
from ..words.tasks import Liveness, liveness
from .view import View
from .yielding import ask_yield, take_back, why_no_end

_BESIDE = engine_panes.LABEL + engine_panes.SHARE + 6
"""Cells of a line besides the timeline: labels, padding, the scroll bar."""


class EngineScreen(View):
    """Panes one below the other; on wide terminals two beside each other."""

    HELP = """What the machine does, second by second: each cell of the timeline is darker the busier a stage was.

+ and - zoom the timeline in and out.
“behind”: how much less than the best served tenant this one got, by weight; who is furthest behind is served next.
Draining finishes the steps under way; stopping loses the episodes under way.
Yielding frees cards and memory for others within seconds, for a time that you choose; tasks wait at their last commit.
Tab goes through the panes, z shows one alone."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("S", "start", "start", id="engine.start"),
        Binding("D", "drain", "drain", id="engine.drain"),
        Binding("X", "stop", "stop", id="engine.stop"),
        Binding("F", "yield_machine", "yield", id="engine.yield"),
        Binding("plus,equals_sign", "zoom_time(-1)", "zoom in", key_display="+", id="engine.closer"),
        Binding("minus", "zoom_time(1)", "zoom out", show=False, key_display="-", id="engine.further"),
        Binding("B", "take_back", "take back", show=False, id="engine.take_back"),
        Binding("j", "scroll(1)", "down", show=False, id="engine.down"),
        Binding("k", "scroll(-1)", "up", show=False, id="engine.up"),
        Binding("g", "scroll(-1000)", "top", show=False, id="engine.top"),
        Binding("G", "scroll(1000)", "bottom", show=False, id="engine.bottom"),
    ]
    DEFAULT_CSS = """
    EngineScreen {
        #machine { height: 1fr; }
        #head { border-top: none; }
        #tables { height: auto; layout: grid; grid-size: 1; grid-rows: auto; }
        &.-wide #tables { grid-size: 2; grid-gutter: 0 1; }
        &.-wide #processes { row-span: 2; }
    }
    """
    AUTO_FOCUS = "#timeline"

    def __init__(self) -> None:
        super().__init__()
        self._grain = 0
        """Index of the cells' duration in ``GRAINS``."""
        self._lately = UsedLately()

    def content(self) -> ComposeResult:
        """Head, timeline, tables."""
        with VerticalScroll(id="machine", can_focus=False):
            yield Pane("", id="head", can_focus=False)
            yield Pane("", id="timeline")
            with Container(id="tables"):
                yield Pane("throughput", id="flow")
                yield Pane("fair shares", id="shares")
                yield Pane("processes", id="processes")
                yield Pane("cards", id="cards")
                yield Pane("nodes", id="nodes")
                yield Pane("disk", id="disk")
                yield Pane("engines of this home", id="starts")

    def question(self) -> EngineQuestion:
        """A question for a timeline as wide as the terminal."""
        return EngineQuestion(
            self.marlaas.home, engine_panes.GRAINS[self._grain], max(10, self.app.size.width - _BESIDE)
        )

    def on_resize(self, event: Resize) -> None:
        """Ask for a timeline of the new width."""
        self.call_after_refresh(self._again)

    def _again(self) -> None:
        self.ask_again()
        self.show_again()

    @property
    def alive(self) -> Liveness:
        """Whether an engine serves."""
        return liveness(self.marlaas.snapshot.engine, self.marlaas.snapshot.now)

    def show_content(self, snapshot: Snapshot, answer: object) -> None:
        """Show all panes; each table is as wide as its pane."""
        alive, width = self.alive, self.app.size.width - 4
        serves = self.alive.serves
        self._pane("head").show(head(snapshot.engine, alive, snapshot.unfinished, snapshot.now, width))
        if not isinstance(answer, EngineAnswer):
            return
        grain = engine_panes.GRAINS[self._grain]
        shown = engine_panes.rows(answer.spans, answer.until, grain, self.question().cells)
        title = f"busy, {short_duration(grain)} a cell"
        self._pane("timeline").show(engine_panes.lines(shown, grain, snapshot.now - answer.until), title)
        room = (width - 4) // 2 if self.has_class("-wide") else width
        back, used = self._lately.add(answer.until, answer.used)
        self._pane("flow").show(flow(answer.now if serves else {}, answer.minute, answer.steps, room))
        of = f"the last {short_duration(back)}" if back else "today"
        self._pane("shares").show(shares(used, answer.standings if serves else (), room), f"fair shares, of {of}")
        workers = snapshot.workers if serves else ()
        devices = answer.devices if serves else ()
        listed = processes(workers, answer.pinned, answer.memory, answer.cores, snapshot.now, room, held_by(devices))
        self._pane("processes").show(listed)
        self._pane("cards").show(cards(devices, answer.account, room))
        self._pane("nodes").show(nodes(answer.nodes if serves else (), room))
        self._pane("disk").show(disk(answer.disk))
        self._pane("starts").show(starts(answer.starts, snapshot.now, serves, room))

    def _pane(self, name: str) -> Pane:
        return self.query_one(f"#{name}", Pane)

    # Keys.

    @property
    def first_keys(self) -> tuple[str, ...]:
        """What one can do with an engine that runs: starting one comes behind."""
        return ("drain", "stop", "yield_machine") if self.alive.serves else ()

    def why_not(self, action: str) -> str:
        """Why an engine cannot be started or stopped."""
        name = action.partition("(")[0]
        if name not in ("start", "stop", "drain", "yield_machine", "take_back"):
            return super().why_not(action)
        if reason := self.marlaas.may_act():
            return reason
        if name == "start":
            return "An engine serves this home already." if self.alive.serves else ""
        if not self.alive.serves:
            return "No engine runs: S starts one."
        if name == "take_back":
            return why_no_end(self.marlaas)
        engine = self.marlaas.snapshot.engine
        draining = name == "drain" and engine is not None and engine.state == "draining"
        return "The engine drains already; X stops it at once." if draining else ""

    def action_zoom_time(self, by: int) -> None:
        """Make the cells of the timeline longer or shorter."""
        place = min(len(engine_panes.GRAINS) - 1, max(0, self._grain + by))
        if place != self._grain:
            self._grain = place
            self._again()

    def action_scroll(self, by: int) -> None:
        """Scroll by some lines."""
        self.query_one("#machine").scroll_relative(y=by, animate=False)

    def action_start(self) -> None:
        """Start an engine in the background."""
        self.marlaas.action_start_engine()

    def action_drain(self) -> None:
        """Finish the steps under way, then stop. Nothing is lost, so no confirmation is asked for."""
        self.marlaas.command("drain", done="The engine drains: it stops once the steps under way are committed.")

    def action_yield_machine(self) -> None:
        """Ask for how long, then yield the machine."""
        ask_yield(self.marlaas)

    def action_take_back(self) -> None:
        """End a yield."""
        take_back(self.marlaas)

    def action_stop(self) -> None:
        """Ask, then stop."""

        from .dialogs.questions import Confirm

        def act(yes: bool | None) -> None:
            if yes:
                self.marlaas.command("stop", done="The engine stops.")

        snapshot = self.marlaas.snapshot
        running = sum(task.state == "running" for task in snapshot.tasks)
        now = snapshot.answer.now if isinstance(snapshot.answer, EngineAnswer) else {}
        self.app.push_screen(Confirm(stop_question(running, now)), act)
