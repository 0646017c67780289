"""The machine: each process with its memory and cores, what is free, the disk, and the engines so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from marlaas.engine.store import EngineRow, WorkerRow

from ...home.this_machine import Disk, Memory
from ...words.format import ago, bar, duration, line, share, size
from .pane import Line, table

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
