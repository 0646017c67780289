"""The view of the engine: how busy the machine is, who uses it, and yielding it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.events import Resize
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
    held_by,
)
from marlaas.engine.store.rows import HOURS, YIELDED, EngineRow, WorkerRow, Yielding

from ...operations.this_machine import Disk, Memory
from ...questions import EngineAnswer, EngineQuestion
from ...text.format import ago, bar, clip, count, duration, line, number, pad, share, short_duration, size
from ...text.machine import headers, held, remarks, row, yielding_effect, yielding_of
from ...text.tasks import FRESH_SECONDS, Liveness, liveness
from ..context.snapshot import Snapshot
from .view import View

if TYPE_CHECKING:
    from ...app import MarlaasApp


# The panes of the engine's view: state, timeline, flow, shares, processes, cards, nodes.

# A pane of lines under a title, in styled parts of text; unchanged lines are not drawn again.

Part = tuple[str, str]
"""Text and its style; foreign text must have been cleaned."""
Line = tuple[Part, ...]


class Pane(Widget, can_focus=True):
    """As high as its lines; hidden without any."""

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
        """Show these lines, perhaps under another title."""
        if title is not None and title != self.border_title:
            self.border_title = Content(title)
        self.display = bool(lines)
        if lines != self._lines:
            higher = len(lines) != len(self._lines)
            self._lines = lines
            self.refresh(layout=higher)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """A row for each line."""
        return len(self._lines)

    def render(self) -> Content:
        """The lines, cut at the edge."""
        width = self.content_size.width
        return Content("\n").join([Content.assemble(*parts).truncate(width, ellipsis=True) for parts in self._lines])


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int], room: int) -> list[Line]:
    """Aligned columns; a width below 0 aligns to the right, and the last column takes what is left of ``room``."""
    fixed = sum(abs(width) + 2 for width in widths[:-1])
    columns = [*widths[:-1], max(4, min(abs(widths[-1]), room - fixed)) * (-1 if widths[-1] < 0 else 1)]

    def cells(row: Sequence[str]) -> str:
        fitted = zip((line(text) for text in row), columns, strict=True)
        return "  ".join(pad(clip(text, abs(width)), abs(width), width < 0) for text, width in fitted).rstrip()

    return [((cells(headers), "$text-muted"),), *(((cells(row), ""),) for row in rows)]


# The cards of the machine: free memory, how busy they are, who holds them, and why one is not used.


def cards(rows: Sequence[DeviceRow], account: str, width: int) -> list[Line]:
    """A line for each card, and a second one for a card that is not used; empty without cards.

    ``account`` is the reader's own.
    """
    if not rows:
        return []
    cells = [
        (
            shown_row.label,
            shown_row.name.removeprefix("NVIDIA "),
            f"{size(shown_row.free)} of {size(shown_row.memory)}",
            "" if shown_row.utilisation is None else share(shown_row.utilisation),
            held(shown_row.holders, account),
        )
        for shown_row in rows
    ]
    headers, *lines = table(("card", "name", "free", "busy", "held by"), cells, (8, 18, -18, -5, 60), width)
    shown = [headers]
    for shown_row, text in zip(rows, lines, strict=True):
        shown.append(text)
        if shown_row.reason:
            shown.append((("  " + line(shown_row.reason, width - 2), "$text-warning"),))
    return shown


# What goes through the stages: what waits, what is in progress, and how much each has finished in the last minute.

_UNITS = {"rollout": "turns", "environment": "episodes", "training": "calls"}
_MADE = {"rollout": "tokens sampled", "training": "tokens trained on"}


def flow(now: Mapping[str, StageSample], minute: Mapping[str, StageSample], steps: int, width: int) -> list[Line]:
    """A line for each stage and one for steps; rates count only the seconds in which an engine ran."""
    if not now and not minute:
        return [(("Nothing was measured in the last minute.", "$text-muted"),)]
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


# The timeline: a row for each stage on its device and each worker, a cell for each stretch of time, darker if busier.
#
# Pure; knows neither the store nor widgets.

GRAINS = (1, 5, 15, 60, 300, 3600)
"""Seconds of a cell, from short to long. After an hour samples are kept by the minute, after a day by the hour."""
LABEL, SHARE = 18, 6
"""Cells of a row left and right of its timeline."""
MOST_WORKERS = 4
"""Environment workers that have a row: the busiest ones."""
IDLE = 0.005
_SHADES = "░▒▓█"
_STYLES = {"rollout": "$text-primary", "environment": "$text-accent", "training": "$text-success"}
_WORKER_STYLE = "$text-muted"


@dataclass(frozen=True)
class Row:
    """One stage on one device."""

    stage: str
    device: str
    cells: tuple[float | None, ...]
    """Share of the time in which it was busy, oldest first; None if no engine ran."""

    @property
    def label(self) -> str:
        """Stage and device, or the name of a worker."""
        worker = self.stage.startswith(WORKER)
        return f"  {line(self.stage[len(WORKER) :])}" if worker else line(f"{self.stage} {self.device}")

    @property
    def newest(self) -> float | None:
        """How busy the stage was in the newest cell."""
        return self.cells[-1] if self.cells else None


def rows(spans: Sequence[StageSample], until: float, grain: int, count: int) -> list[Row]:
    """The rows: the spans, spread over the ``count`` cells that end with the cell of ``until``."""
    first = math.ceil(until / grain) - count
    busy: dict[tuple[str, str], list[float]] = {}
    wall: dict[tuple[str, str], list[float]] = {}
    for span in spans:
        key = (span.stage, span.device)
        sums = busy.setdefault(key, [0.0] * count), wall.setdefault(key, [0.0] * count)
        begun, ended = span.begun, span.begun + span.wall
        for cell in range(max(int(begun // grain), first), min(int(ended // grain), first + count - 1) + 1):
            covered = min(ended, (cell + 1) * grain) - max(begun, cell * grain)
            if covered > 0:
                sums[0][cell - first] += span.share * covered
                sums[1][cell - first] += covered
    busiest = sorted((key for key in busy if key[0].startswith(WORKER)), key=lambda key: -sum(busy[key]))
    shown = [key for key in busy if key not in busiest[MOST_WORKERS:] and any(wall[key])]
    return [
        Row(*key, _settled(key[0], [b / w if w > 0 else None for b, w in zip(busy[key], wall[key], strict=True)]))
        for key in sorted(shown, key=_rank)
    ]


def _settled(stage: str, cells: list[float | None]) -> tuple[float | None, ...]:
    """The cells with no value above 1: a worker that reports more than all of its time was busy in the cells before."""
    if stage not in ("rollout", "training"):
        return tuple(cells)
    settled: list[float | None] = []
    late = 0.0
    for cell in reversed(cells):
        told = None if cell is None else cell + late
        late = 0.0 if told is None else max(0.0, told - 1.0)
        settled.append(None if told is None else min(1.0, told))
    return tuple(reversed(settled))


def _rank(key: tuple[str, str]) -> tuple[int, str, str]:
    """A sort key: workers come below their stage."""
    stage = "environment" if key[0].startswith(WORKER) else key[0]
    return (STAGES.index(stage) if stage in STAGES else len(STAGES), "" if stage == key[0] else key[0], key[1])


def lines(shown: Sequence[Row], grain: int, since: float) -> list[Line]:
    """A line for each row, and the axis, whose right end was ``since`` seconds ago."""
    if not shown:
        return [(("Nothing was measured here in this time.", "$text-muted"),)]
    texts: list[Line] = []
    for shown_row in shown:
        label = pad(clip(shown_row.label, LABEL - 1), LABEL)
        now = "" if shown_row.newest is None else share(shown_row.newest)
        texts.append(
            (
                (label, "$text-muted"),
                ("".join(map(shade, shown_row.cells)), _STYLES.get(shown_row.stage, _WORKER_STYLE)),
                (pad(now, SHARE, right=True), ""),
            )
        )
    return [*texts, ((axis(len(shown[0].cells), grain, since), "$text-muted"),)]


def shade(value: float | None) -> str:
    """The character of a cell: a space where no engine ran, a dot where it had nothing to do."""
    if value is None:
        return " "
    if value < IDLE:
        return "·"
    return _SHADES[min(len(_SHADES) - 1, int(value * len(_SHADES)))]


def axis(count: int, grain: int, since: float) -> str:
    """The axis: how long ago its left end, middle and right end were."""
    right = "now" if since < FRESH_SECONDS else f"{short_duration(since)} ago"
    left, middle = (f"-{short_duration(since + grain * cells)}" for cells in (count, count // 2))
    text = pad(left, count // 2) + middle
    return " " * LABEL + (pad(text, count - len(right)) + right if len(text) + len(right) < count else right)


# The engine in three lines: state, base, precision, what is unusual; and what a stop costs.

_MARKS = {"alive": ("●", "$text-success"), "silent": ("!", "$text-warning"), "down": ("✗", "$text-error")}
_HINTS = {
    "never": "S starts an engine in the background, and so does `marlaas engine start`.",
    "down": "S starts an engine.",
    "stopped": "S starts an engine.",
    "silent": "Its process runs but does not answer: logs/engine.log (7, then ]) may tell why.",
}


def head(engine: EngineRow | None, alive: Liveness, unfinished: int, now: float, width: int) -> list[Line]:
    """Up to three lines; ``unfinished`` is the number of tasks that an engine would work on."""
    mark, style = _MARKS.get(alive.word, ("○", "$text-muted"))
    yielding = yielding_of(engine) if alive.alive else None
    yields = yielding is not None and yielding.holds
    facts, serves = "", alive.serves
    if engine is not None:
        known = [
            f"{'· running for' if yields else 'for'} {duration(float(int(now - engine.started)))}" if serves else "",
            f"base {line(engine.shown_base, 40)}",
            f"sampler {line(engine.sampler, 20)}" if engine.sampler and not engine.precision else "",
            f"process {engine.pid}" if serves else "",
        ]
        facts = " · ".join(fact for fact in known if fact)
    note = line(engine.note, width) if engine is not None and alive.alive else ""
    second = note or _HINTS.get(alive.word, "")
    if yielding is not None and not note:
        second = yielding_effect(yielding)
    if alive.word in ("down", "stopped") and unfinished:
        second += " Tasks wait for one; they go on from their last step."
    state = line(engine.state, 12) if engine is not None and alive.alive and not yields else alive.text
    joint = " · " if facts and not serves else " "
    first: Line = ((f"{mark} {state}", f"bold {style}"), (f"{joint}{facts}", "$text-muted"))
    precision = line(engine.precision, width) if engine is not None and serves else ""
    more = ((precision, "$text-muted"), (second, "$text-warning"))
    return [first, *((each,) for each in more if each[0])]


def stop_question(running: int, now: Mapping[str, StageSample]) -> str:
    """What an immediate stop would cost with this many running tasks; ``now`` has the newest sample of each stage."""
    if not running:
        return "Stop the engine? No task runs; those that wait go on waiting until another one starts."
    go = f"{_tasks(running)} on from the last step when another one starts"
    return f"Stop the engine? {go}. {_lost(now)}; D would finish them first."


def yield_question(running: int, now: Mapping[str, StageSample]) -> str:
    """What yielding the machine would cost, and the question for how long."""
    stand = f" {_tasks(running)} on from the last step afterwards. {_lost(now)}." if running else ""
    span = "For how long: 30m, 2h, 1d? “open” is until B takes it back."
    return f"Yield the machine? Its cards and memory are free within seconds.{stand} {span}"


def _tasks(running: int) -> str:
    return "1 task goes" if running == 1 else f"{running} tasks go"


def _lost(now: Mapping[str, StageSample]) -> str:
    stages = [one for name, one in now.items() if name in ("rollout", "environment")]
    episodes = round(sum(one.waiting + one.active for one in stages))  # each episode waits, is sampled, or is played
    return f"About {episodes} episodes under way are lost" if episodes else "What is under way is lost"


# The machine: each process with its memory and cores, what is free, the disk, and the engines so far.

_BAR = 20


def processes(
    workers: Sequence[WorkerRow],
    pinned: Mapping[int, frozenset[int]],
    memory: Memory | None,
    cores: int,
    now: float,
    width: int,
    held: Mapping[int, int] | None = None,
) -> list[Line]:
    """A line for each process, and one for the machine as a whole; ``held`` has bytes of cards by process, if any."""
    ordered = sorted(workers, key=lambda worker: (worker.name.startswith("env"), worker.name))
    rows = [_cells(worker, pinned, now, held) for worker in ordered]
    lines: list[Line] = []
    if rows:
        headers = ("process", "id", "memory", *(("of cards",) if held else ()), "busy", "cores", "up", "")
        lines = table(headers, rows, (22, -7, -7, *((-8,) if held else ()), -5, 9, 12, 10), width)
    else:
        lines = [(("No engine runs, so none of its processes does.", "$text-muted"),)]
    if memory is not None and memory.total:
        used = memory.total - memory.free
        taken = f"{size(memory.free)} of {size(memory.total)} free"
        together = f", {size(sum(worker.rss or 0 for worker in workers))} ours" if workers else ""
        text = f"memory {bar(used, memory.total, _BAR)} {taken}{together} · {cores} {'core' if cores == 1 else 'cores'}"
        lines.append(((text, ""),))
    return lines


def _cells(
    worker: WorkerRow, pinned: Mapping[int, frozenset[int]], now: float, held: Mapping[int, int] | None
) -> tuple[str, ...]:
    """What a line shows of a worker; of one that has no process yet, its name and its state."""
    state = "" if worker.state == "running" else worker.state
    if worker.pid is None:
        return worker.name, "", "", *(("",) if held else ()), "", "", "", state
    return (
        worker.name,
        str(worker.pid),
        size(worker.rss or 0),
        *((size(held[worker.pid]) if worker.pid in held else "",) if held else ()),
        share(worker.busy or 0),
        cores_text(pinned[worker.pid]) if worker.pid in pinned else "",
        duration(float(int(now - (worker.started or now)))),
        state,
    )


def cores_text(cores: frozenset[int]) -> str:
    """0, 0-3, or 0,2,5."""
    ordered = sorted(cores)
    if not ordered:
        return ""
    if len(ordered) > 1 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{ordered[0]}-{ordered[-1]}"
    return ",".join(map(str, ordered))


def disk(found: Disk | None) -> list[Line]:
    """How much of the disk the home takes, and from when on tasks wait for room."""
    if found is None:
        return [(("The disk of this home cannot be looked at.", "$text-muted"),)]
    taken = found.taken
    parts = (("adapters", taken.adapters), ("database", taken.database), ("bases", taken.base), ("other", taken.other))
    told = ", ".join(f"{name} {size(value)}" for name, value in parts)
    short = found.free < found.reserve or bool(found.limit and taken.total > found.limit)
    rules = f"tasks wait below {size(found.reserve)}"
    if found.limit:
        rules += f", or when the home takes more than {size(found.limit)}"
    return [
        ((f"home {size(taken.total)}: {told}", ""),),
        ((f"free {size(found.free)}; {rules}", "bold $text-error" if short else ""),),
    ]


def starts(engines: Sequence[EngineRow], now: float, alive: bool, width: int) -> list[Line]:
    """A line for each engine so far, newest first; one that never reported *stopped* died."""
    if not engines:
        return [(("No engine has ever run here: S starts one.", "$text-muted"),)]
    rows = []
    for place, engine in enumerate(engines):
        lived = duration(float(int(max(0.0, engine.heartbeat - engine.started))))
        state = engine.state
        if state != "stopped" and not (place == 0 and alive):
            state = "ended unexpectedly"
        what = " · ".join(part for part in (line(engine.shown_base, 30), line(engine.sampler, 12)) if part)
        rows.append((str(engine.incarnation), state, ago(engine.started, now), lived, what))
    return table(("engine", "state", "started", "lived", "base"), rows, (-6, 20, 18, 14, 30), width)


# The machines of the cluster: which of them work, what each gives, and what keeps one out.

_NODE_STYLES = {"ready": "", "draining": "$text-muted", "refused": "$text-warning", "gone": "$text-error"}


def nodes(rows: Sequence[NodeRow], width: int) -> list[Line]:
    """A line for each node, and further ones for what is to be said of it; empty without a cluster."""
    if not rows:
        return []
    names = [name.lower() for name in headers(True)]
    shown, *lines = table(names, [row(node, True) for node in rows], (24, 16, 9, -5, -9, 8, 40), width)
    found = [shown]
    for node, text in zip(rows, lines, strict=True):
        style = _NODE_STYLES[node.state]
        found.append(tuple((part, own or style) for part, own in text))
        found += [(("  " + line(remark, width - 2), "$text-warning"),) for remark in remarks(node)]
    return found


# The fair shares: how much of both devices' work each tenant had, and who is behind.
#
# What tenants have used of the day is reported again and again; shares of the last minute are shown once its use is
# known. Pure, except for what it remembers.

WINDOW = 60.0
"""Seconds over which shares are counted."""
SPACING = 5.0
"""Seconds, at least, between two reports that are remembered."""


class UsedLately:
    """What tenants used in about the last minute, from the sums of the day."""

    def __init__(self) -> None:
        self._moments: deque[tuple[float, dict[str, TenantUse]]] = deque()

    def add(self, moment: float, used: Sequence[TenantUse]) -> tuple[float, list[TenantUse]]:
        """The seconds that are looked back on, 0 for all of the day, and what was used in them."""
        sums = {one.tenant: one for one in used}
        while self._moments and (moment - self._moments[0][0] > WINDOW + SPACING or _less(sums, self._moments[0][1])):
            self._moments.popleft()  # too old, or of the day before
        if not self._moments or moment - self._moments[-1][0] >= SPACING:
            self._moments.append((moment, sums))
        then, before = self._moments[0]
        if moment - then < SPACING:
            return 0.0, list(used)
        lately = []
        for one in used:
            had = before.get(one.tenant, TenantUse(one.tenant, one.weight, 0.0, 0.0))
            lately.append(TenantUse(one.tenant, one.weight, one.rollout - had.rollout, one.training - had.training))
        return moment - then, lately


def _less(now: dict[str, TenantUse], before: dict[str, TenantUse]) -> bool:
    return any(
        name not in now or now[name].rollout < had.rollout or now[name].training < had.training
        for name, had in before.items()
        if had.rollout or had.training
    )


def shares(used: Sequence[TenantUse], standings: Sequence[StandingRow], width: int) -> list[Line]:
    """A line for each tenant, the largest share first."""
    if not used:
        return [(("No tenant has used anything today.", "$text-muted"),)]
    stand = {(one.tenant, one.stage): one for one in standings}
    sampled, trained = sum(one.rollout for one in used), sum(one.training for one in used)
    rows = []
    for one in sorted(used, key=lambda one: (-one.rollout - one.training, one.tenant)):
        lines = [stand.get((one.tenant, stage)) for stage in ("rollout", "training")]
        waiting = sum(standing.waiting for standing in lines if standing)
        rows.append(
            (
                one.tenant,
                number(one.weight, 2),
                share(one.rollout / sampled) if sampled > 0 else "-",
                share(one.training / trained) if trained > 0 else "-",
                str(waiting) if any(lines) else "",
                behind(*lines),
            )
        )
    headers = ("tenant", "weight", "rollout", "training", "waiting", "behind")
    return table(headers, rows, (18, -6, -7, -8, -7, 22), width)


def behind(rollout: StandingRow | None, training: StandingRow | None) -> str:
    """How much less a tenant has had than the one that has had most."""
    if rollout is None and training is None:
        return "idle"
    texts = []
    if rollout is not None and rollout.behind >= 1:
        texts.append(f"{count(round(rollout.behind))} tokens")
    if training is not None and training.behind >= 1e4:
        texts.append(duration(round(training.behind / 1e6, 2)))
    return ", ".join(texts) or "nothing"


# Yields the machine from the screen: explains what that costs, asks for how long, and tells the engine.
#
# Which key or entry of the palette asked is not known here.

USUAL = "2h"
OPEN = "open"
"""The word to type for a yield without an end."""


def ask_yield(app: MarlaasApp) -> None:
    """Ask for how long, and yield; leaving the dialog changes nothing."""

    from ...text.format import seconds
    from .dialogs.questions import Ask

    def act(answer: str | None) -> None:
        if not answer:
            return
        now = app.snapshot.now
        try:
            until = None if answer == OPEN else now + seconds(answer)
        except ConfigError as error:
            app.say(f"{error} “{OPEN}” is until it is taken back.", bad=True)
            return
        done = f"The engine has {state(Yielding(YIELDED, until), now).replace('yielded', 'yielded the machine')}."
        app.command("yield", done=done, until=until)

    snapshot = app.snapshot
    if reason := app.may_act() or why_not(app):
        app.say(reason, bad=True)
        return
    running = sum(task.state == "running" for task in snapshot.tasks)
    now = snapshot.answer.now if isinstance(snapshot.answer, EngineAnswer) else {}
    app.push_screen(Ask(yield_question(running, now), USUAL, "yield"), act)


def take_back(app: MarlaasApp) -> None:
    """End the yield."""
    if reason := app.may_act() or why_not(app) or why_no_end(app):
        app.say(reason, bad=True)
    else:
        app.command("resume_engine", done="The engine has the machine again.")


def why_not(app: MarlaasApp) -> str:
    """Why no engine can be told; empty if one can."""
    serves = liveness(app.snapshot.engine, app.snapshot.now).serves
    return "" if serves else "No engine runs, so none holds the machine."


def why_no_end(app: MarlaasApp) -> str:
    """Why there is no yield to end; empty if there is one."""
    yielding = yielding_of(app.snapshot.engine)
    if yielding is not None and yielding.kind == HOURS:
        return f"Nothing was yielded: {waits_for(yielding, app.snapshot.now)}."
    return "" if yielding is not None and yielding.kind == YIELDED else "The engine has not yielded the machine."


# The view of the engine: is the machine busy, who uses how much of it, what is left; and keys to start and stop it.

_BESIDE = LABEL + SHARE + 6
"""Cells of a line besides the timeline: labels, padding, the scroll bar."""


class EngineScreen(View):
    """Panes one below the other; on wide terminals two next to each other."""

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
        return EngineQuestion(self.marlaas.home, GRAINS[self._grain], max(10, self.app.size.width - _BESIDE))

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
        grain = GRAINS[self._grain]
        shown = rows(answer.spans, answer.until, grain, self.question().cells)
        title = f"busy, {short_duration(grain)} a cell"
        self._pane("timeline").show(lines(shown, grain, snapshot.now - answer.until), title)
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
        place = min(len(GRAINS) - 1, max(0, self._grain + by))
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
        """Finish the steps in progress, then stop. Nothing is lost, so no confirmation is asked for."""
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
