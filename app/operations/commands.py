"""Sends commands to the engine, waits for outcomes, and follows tasks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marlaas.engine.daemon import control
from marlaas.engine.daemon.control import holder
from marlaas.engine.errors import ConfigError, EngineUnreachable
from marlaas.engine.home.paths import Home
from marlaas.engine.spec.task import ONLY
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import PolicyRow, TaskRow, VersionRow
from marlaas.engine.store.submissions import command, command_all

from .. import output
from ..reading import opened, reading
from ..text.format import clip, clip_start, line, pad, score
from ..text.learning import newest, state_text
from ..text.machine import yielding_of, yielding_text
from ..text.scores import held_out, with_error

ANSWER_SECONDS = 30.0


def wait_for_outcomes(
    reader: Reader,
    commands: list[int],
    timeout: float = ANSWER_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> dict[int, str]:
    """Outcomes by command, without those that did not come in time. An empty text is success."""
    deadline = clock() + timeout
    while True:
        outcomes = reader.command_outcomes(commands)
        if len(outcomes) == len(commands) or clock() > deadline:
            return outcomes
        sleep(0.1)


def send(home: Home, kind: str, task: int | None = None, about: str = "", **arguments: Any) -> str:
    """Send one command to the running engine; returns its refusal, or an empty text.

    ``about`` names its purpose. Raises ``EngineUnreachable``.
    """
    number = command(home.database, kind, task, **arguments)
    with opened(home) as reader:
        outcome = wait_for_outcomes(reader, [number]).get(number)
    if outcome is None:
        raise unanswered(about or (f"task {task}" if task is not None else ""))
    return outcome


def ask(home: Home, kind: str, task: int | None = None, about: str = "", **arguments: Any) -> None:
    """Send one command to the engine, which is started if need be. Raises ``ConfigError`` if it refuses."""
    control.ensure_running(home, notice=output.talk)
    refuse(send(home, kind, task, about, **arguments))


def leave(home: Home, kind: str, **arguments: Any) -> bool:
    """Send one command, or leave it to the next engine; False if none runs. Raises ``ConfigError`` if it refuses."""
    control.create_database(home)
    if holder(home.lock) is None:
        command(home.database, kind, **arguments)
        return False
    refuse(send(home, kind, **arguments))
    return True


def refuse(outcome: str) -> None:
    """Raise ``ConfigError`` for a refusal."""
    if outcome:
        raise ConfigError(outcome)


def unanswered(about: str = "") -> EngineUnreachable:
    """The error for a command without an outcome in time."""
    return EngineUnreachable(
        f"The engine has not answered {about and f'for {about} '}within {ANSWER_SECONDS:g} s.",
        "It will carry the command out when it gets to it; `marlaas engine status` shows its state.",
    )


def steer(home: Home, reader: Reader, kind: str, tasks: Sequence[int]) -> dict[int, str]:
    """Send one command for each task, all at once; returns the reason of each refusal, empty for success.

    Starts an engine for what begins work. Raises ``EngineUnreachable``, ``UnknownTask``, ``StoreError``.
    """
    control.refuse_suspended(holder(home.lock))
    if kind in ("resume", "retry"):
        control.ensure_running(home, notice=output.talk)
    elif not control.alive(home):
        raise EngineUnreachable(f"No engine serves {home.root}.", "`marlaas engine start` starts one.")
    sent = dict(zip(command_all(home.database, kind, tasks), tasks, strict=True))
    outcomes = wait_for_outcomes(reader, list(sent))
    for number, task in sent.items():
        if number not in outcomes:
            raise unanswered(f"task {task}")
    return {task: outcomes[number] for number, task in sent.items()}


def owner(version: VersionRow) -> str:
    """A version's owner for verbs: 17, or 17/player for a named policy."""
    return str(version.task) if version.policy == ONLY else f"{version.task}/{line(version.policy)}"


def reference(version: VersionRow) -> str:
    """A version for verbs and task files: 17@12, or 17/player@12."""
    return f"{owner(version)}@{version.number}"


def arguments(version: VersionRow) -> dict[str, Any]:
    """A version for a command, next to the task's number."""
    return {"version": version.number} | ({} if version.policy == ONLY else {"policy": version.policy})


def why_tasks_wait(home: Home) -> str:
    """Why no task runs although an engine serves; empty if tasks may run."""
    with reading(home) as reader:
        yielding = yielding_of(reader.engine() if reader else None)
    return yielding_text(yielding, time.time()) if yielding is not None and yielding.holds else ""


def written(table: Mapping[str, Any]) -> str:
    """TOML that ``tomllib`` reads back as an equal table; keys that are None are left out.

    Raises ``ConfigError`` for a value that TOML does not know.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        return tomlkit.dumps(_said(table))
    except (TOMLKitError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"The task cannot be written as TOML: {error}.") from error


def without_steps(config: dict[str, Any]) -> dict[str, Any]:
    """A task's configuration as an author writes it: an evaluation's steps follow from its versions."""
    return {key: value for key, value in config.items() if key != "steps" or config.get("kind") != "eval"}


def _said(table: Mapping[str, Any]) -> dict[str, Any]:
    """Without None; plain values before tables, as TOML wants it."""
    kept = {key: _said(value) if isinstance(value, Mapping) else value for key, value in table.items()}
    there = {key: value for key, value in kept.items() if value is not None}
    return dict(sorted(there.items(), key=lambda item: isinstance(item[1], dict) or _tables(item[1])))


def _tables(value: Any) -> bool:
    """True for tables of one name, such as [[mixture]]."""
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(one, Mapping) for one in value)


# Tasks as lines of text, one line a change, until they end. Reads through a function, so tests need neither engine nor
# clock.

HEARD_SECONDS = 10.0
"""Seconds between two sentences about steps; reading one out takes about as long."""
WHO = 36
"""Cells of tenant and name."""
GRACE_SECONDS = 20.0
"""Seconds of the engine's silence before following gives up."""


def progress_line(task: TaskRow) -> str:
    """A task in one line."""
    who = line(f"{task.tenant}/{task.name}")
    parts = [
        pad(clip_start(who, WHO) if task.family else clip(who, WHO), WHO),
        f"{state_text(task):<11}",
        "  ".join(_learned(own, task.steps, own.name if task.policies else "") for own in _learning(task)),
    ]
    found = newest(task)
    why = line(task.reason) or (found.headline if found else "")
    return "  ".join([*parts, why] if why else parts)


def sentence(task: TaskRow) -> str:
    """A task in one sentence, for ears and eyes; unknown parts are left out."""
    parts = [f"Task {task.id}, {line(f'{task.tenant}, {task.name}')}: {line(task.state)}"]
    for own in _learning(task):
        if isinstance(own, PolicyRow) and own.measured:
            parts.append(f"{line(own.name)} {'measured' if own.step else 'not measured yet'}")
        else:
            parts.append(f"{f'{line(own.name)} at ' if task.policies else ''}step {own.step} of {task.steps}")
        if own.reward is not None:
            parts.append(f"reward {score(own.reward)}")
        if own.basis is not None:
            parts.append(f"held-out score {held_out(own.score, own.basis)}")
    found = newest(task)
    wrong = f" Learning goes wrong: {found.headline}." if found else ""
    return ", ".join(parts) + "." + wrong + (f" Reason: {line(task.reason)}" if task.reason else "")


def milestone(task: TaskRow) -> tuple[object, ...]:
    """What differs when more than steps have changed."""
    return task.state, task.reason, task.score, *(policy.score for policy in task.policies)


def _learning(task: TaskRow) -> Sequence[TaskRow | PolicyRow]:
    """The task, or each policy that it trains."""
    return [policy for policy in task.policies if policy.trained] or [task]


def _learned(own: TaskRow | PolicyRow, steps: int, name: str) -> str:
    who = f"{line(name)}: " if name else ""
    if isinstance(own, PolicyRow) and own.measured:
        return f"{who}held-out {with_error(own.score, own.basis)}" if own.step else f"{who}not measured yet"
    return f"{who}step {own.step:>3}/{steps}  reward {score(own.reward)}  held-out {with_error(own.score, own.basis)}"


def ways(plain: bool) -> dict[str, Any]:
    """How a ``Follower`` reports: columns for eyes; for ears sentences with pauses."""
    return {"words": sentence, "rest": HEARD_SECONDS} if plain else {"words": progress_line}


@dataclass
class Follower:
    """Polls tasks and reports changes."""

    read: Callable[[], Sequence[TaskRow]]
    """The tasks as they are now."""
    alive: Callable[[], bool]
    """True if an engine serves them."""
    say: Callable[[str], object]
    paused_ends: bool = False
    """True: any paused task counts as ended, since nobody is there to resume it."""
    words: Callable[[TaskRow], str] = progress_line
    differs_by: Callable[[TaskRow], object] | None = None
    """A task is reported when this value changes; by default its words."""
    rest: float = 0.0
    """Seconds between two reports of steps only."""
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _last: dict[int, tuple[float, object, object]] = field(default_factory=dict)
    """Time, milestone and differing value of a task's last report."""

    @classmethod
    def of(cls, home: Home, read: Callable[[], Sequence[TaskRow]], **how: Any) -> Follower:
        """Follow tasks of a home; ``say`` is standard error by default."""
        return cls(read, lambda: control.alive(home), **{"say": output.talk} | how)

    def said(self, task: int) -> bool:
        return task in self._last

    def poll(self) -> list[TaskRow]:
        """Read once, report changes, and return the tasks."""
        tasks = list(self.read())
        for task in tasks:
            now = (self.differs_by or self.words)(task)
            when, before, shown = self._last.get(task.id, (-math.inf, None, None))
            rests = self.clock() - when < self.rest and before == milestone(task)  # it has only made steps
            if shown != now and not rests:
                self._last[task.id] = (self.clock(), milestone(task), now)
                self.say(self.words(task))
        return tasks

    def follow(self, timeout: float | None = None, interval: float = 1.0) -> list[TaskRow]:
        """Follow until all tasks have ended or the time is over; returns the tasks."""
        begun = heard = self.clock()
        while True:
            tasks = self.poll()
            if all(self._ended(task) for task in tasks):
                return tasks
            now = self.clock()
            if timeout is not None and now - begun >= timeout:
                return tasks
            if self.alive():
                heard = now
            elif now - heard > GRACE_SECONDS:
                raise EngineUnreachable(
                    "The engine has stopped while tasks are unfinished.",
                    "`marlaas engine start` goes on with them; `marlaas logs` may say why.",
                )
            self.sleep(interval)

    def _ended(self, task: TaskRow) -> bool:
        return not task.unfinished or task.stuck or (self.paused_ends and task.state == "paused")
