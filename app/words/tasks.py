"""Rows of the store in words, glyphs, and the fields that ``--json`` promises.

Shared by the command line and the terminal application. Takes rows, gives plain values; knows neither argparse nor
Textual.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from marlaas.engine.fleet import state

from .format import ago, cells, clip, clip_start, line, score
from .terms import with_new_keys, with_new_names
from .yielding import yielding_of

if TYPE_CHECKING:
    from marlaas.engine.store import EngineRow, EvalRow, StepRow, TaskRow

GLYPHS = {
    "blocked": "■",
    "submitted": "·",
    "queued": "○",
    "running": "●",
    "paused": "‖",
    "done": "✓",
    "failed": "✗",
    "cancelled": "⊘",
    "waiting": "○",
}
WAITING = "waiting"
"""What a task is shown as that an engine would work on, while none does."""
_ORDER = ("blocked", "running", "paused", "queued", "submitted")
_MOVED_ON = ("submitted", "queued", "running")
"""States that only an engine moves a task out of, and in which it lacks nothing else."""
NO_ENGINE = "waiting for the engine"
MENDED = "Once that is mended, the task goes on by itself."
_PLACE = re.compile(r"(?P<file>[^\s:]{1,400}):(?P<line>\d{1,9}): ")
"""The file and line with which a reason begins that lies in an environment's code."""
_LIBRARIES = "`marlaas env allow "
"""What stands in a reason that is about libraries, which the view of environments installs as well."""
_FILE = 28
"""Cells of a file's name that are shown before a cause: the cause must begin where one looks first."""

MOST_NAMED = 4
"""Most tasks of a notice that are named by their numbers."""
FRESH_SECONDS = 5.0
"""An engine with a heartbeat this recent is alive; it writes one a second."""


def state_word(state: str) -> str:
    """Glyph and word: colour alone never shows a state."""
    return f"{GLYPHS[state]} {state}" if state in GLYPHS else f"? {line(state, 12)}"


def shown_state(task: TaskRow, serving: bool) -> str:
    """The state to show: where no engine is ``serving``, no task runs, whatever the last one wrote."""
    return task.state if serving or task.state not in _MOVED_ON else WAITING


def shown_reason(task: TaskRow, serving: bool) -> str:
    """Why a task waits, paused or ended: its reason, or that there is no engine; empty where there is none."""
    return NO_ENGINE if shown_state(task, serving) == WAITING else blocking(task) or task.reason


def blocking(task: TaskRow) -> str:
    """What blocks a task: place, then cause, in one safe line, with the cause near its beginning; empty: nothing."""
    if task.state != "blocked":
        return ""
    reason = line(task.reason) or "it lacks something"
    place = _PLACE.match(reason)
    if place is None:
        return reason
    return f"{clip_start(place['file'], _FILE)}:{place['line']}: {reason[place.end() :]}"


def mended_in_file(task: TaskRow) -> bool:
    """Whether what blocks a task is a line of its environment."""
    return task.state == "blocked" and _PLACE.match(line(task.reason)) is not None


def remedy(task: TaskRow) -> str:
    """What to do about a blocked task; empty for others."""
    if task.state != "blocked":
        return ""
    if _LIBRARIES in task.reason:
        return "i in the environments (4) shows its libraries, and installs them if you agree; the task then goes on."
    if mended_in_file(task):
        return "E opens the file at this line. Once it is saved without the mistake, the task goes on by itself."
    return MENDED


def queue_order(task: TaskRow) -> tuple[int, int]:
    """A sort key: blocked tasks first, then active, waiting and finished ones, these with the newest first."""
    if task.state in _ORDER:
        return (_ORDER.index(task.state), task.id)
    return (len(_ORDER), -task.id)


@dataclass(frozen=True)
class Liveness:
    """Whether an engine serves the home, in a word and in a sentence."""

    word: str
    """alive, silent, down, stopped or never; stopped: it was asked to end, and did"""
    text: str

    @property
    def alive(self) -> bool:
        """Whether commands will be carried out soon."""
        return self.word == "alive"

    @property
    def serves(self) -> bool:
        """Whether its process lives, even if it does not respond."""
        return self.word in ("alive", "silent")


def process_exists(pid: int, silent_since: float | None = None) -> bool:
    """Whether a process with that number runs on this machine; of a silent one, whether it is still the same.

    After a reboot the number may be another's, which began after the last sign of life.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another account's
    if silent_since is None:
        return True
    import psutil  # takes time, which only silence is worth

    try:
        return bool(psutil.Process(pid).create_time() <= silent_since + FRESH_SECONDS)
    except psutil.Error:
        return False


def liveness(engine: EngineRow | None, now: float) -> Liveness:
    """The liveness of the engine in this row at the time ``now``."""
    if engine is None:
        return Liveness("never", "never started")
    since = ago(engine.heartbeat, now)
    if engine.state == "stopped":
        return Liveness("stopped", f"stopped {since}")
    silent = now - engine.heartbeat > FRESH_SECONDS
    if not process_exists(engine.pid, engine.heartbeat if silent else None):
        return Liveness("down", f"down, last heard {since}")
    if silent:
        return Liveness("silent", f"silent {since.removesuffix(' ago')}")
    yielding = yielding_of(engine)
    if yielding is not None and yielding.holds and engine.state == "running":
        return Liveness("alive", state(yielding, now))
    return Liveness("alive", f"alive {since}" if engine.state == "running" else f"{engine.state}, alive {since}")


def newest_key(evals: Sequence[EvalRow], on: str = "") -> str:
    """The series of the newest evaluation on the task's own held-out prompts; empty before the first.

    ``on``: instead of these, as in ``measured_on``.
    """
    return next((row.series for row in reversed(evals) if measured_on(row) == on), "")


def newest_series(evals: Sequence[EvalRow], on: str = "") -> list[EvalRow]:
    """The evaluations of the newest series on the task's own held-out prompts, by step: only those compare.

    ``on``: instead of these, as in ``measured_on``.
    """
    newest = newest_key(evals, on)
    return sorted((row for row in evals if measured_on(row) == on and row.series == newest), key=lambda row: row.step)


def measured_on(row: EvalRow) -> str:
    """What an evaluation is of: a suite's name, ``test``, both, or empty for the task's own held-out prompts."""
    return " ".join(filter(None, (row.suite, "" if row.split == "eval" else row.split)))


def largest_gap(steps: Sequence[StepRow]) -> float | None:
    """The largest log-probability gap between sampler and trainer in any step."""
    return max((step.metrics["gap_max"] for step in steps if "gap_max" in step.metrics), default=None)


def swept(task: TaskRow) -> str:
    """The values in which a sweep's member differs from the others, such as learning_rate=0.0001; empty for others."""
    name, begins = line(task.name), f"{line(task.family)} ["
    return name[len(begins) : -1] if task.family and name.startswith(begins) and name.endswith("]") else ""


def short_name(task: TaskRow, width: int) -> str:
    """A task's name in ``width`` cells; of a sweep's member what it does not share with the others goes first."""
    name = line(task.name)
    if not task.family or cells(name) <= width:
        return clip(name, width)
    return clip_start(swept(task) or name, width)


def family_summaries(tasks: Sequence[TaskRow]) -> list[str]:
    """A line for each sweep among the tasks: the states of its members, and the best so far."""
    families: dict[tuple[str, str, float], list[TaskRow]] = {}
    for task in tasks:
        if task.family:  # tasks of one sweep are all submitted at the same moment
            families.setdefault((task.tenant, task.family, task.created), []).append(task)
    return [_family_summary(members) for members in families.values()]


def _family_summary(members: Sequence[TaskRow]) -> str:
    first = members[0]
    states = Counter(task.state for task in members)
    standing = ", ".join(f"{states[state]} {state}" for state in GLYPHS if states[state])
    scored = [task for task in members if task.best is not None]
    text = f"sweep {line(first.tenant)}/{line(first.family)}, {len(members)} tasks: {standing}"
    if not scored:
        return text
    return f"{text}; {best_of(scored)}"


def best_of(scored: Sequence[TaskRow]) -> str:
    """Which of several tasks that have a held-out score has the best one; that none has, where all are equal."""
    best = max(scored, key=lambda task: task.best or 0.0)
    if len(scored) > 1 and all(score(task.best) == score(best.best) for task in scored):
        return f"all have held-out {score(best.best)} at best"
    return f"best held-out {score(best.best)}: task {best.id}, {swept(best) or line(best.name)}"


def task_json(task: TaskRow) -> dict[str, Any]:
    """A task as in ``list --json``."""
    return with_new_names(asdict(task))


def task_detail_json(
    task: TaskRow,
    needs: Sequence[TaskRow],
    evals: Sequence[EvalRow],
    newest: StepRow | None,
    config: dict[str, Any],
    warnings: Sequence[str],
) -> dict[str, Any]:
    """A task as in ``show ID --json``: its row, dependencies, evaluations, newest metrics, configuration, warnings."""
    return {
        **task_json(task),
        "depends_on": [needed.id for needed in needs],
        "eval": [with_new_names(asdict(row)) for row in evals],
        "metrics": with_new_keys(newest.metrics) if newest else {},
        "config": config,
        "warnings": list(warnings),
    }


def tasks_named(tasks: Sequence[int]) -> str:
    """Tasks as the subject of a sentence: Task 3; Tasks 3, 4 and 5; 12 tasks."""
    if len(tasks) == 1:
        return f"Task {tasks[0]}"
    if len(tasks) > MOST_NAMED:
        return f"{len(tasks)} tasks"
    return f"Tasks {', '.join(map(str, tasks[:-1]))} and {tasks[-1]}" if tasks else "The engine"


def limits(config: Mapping[str, Any]) -> str:
    """How many tokens replies and episodes of a task may have; empty where its configuration does not say."""
    sampling = config.get("sampling", {})
    most, whole = sampling.get("max_tokens"), sampling.get("max_episode_tokens")
    if most is None:
        return ""
    return f"{line(str(most))} tokens a reply" + (f", {line(str(whole))} an episode" if whole is not None else "")
