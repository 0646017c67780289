"""The view of the engine: load, use by tenant, free room; start, stop, yield."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

from marlaas.engine.errors import ConfigError
from marlaas.engine.machine.yielding.decision import reason as waits_for, state
from marlaas.engine.store.queries.machine import (
    STAGES,
    WORKER,
    DeviceRow,
    NodeRow,
    StageSample,
    StandingRow,
    TenantUse,
)
from marlaas.engine.store.rows import HOURS, YIELDED, EngineRow, WorkerRow, Yielding

from ...questions import EngineAnswer, Memory, Question, engine
from ...rollouts.answers import wrapped
from ...text.format import bar, clip, count, duration, line, number, pad, seconds, share, short_duration, size
from ...text.machine import headers, held, remarks, row, yielding_effect, yielding_of
from ...text.tasks import FRESH_SECONDS, Liveness, liveness
from ..context.feed import Snapshot
from .view import View

if TYPE_CHECKING:
    from ...app import MarlaasApp

Line = tuple[tuple[str, str], ...]
"""Texts and their styles; foreign text must be cleaned."""


class Pane(Widget, can_focus=True):
    """Titled lines, as high as needed; hidden if empty. Redraws only changed lines."""

    DEFAULT_CSS = """
    Pane { height: auto; padding: 0 1; border-top: solid $panel-lighten-2; border-title-color: $text-muted; }
    Pane:focus { border-top: solid $primary; }
    """
    ALLOW_MAXIMIZE = True

    def __init__(self, title: str, *, id: str, can_focus: bool = True) -> None:
        super().__init__(id=id)
        self.can_focus = can_focus
        self.display = False
        self.border_title = title
        self._lines: Sequence[Line] = ()

    def show(self, lines: Sequence[Line], title: str | None = None) -> None:
        if title is not None:
            self.border_title = Content(title)
        self.display = bool(lines)
        if lines != self._lines:
            self._lines = lines
            self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines)

    def render(self) -> Content:
        width = self.content_size.width
        return Content("\n").join([Content.assemble(*parts).truncate(width, ellipsis=True) for parts in self._lines])


def note(text: str, style: str = "$text-muted") -> list[Line]:
    """One line of one style."""
    return [((text, style),)]


def labelled(label: str, text: str, style: str, indent: int, width: int) -> list[Line]:
    """A text in ``width`` cells, wrapped behind its label, which has ``indent`` cells."""
    pieces = [text[start:stop] for start, stop in wrapped(text, max(1, width - indent))]
    labels = (label, *[""] * len(pieces))
    return [((pad(name, indent), "$text-muted"), (piece, style)) for name, piece in zip(labels, pieces, strict=False)]


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int], room: int) -> list[Line]:
    """Aligned columns; a width below 0 aligns right, the last column takes the rest of ``room``."""
    fixed = sum(abs(width) + 2 for width in widths[:-1])
    columns = [*widths[:-1], max(4, min(abs(widths[-1]), room - fixed)) * (-1 if widths[-1] < 0 else 1)]

    def cells(row: Sequence[str]) -> str:
        fitted = zip((line(text) for text in row), columns, strict=True)
        return "  ".join(pad(clip(text, abs(width)), abs(width), width < 0) for text, width in fitted).rstrip()

    return [((cells(headers), "$text-muted"),), *(((cells(row), ""),) for row in rows)]


def cards(rows: Sequence[DeviceRow], account: str, width: int) -> list[Line]:
    """A line per card, and a second one for an unused card; empty without cards.

    ``account``: the reader's own.
    """
    if not rows:
        return []
    cells = [
        (
            card.label,
            card.name.removeprefix("NVIDIA "),
            f"{size(card.free)} of {size(card.memory)}",
            "" if card.utilisation is None else share(card.utilisation),
            held(card.holders, account),
        )
        for card in rows
    ]
    shown, *lines = table(("card", "name", "free", "busy", "held by"), cells, (8, 18, -18, -5, 60), width)
    reasons = [note("  " + line(card.reason, width - 2), "$text-warning") if card.reason else [] for card in rows]
    return [shown, *(each for text, reason in zip(lines, reasons, strict=True) for each in (text, *reason))]


_UNITS = {"rollout": "turns", "environment": "episodes", "training": "calls"}
_MADE = {"rollout": "tokens sampled", "training": "tokens trained on"}


def flow(now: Mapping[str, StageSample], minute: Mapping[str, StageSample], steps: int, width: int) -> list[Line]:
    """Waiting, running, and finished in the last minute: a line per stage, one for steps.

    Rates count only seconds with an engine.
    """
    if not now and not minute:
        return note("Nothing was measured in the last minute.")
    rows = []
    for stage, unit in _UNITS.items():
        newest, lately = now.get(stage), minute.get(stage)
        waiting = "" if newest is None or stage == "environment" else number(newest.waiting, 1)
        rates = [] if lately is None else [f"{rate(lately.ended, lately)} {unit}/s"]
        if lately is not None and stage in _MADE:
            rates.append(f"{rate(lately.tokens, lately)} {_MADE[stage]}/s")
        rows.append((stage, waiting, "" if newest is None else number(newest.active, 1), ", ".join(rates)))
    engine = minute.get("engine")
    rows.append(("steps", "", "", "" if engine is None else f"{rate(60 * steps, engine)} a minute"))
    return table(("stage", "waiting", "active", "in the last minute"), rows, (11, -7, -6, 60), width)


def rate(many: float, span: StageSample) -> str:
    """A number per second of the span, in few digits."""
    value = many / span.wall if span.wall > 0 else 0.0
    return count(round(value)) if value >= 100 else number(value, 1 if value >= 10 else 2)


GRAINS = (1, 5, 15, 60, 300, 3600)
"""Seconds per cell, ascending. Samples are kept by the minute after an hour, by the hour after a day."""
LABEL, SHARE = 18, 6
_SHADES = "░▒▓█"
_STYLES = {"rollout": "$text-primary", "environment": "$text-accent", "training": "$text-success"}


def timeline(spans: Sequence[StageSample], until: float, grain: int, count: int, since: float) -> list[Line]:
    """A line per stage and device and for the four busiest workers, darker cells if busier; then the axis. Ends at
    ``until``, ``since`` seconds ago."""
    lines: list[Line] = []
    for (stage, device), cells in busy_shares(spans, until, grain, count).items():
        worker = stage.startswith(WORKER)
        label = f"  {line(stage[len(WORKER) :])}" if worker else line(f"{stage} {device}")
        now = "" if cells[-1] is None else share(cells[-1])
        shaded = ("".join(map(shade, cells)), _STYLES.get(stage, "$text-muted"))
        lines.append(((pad(clip(label, LABEL - 1), LABEL), "$text-muted"), shaded, (pad(now, SHARE, right=True), "")))
    return [*lines, *note(axis(count, grain, since))] if lines else note("Nothing was measured here in this time.")


def busy_shares(
    spans: Sequence[StageSample], until: float, grain: int, count: int
) -> dict[tuple[str, str], list[float | None]]:
    """The busy share of each cell by stage and device, in the order of the lines; None: nothing was measured."""
    first = math.ceil(until / grain) - count
    busy: dict[tuple[str, str], list[float]] = {}
    wall: dict[tuple[str, str], list[float]] = {}
    for span in spans:
        key = (span.stage, span.device)
        shares, covers = busy.setdefault(key, [0.0] * count), wall.setdefault(key, [0.0] * count)
        begun, ended = span.begun, span.begun + span.wall
        for cell in range(max(int(begun // grain), first), min(int(ended // grain), first + count - 1) + 1):
            covered = max(0.0, min(ended, (cell + 1) * grain) - max(begun, cell * grain))
            shares[cell - first] += span.share * covered
            covers[cell - first] += covered
    workers = sorted((key for key in busy if key[0].startswith(WORKER)), key=lambda key: -sum(busy[key]))
    return {
        key: _settled(key[0], [b / w if w > 0 else None for b, w in zip(busy[key], wall[key], strict=True)])
        for key in sorted((key for key in busy if key not in workers[4:] and any(wall[key])), key=_rank)
    }


def _settled(stage: str, cells: list[float | None]) -> list[float | None]:
    """The cells with no value above 1: a worker that reports more than all of its time was busy in the cells before."""
    if stage not in ("rollout", "training"):
        return cells
    settled: list[float | None] = []
    late = 0.0
    for cell in reversed(cells):
        total = None if cell is None else cell + late
        late = 0.0 if total is None else max(0.0, total - 1.0)
        settled.append(None if total is None else min(1.0, total))
    return settled[::-1]


def _rank(key: tuple[str, str]) -> tuple[int, str, str]:
    stage = "environment" if key[0].startswith(WORKER) else key[0]
    return (STAGES.index(stage) if stage in STAGES else len(STAGES), "" if stage == key[0] else key[0], key[1])


def shade(value: float | None) -> str:
    """The character of a cell: space: no engine ran; dot: idle."""
    if value is None or value < 0.005:
        return " " if value is None else "·"
    return _SHADES[min(len(_SHADES) - 1, int(value * len(_SHADES)))]


def axis(count: int, grain: int, since: float) -> str:
    """The axis: ages of its left end, middle and right end."""
    right = "now" if since < FRESH_SECONDS else f"{short_duration(since)} ago"
    left, middle = (f"-{short_duration(since + grain * cells)}" for cells in (count, count // 2))
    text = pad(left, count // 2) + middle
    return " " * LABEL + (pad(text, count - len(right)) + right if len(text) + len(right) < count else right)


_MARKS = {"alive": ("●", "$text-success"), "silent": ("!", "$text-warning"), "down": ("✗", "$text-error")}
_HINTS = {
    "never": "S starts an engine in the background, and so does `marlaas engine start`.",
    "down": "S starts an engine.",
    "stopped": "S starts an engine.",
    "silent": "Its process runs but does not answer: logs/engine.log (7, then ]) may tell why.",
}


def head(engine: EngineRow | None, alive: Liveness, unfinished: int, now: float, width: int) -> list[Line]:
    """The engine in up to three lines: state, base, precision, anything unusual.

    ``unfinished``: tasks for an engine.
    """
    mark, style = _MARKS.get(alive.word, ("○", "$text-muted"))
    yielding = yielding_of(engine) if alive.alive else None
    yields, serves = yielding is not None and yielding.holds, alive.serves
    facts, second, precision, text = "", _HINTS.get(alive.word, ""), "", alive.text
    if yielding is not None:
        second = yielding_effect(yielding)
    if engine is not None:
        known = [
            f"{'· running for' if yields else 'for'} {duration(float(int(now - engine.started)))}" if serves else "",
            f"base {line(engine.shown_base, 40)}",
            f"sampler {line(engine.sampler, 20)}" if engine.sampler and not engine.precision else "",
            f"process {engine.pid}" if serves else "",
        ]
        facts = (" " if serves else " · ") + " · ".join(filter(None, known))
        precision = line(engine.precision, width) if serves else ""
        if alive.alive:
            second = line(engine.note, width) or second
            text = text if yields else line(engine.state, 12)
    if alive.word in ("down", "stopped") and unfinished:
        second += " Tasks wait for one; they go on from their last step."
    first: Line = ((f"{mark} {text}", f"bold {style}"), (facts or " ", "$text-muted"))
    return [first, *(note(precision) if precision else []), *(note(second, "$text-warning") if second else [])]


def stop_question(running: int, now: Mapping[str, StageSample]) -> str:
    """The cost of an immediate stop with ``running`` tasks; ``now``: newest sample per stage."""
    if not running:
        return "Stop the engine? No task runs; those that wait go on waiting until another one starts."
    go = f"{_tasks(running)} on from the last step when another one starts"
    return f"Stop the engine? {go}. {_lost(now)}; D would finish them first."


def yield_question(running: int, now: Mapping[str, StageSample]) -> str:
    """The cost of yielding, and the question for how long."""
    stand = f" {_tasks(running)} on from the last step afterwards. {_lost(now)}." if running else ""
    span = "For how long: 30m, 2h, 1d? “open” is until B takes it back."
    return f"Yield the machine? Its cards and memory are free within seconds.{stand} {span}"


def _tasks(running: int) -> str:
    return "1 task goes" if running == 1 else f"{running} tasks go"


def _lost(now: Mapping[str, StageSample]) -> str:
    stages = [sample for name, sample in now.items() if name in ("rollout", "environment")]
    episodes = round(sum(each.waiting + each.active for each in stages))  # each waits, is sampled, or runs
    return f"About {episodes} episodes under way are lost" if episodes else "What is under way is lost"


def processes(
    workers: Sequence[WorkerRow],
    memory: Memory | None,
    cores: int,
    now: float,
    width: int,
) -> list[Line]:
    """A line per process, and one for the machine."""
    rows = []
    for worker in sorted(workers, key=lambda worker: (worker.name.startswith("env"), worker.name)):
        state, pid = "" if worker.state == "running" else worker.state, worker.pid
        if pid is None:
            rows.append((worker.name, "", "", "", "", state))
            continue
        up = duration(float(int(now - (worker.started or now))))
        rows.append((worker.name, str(pid), size(worker.rss or 0), share(worker.busy or 0), up, state))
    headers, widths = ("process", "id", "memory", "busy", "up", ""), (22, -7, -7, -5, 12, 10)
    lines = table(headers, rows, widths, width) if rows else note("No engine runs, so none of its processes does.")
    if memory is not None and memory.total:
        taken = f"{size(memory.free)} of {size(memory.total)} free"
        together = f", {size(sum(worker.rss or 0 for worker in workers))} ours" if workers else ""
        used = bar(memory.total - memory.free, memory.total, 20)
        lines += note(f"memory {used} {taken}{together} · {cores} {'core' if cores == 1 else 'cores'}", "")
    return lines


_NODE_STYLES = {"ready": "", "draining": "$text-muted", "refused": "$text-warning", "gone": "$text-error"}


def nodes(rows: Sequence[NodeRow], width: int) -> list[Line]:
    """A line per node of the cluster, and its remarks; empty without a cluster."""
    if not rows:
        return []
    names = [name.lower() for name in headers(True)]
    shown, *lines = table(names, [row(node, True) for node in rows], (24, 16, 9, -5, -9, 8, 40), width)
    found = [shown]
    for node, text in zip(rows, lines, strict=True):
        found.append(tuple((part, style or _NODE_STYLES[node.state]) for part, style in text))
        found += [((f"  {line(remark, width - 2)}", "$text-warning"),) for remark in remarks(node)]
    return found


def shares(used: Sequence[TenantUse], standings: Sequence[StandingRow], width: int) -> list[Line]:
    """Each tenant's use of both stages today, and its lag; largest share first."""
    if not used:
        return note("No tenant has used anything today.")
    stand = {(each.tenant, each.stage): each for each in standings}
    sampled, trained = sum(each.rollout for each in used), sum(each.training for each in used)
    rows = []
    for each in sorted(used, key=lambda each: (-each.rollout - each.training, each.tenant)):
        lines = [stand.get((each.tenant, stage)) for stage in ("rollout", "training")]
        rows.append(
            (
                each.tenant,
                number(each.weight, 2),
                share(each.rollout / sampled) if sampled > 0 else "-",
                share(each.training / trained) if trained > 0 else "-",
                str(sum(standing.waiting for standing in lines if standing)) if any(lines) else "",
                behind(*lines),
            )
        )
    headers = ("tenant", "weight", "rollout", "training", "waiting", "behind")
    return table(headers, rows, (18, -6, -7, -8, -7, 22), width)


def behind(rollout: StandingRow | None, training: StandingRow | None) -> str:
    """How much less than the tenant with most."""
    if rollout is None and training is None:
        return "idle"
    tokens = f"{count(round(rollout.behind))} tokens" if rollout is not None and rollout.behind >= 1 else ""
    time = duration(round(training.behind / 1e6, 2)) if training is not None and training.behind >= 1e4 else ""
    return ", ".join(filter(None, (tokens, time))) or "nothing"


def ask_yield(app: MarlaasApp) -> None:
    """Ask for how long, and yield; leaving the dialog changes nothing."""
    from .dialogs import ask

    def until(values: Sequence[str], choice: str) -> tuple[float | None]:
        if values[0] == "open":
            return (None,)
        try:
            return (app.snapshot.now + seconds(values[0]),)
        except ConfigError as error:
            raise ConfigError(f"{error} “open” is until it is taken back.") from error

    def act(answer: tuple[float | None] | None) -> None:
        if answer is not None:
            words = state(Yielding(YIELDED, *answer), app.snapshot.now).replace("yielded", "yielded the machine")
            app.command("yield", done=f"The engine has {words}.", until=answer[0])

    if not app.refuses(app.why_no_engine):
        app.push_screen(ask(yield_question(*_running(app)), "2h", "yield", until), act)


def take_back(app: MarlaasApp) -> None:
    """End the yield."""
    if not app.refuses(app.why_no_engine or _why_no_end(app)):
        app.command("resume_engine", done="The engine has the machine again.")


def _running(app: MarlaasApp) -> tuple[int, Mapping[str, StageSample]]:
    answer = app.snapshot.answer
    running = sum(task.state == "running" for task in app.snapshot.tasks)
    return running, answer.now if isinstance(answer, EngineAnswer) else {}


def _why_no_end(app: MarlaasApp) -> str:
    yielding = yielding_of(app.snapshot.engine)
    if yielding is not None and yielding.kind == HOURS:
        return f"Nothing was yielded: {waits_for(yielding, app.snapshot.now)}."
    return "" if yielding is not None and yielding.kind == YIELDED else "The engine has not yielded the machine."


class EngineScreen(View):
    """Panes in one column; two on wide terminals."""

    HELP = """What the machine does, second by second: each cell of the timeline is darker the busier a stage was.

+ and - zoom the timeline in and out.
“behind”: how much less than the best served tenant this one got, by weight; who is furthest behind is served next.
Draining finishes the steps under way; stopping loses the episodes under way.
Yielding frees cards and memory for others within seconds, for a time that you choose; tasks wait at their last commit.
Tab goes through the panes, z shows one alone."""
    BINDINGS: ClassVar[list[BindingType]] = [
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

    def content(self) -> ComposeResult:
        with VerticalScroll(id="machine", can_focus=False):
            yield Pane("", id="head", can_focus=False)
            yield Pane("", id="timeline")
            with Container(id="tables"):
                yield Pane("throughput", id="flow")
                yield Pane("fair shares, of today", id="shares")
                yield Pane("processes", id="processes")
                yield Pane("cards", id="cards")
                yield Pane("nodes", id="nodes")

    @property
    def _cells(self) -> int:
        return max(10, self.app.size.width - LABEL - SHARE - 6)

    def question(self) -> Question:
        return Question(engine, (GRAINS[self._grain], self._cells))

    def show_content(self, snapshot: Snapshot, answer: Any) -> None:
        alive, now, width = liveness(snapshot.engine, snapshot.now), snapshot.now, self.app.size.width - 4
        self._pane("head", head(snapshot.engine, alive, snapshot.unfinished, now, width))
        if not isinstance(answer, EngineAnswer):
            return
        grain, serves = GRAINS[self._grain], alive.serves
        title = f"busy, {short_duration(grain)} a cell"
        self._pane("timeline", timeline(answer.spans, answer.until, grain, self._cells, now - answer.until), title)
        room = (width - 4) // 2 if self.has_class("-wide") else width
        workers, devices = (snapshot.workers, answer.devices) if serves else ((), ())
        self._pane("flow", flow(answer.now if serves else {}, answer.minute, answer.steps, room))
        self._pane("shares", shares(answer.used, answer.standings if serves else (), room))
        self._pane("processes", processes(workers, answer.memory, answer.cores, now, room))
        self._pane("cards", cards(devices, answer.account, room))
        self._pane("nodes", nodes(answer.nodes if serves else (), room))

    def _pane(self, name: str, lines: Sequence[Line], title: str | None = None) -> None:
        self.query_one(f"#{name}", Pane).show(lines, title)

    @property
    def first_keys(self) -> tuple[str, ...]:
        return ("drain", "stop", "yield_machine") if self.serves else ()

    def why_not(self, action: str) -> str:
        if action not in ("stop", "drain", "yield_machine", "take_back"):
            return super().why_not(action)
        engine = self.marlaas.snapshot.engine
        match action:
            case _ if reason := self.marlaas.may_act():
                return reason
            case _ if not self.serves:
                return self.marlaas.why_no_engine
            case "take_back":
                return _why_no_end(self.marlaas)
            case "drain" if engine is not None and engine.state == "draining":
                return "The engine drains already; X stops it at once."
        return ""

    def action_zoom_time(self, by: int) -> None:
        self._grain = min(len(GRAINS) - 1, max(0, self._grain + by))
        self.renew()

    def action_scroll(self, by: int) -> None:
        self.query_one("#machine").scroll_relative(y=by, animate=False)

    def action_drain(self) -> None:
        """Finish the steps in progress, then stop. Loses nothing, so asks nothing."""
        self.marlaas.command("drain", done="The engine drains: it stops once the steps under way are committed.")

    def action_yield_machine(self) -> None:
        ask_yield(self.marlaas)

    def action_take_back(self) -> None:
        take_back(self.marlaas)

    def action_stop(self) -> None:
        question = stop_question(*_running(self.marlaas))
        self.marlaas.confirm(question, lambda: self.marlaas.command("stop", done="The engine stops."))
