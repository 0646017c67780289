"""Tasks and policies in words: states, reasons, summaries, losses, speeds."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from marlaas.engine.machine.yielding.decision import clock, state
from marlaas.engine.spec.task import BASE, ONLY, AgentMap, NamedPolicySpec
from marlaas.engine.store.rows import EngineRow, EvalRow, PaceRow, PolicyRow, TaskRow

from .format import ago, cells, clip, clip_start, line, score, share, short_duration
from .machine import yielding_of
from .terms import with_new_names

if TYPE_CHECKING:
    from marlaas.engine.store.queries.learning import FirstStep


# The text is safe, though plugins name agents.

PLAIN = ("", "agent", "policy")
"""Hidden names of an only agent."""
LONGEST = 40
"""Cells of a name."""


def kind(policy: PolicyRow | NamedPolicySpec) -> str:
    """trained, measured, frozen at something, or a pool of earlier versions."""
    if policy.frozen:
        return "frozen: the bare base" if policy.frozen == BASE else f"frozen: {line(policy.frozen, LONGEST)}"
    if policy.pool:
        return f"pool of {line(policy.pool, LONGEST)}"
    return "measured" if isinstance(policy, PolicyRow) and policy.measured else "trained"


def names(agents: Sequence[str]) -> str:
    """The agents' names in a row."""
    return ", ".join(line(agent, LONGEST) for agent in agents)


def policy_and_version(policy: str, version: int, speaker: str = "", spoke: int | None = None) -> str:
    """The speaker of a trajectory: the group's policy, or another ``speaker`` with its version."""
    if not speaker:
        return f"{line(policy, LONGEST)} v{version}"
    said = line(speaker, LONGEST)
    known = spoke is None or speaker == BASE or speaker.endswith(f"@{spoke}")
    return said if known else f"{said} v{spoke}"


def who(agent: str, policy: str, version: int, speaker: str = "", spoke: int | None = None) -> str:
    """An agent and its speaker; empty for the only agent of an only policy."""
    name = line(agent, 50) if agent not in PLAIN else ""
    if policy in ("", ONLY) and not speaker:
        return name
    said = policy_and_version(policy, version, speaker, spoke)
    return f"{name}: {said}" if name and (speaker or agent != policy) else said


def agent_map_lines(
    agent_map: AgentMap, rotate: bool = False, measured_with: Sequence[tuple[str, str]] = ()
) -> list[str]:
    """A sentence for each policy, and how they are measured; empty for one policy."""
    if not agent_map.agents:
        return []
    lines = []
    for name, policy in agent_map.policies.items():
        agents = [agent for agent, own in agent_map.agents.items() if own == name]
        if policy.pool:
            who = f"one of up to {policy.size} earlier versions of {policy.pool}, every {policy.every} steps one"
        elif policy.frozen:
            who = kind(policy)
        else:
            who = f"trained, rank {policy.rank}" + (f", from {line(policy.start, LONGEST)}" if policy.start else "")
        lines.append(f"{name} acts as {names(agents)}: {who}")
    if measured_with or rotate:
        held_out = ", ".join(f"{line(words, LONGEST)} for {line(agent, LONGEST)}" for agent, words in measured_with)
        turns = "the agents change places from prompt to prompt" if rotate else ""
        lines.append("held-out: " + "; ".join(part for part in (held_out, turns) if part))
    return lines


FEW = 4
"""Steps below which a speed is rough: the first ones load, compile and warm up."""


def seconds_left(task: TaskRow, pace: PaceRow | None) -> float | None:
    """To the last step, at the present speed; None if unknown."""
    if task.state != "running" or pace is None or pace.seconds <= 0:
        return None
    return (task.steps - task.step) * pace.seconds


def is_rough(pace: PaceRow | None) -> bool:
    """Whether a speed comes from few steps only."""
    return pace is not None and pace.steps < FEW


def left_text(seconds: float, rough: bool) -> str:
    """In few cells, with a sign for a rough value."""
    return f"{'~' if rough else ''}{short_duration(seconds)}"


def tokens_per_second(task: TaskRow, pace: PaceRow | None) -> float | None:
    """Trained tokens of a running task."""
    return pace.tokens / pace.seconds if task.state == "running" and pace is not None and pace.seconds > 0 else None


MANY = 0.01
"""Share of lost episodes that marks a task: a crash costs fewer."""


def many_lost(task: TaskRow) -> bool:
    """True if people should know at once; also for an unknown share."""
    return task.lost is not None and (task.lost.share >= MANY or not task.lost.of)


def lost_briefly(task: TaskRow) -> str:
    """17 % of the episodes lost; empty for few."""
    if task.lost is None or not many_lost(task):
        return ""
    return f"{share(task.lost.share)} of the episodes lost" if task.lost.of else f"{task.lost.episodes:,} episodes lost"


def lost_words(task: TaskRow) -> str:
    """In a sentence with the last failure; empty for none."""
    lost = task.lost
    if lost is None:
        return ""
    whole = f" ({share(lost.share)})" if lost.share >= MANY else ""
    of = f" of {lost.of:,}" if lost.of else ""
    where = f", last at {line(lost.failure, 300)}" if lost.failure else ""
    return f"Lost {lost.episodes:,}{of} episodes{whole}: their environment failed{where}."


def no_failures(task: TaskRow | None) -> str:
    """Why the list of failures is empty."""
    if task is None or task.lost is None:
        return "No conversation failed."
    where = f": {line(task.lost.failure, 160)}" if task.lost.failure else ""
    return f"{task.lost.episodes:,} episodes failed, but none is stored: groups with failures were played anew{where}."


_ELAPSED = 5.0
"""Seconds after which the pace of the first episodes tells something."""


def awaiting(task: TaskRow, first: FirstStep | None, metric: str, now: float, serving: bool = True) -> str:
    """Why ``metric`` has no value yet; empty for a blocked task.

    ``first``: what the first step waits for, None after it.
    """
    if task.state == "blocked":
        return ""
    if first is None:
        return f"No value of {metric} yet."
    match shown_state(task, serving):
        case "running":
            return f"First step{_when(task, first, now)}: {first.episodes} of {first.wanted} episodes."
        case "waiting":
            return "No step yet: it is waiting for the engine. S starts one."
        case "submitted" | "queued":
            return "Not begun: it waits for its turn."
        case _:
            return "No step was made."


def _when(task: TaskRow, first: FirstStep, now: float) -> str:
    """The expected time, at the present pace."""
    elapsed = now - task.started if task.started is not None else 0.0
    if not first.episodes or elapsed < _ELAPSED:
        return ""
    return f" at about {clock(now + elapsed * (first.wanted / first.episodes - 1), now)}"


# Fields for ``--json`` and words for people, from rows.

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
"""Shown for a task that an engine would work on, while none runs."""
_ORDER = ("blocked", "running", "paused", "queued", "submitted")
_MOVED_ON = ("submitted", "queued", "running")
"""States that only an engine ends."""
NO_ENGINE = "waiting for the engine"
MENDED = "Once that is mended, the task goes on by itself."
_PLACE = re.compile(r"(?P<file>[^\s:]{1,400}):(?P<line>\d{1,9}): ")
"""File and line at the beginning of a reason."""
_LIBRARIES = "`marlaas env allow "
"""Part of a reason about libraries, which the view of environments can install."""
_FILE = 28
"""Cells of a file's name before a cause."""

MOST_NAMED = 4
"""Named tasks of a notice."""
FRESH_SECONDS = 5.0
"""Age of the heartbeat of a live engine; it writes one a second."""


def state_word(state: str) -> str:
    """Colour alone never shows a state."""
    return f"{GLYPHS[state]} {state}" if state in GLYPHS else f"? {line(state, 12)}"


def shown_state(task: TaskRow, serving: bool) -> str:
    """Without an engine no task runs, whatever is stored."""
    return task.state if serving or task.state not in _MOVED_ON else WAITING


def shown_reason(task: TaskRow, serving: bool) -> str:
    """The reason of a state; empty: none."""
    return NO_ENGINE if shown_state(task, serving) == WAITING else blocking(task) or task.reason


def blocking(task: TaskRow) -> str:
    """Place and cause in one safe line; empty: not blocked."""
    if task.state != "blocked":
        return ""
    reason = line(task.reason) or "it lacks something"
    place = _PLACE.match(reason)
    if place is None:
        return reason
    return f"{clip_start(place['file'], _FILE)}:{place['line']}: {reason[place.end() :]}"


def mended_in_file(task: TaskRow) -> bool:
    """True if a line of its environment blocks it."""
    return task.state == "blocked" and _PLACE.match(line(task.reason)) is not None


def remedy(task: TaskRow) -> str:
    """What to do about a blocked task; else empty."""
    match task.state:
        case "blocked" if _LIBRARIES in task.reason:
            return (
                "i in the environments (4) shows its libraries, and installs them if you agree; the task then goes on."
            )
        case "blocked" if mended_in_file(task):
            return "E opens the file at this line. Once it is saved without the mistake, the task goes on by itself."
        case "blocked":
            return MENDED
    return ""


def queue_order(task: TaskRow) -> tuple[int, int]:
    """Blocked, active, waiting, finished (newest first)."""
    if task.state in _ORDER:
        return (_ORDER.index(task.state), task.id)
    return (len(_ORDER), -task.id)


@dataclass(frozen=True)
class Liveness:
    """If an engine serves the home."""

    word: str
    """alive, silent, down, stopped (as asked) or never."""
    text: str

    @property
    def alive(self) -> bool:
        """True if commands are carried out soon."""
        return self.word == "alive"

    @property
    def serves(self) -> bool:
        """True if its process lives, even silent."""
        return self.word in ("alive", "silent")


def process_exists(pid: int, silent_since: float | None = None) -> bool:
    """True if that process runs here.

    After a reboot the number may be another's, which began after ``silent_since``.
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
    since, silent, yielding = ago(engine.heartbeat, now), now - engine.heartbeat > FRESH_SECONDS, yielding_of(engine)
    match engine.state:
        case "stopped":
            return Liveness("stopped", f"stopped {since}")
        case _ if not process_exists(engine.pid, engine.heartbeat if silent else None):
            return Liveness("down", f"down, last heard {since}")
        case _ if silent:
            return Liveness("silent", f"silent {since.removesuffix(' ago')}")
        case "running" if yielding is not None and yielding.holds:
            return Liveness("alive", state(yielding, now))
        case "running":
            return Liveness("alive", f"alive {since}")
    return Liveness("alive", f"{engine.state}, alive {since}")


def newest_key(evals: Sequence[EvalRow], on: str = "") -> str:
    """The newest series on the task's prompts; empty before the first. ``on``: as in ``measured_on``."""
    return next((row.series for row in reversed(evals) if measured_on(row) == on), "")


def newest_series(evals: Sequence[EvalRow], on: str = "") -> list[EvalRow]:
    """Evaluations of the newest series by step: only those compare. ``on``: as in ``measured_on``."""
    newest = newest_key(evals, on)
    return sorted((row for row in evals if measured_on(row) == on and row.series == newest), key=lambda row: row.step)


def measured_on(row: EvalRow) -> str:
    """A suite's name, ``test``, both, or empty for the task's prompts."""
    return " ".join(filter(None, (row.suite, "" if row.split == "eval" else row.split)))


def swept(task: TaskRow) -> str:
    """A sweep member's own values, such as learning_rate=0.0001; else empty."""
    name, begins = line(task.name), f"{line(task.family)} ["
    return name[len(begins) : -1] if task.family and name.startswith(begins) and name.endswith("]") else ""


def short_name(task: TaskRow, width: int) -> str:
    """In ``width`` cells; a sweep member keeps its own part."""
    name = line(task.name)
    if not task.family or cells(name) <= width:
        return clip(name, width)
    return clip_start(swept(task) or name, width)


def family_summaries(tasks: Sequence[TaskRow]) -> list[str]:
    """A line for each sweep: states, and the best score so far."""
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
    """The best task, or that all are equal."""
    best = max(scored, key=lambda task: task.best or 0.0)
    if len(scored) > 1 and all(score(task.best) == score(best.best) for task in scored):
        return f"all have held-out {score(best.best)} at best"
    return f"best held-out {score(best.best)}: task {best.id}, {swept(best) or line(best.name)}"


def task_json(task: TaskRow) -> dict[str, Any]:
    """For ``list --json``."""
    return with_new_names(asdict(task))


def tasks_named(tasks: Sequence[int]) -> str:
    """Subject of a sentence: Task 3; Tasks 3, 4 and 5; 12 tasks."""
    if len(tasks) == 1:
        return f"Task {tasks[0]}"
    if len(tasks) > MOST_NAMED:
        return f"{len(tasks)} tasks"
    return f"Tasks {', '.join(map(str, tasks[:-1]))} and {tasks[-1]}" if tasks else "The engine"


def limits(config: Mapping[str, Any]) -> str:
    """Token limits of replies and episodes; empty if unknown."""
    sampling = config.get("sampling", {})
    most, whole = sampling.get("max_tokens"), sampling.get("max_episode_tokens")
    if most is None:
        return ""
    return f"{line(str(most))} tokens a reply" + (f", {line(str(whole))} an episode" if whole is not None else "")


_LONGEST_BASE = 24
UNVERIFIED = " (unverified)"
"""Suffix of a base that could not be compared with transformers."""


@dataclass(frozen=True)
class Part:
    """A few words of the first line."""

    text: str
    rank: int
    """0 stays longest."""
    style: str = "$text-muted"


def overview(
    tasks: Sequence[TaskRow],
    paces: Mapping[int, PaceRow],
    base: str,
    parameters: int | None,
    turns: float | None,
    alive: bool,
) -> list[Part]:
    """The home in a few numbers, in order. ``turns``: a second, None if unknown. Without an engine nothing runs."""
    path = base.removesuffix(UNVERIFIED)
    name = line(PurePath(path).name or path, _LONGEST_BASE) + base[len(path) :]
    states = Counter(task.state for task in tasks)
    left = {task.id: seconds_left(task, paces.get(task.id)) for task in tasks if alive}
    ends = sorted((seconds, task) for task, seconds in left.items() if seconds is not None)
    parts = [
        Part(f"{name} {parameter_count(parameters)}".rstrip() if base else "", 4),
        Part(f"{turns:.{int(turns < 10)}f} turns/s" if alive and turns is not None else "", 5),
        Part(
            f"{GLYPHS['running']} {states['running']} running" if alive and states["running"] else "",
            1,
            "$text-success",
        ),
        Part(f"{GLYPHS['blocked']} {states['blocked']} blocked" if states["blocked"] else "", 0, "bold $text-error"),
        *(Part(f"task {task} done in {left_text(s, is_rough(paces.get(task)))}", 2) for s, task in ends[:1]),
    ]
    return [part for part in parts if part.text]


def parameter_count(value: int | None) -> str:
    """42M, 1.5B; empty if unknown."""
    if value is None:
        return ""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            shown = value / limit
            return f"{shown:.1f}{unit}" if shown < 10 else f"{shown:.0f}{unit}"
    return str(value)
