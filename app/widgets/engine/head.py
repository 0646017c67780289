"""The engine in three lines: state, base, precision, what is unusual; and what a stop costs."""

from __future__ import annotations

from collections.abc import Mapping

from marlaas.engine.store import EngineRow, StageSample

from ...words.format import duration, line
from ...words.tasks import Liveness
from ...words.yielding import yielding_effect, yielding_of
from .pane import Line

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
    """What an immediate stop would cost with so many running tasks; ``now`` has the newest sample of each stage."""
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
