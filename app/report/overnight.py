"""What happened in a home since somebody last looked: which tasks came how far, and what went wrong. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from marlaas.engine.store import EventRow, ProgressRow, TaskRow

from ..words.format import ago, counted, line, score
from ..words.learning import gone_wrong
from ..words.tasks import state_word
from .document import Document, Piece, Section, Table, Text

MOST = 40
"""Lines of the log that are shown, the newest."""


@dataclass(frozen=True)
class HomeFacts:
    """All that a home's report is made of."""

    home: str
    since: float
    """In seconds since 1970; so is ``now``."""
    now: float
    tasks: Sequence[TaskRow]
    progress: Sequence[ProgressRow]
    events: Sequence[EventRow]
    """Warnings and errors of that time, oldest first."""


def told_of_home(facts: HomeFacts) -> Document:
    """The report."""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(facts.since))
    lead = f"Since {when}, {ago(facts.since, facts.now)}: {_sum(facts)}."
    sections = [
        Section(title, pieces)
        for title, pieces in (("Tasks", list(_tasks(facts))), ("What went wrong", list(_wrong(facts))))
        if pieces
    ]
    return Document(f"What happened in {line(facts.home)}", lead, sections)


def _sum(facts: HomeFacts) -> str:
    if not facts.progress and not facts.events:
        return "nothing"
    ended = sum(task.finished is not None and task.finished >= facts.since for task in facts.tasks)
    steps = sum(row.steps for row in facts.progress)
    found = [counted(steps, "step"), f"{counted(ended, 'task')} ended"]
    running = sum(task.state == "running" for task in facts.tasks)
    return ", ".join([*found, f"{running} running now"])


def _tasks(facts: HomeFacts) -> Iterator[Piece]:
    """What each task that moved came to, those first that a person should look at."""
    rows = {task.id: task for task in facts.tasks}
    moved = [(rows[one.task], one) for one in facts.progress if one.task in rows]
    known = {task.id for task, _ in moved}
    stopped = [
        task
        for task in facts.tasks
        if task.id not in known and task.finished is not None and task.finished >= facts.since
    ]
    moved.sort(key=lambda pair: (not gone_wrong(pair[0]), pair[0].state not in ("failed", "paused", "blocked")))
    cells = [
        (
            f"{task.id} {one.policy}" if len(task.trained) > 1 else str(task.id),
            line(task.tenant, 20),
            line(task.name, 40),
            state_word(task.state),
            f"+{one.steps} to {task.step}/{task.steps}",
            _change(one.reward_before, one.reward),
            _change(one.score_before, one.score),
        )
        for task, one in moved
    ]
    cells += [
        (str(task.id), line(task.tenant, 20), line(task.name, 40), state_word(task.state), "", "", score(task.score))
        for task in stopped
    ]
    if cells:
        headers = ("Task", "Tenant", "Name", "State", "Steps", "Reward", "Held-out")
        yield Table(headers, cells, headers[4:])
    for task in {task.id: task for task in (*(task for task, _ in moved), *stopped)}.values():
        said = [task.reason] if task.reason and task.state in ("failed", "paused", "blocked") else []
        said += [words] if (words := gone_wrong(task)) else []
        for words in said:
            yield Text(f"{task.id} {line(task.name, 40)}: {line(words, 300)}")


def _change(before: float | None, now: float | None) -> str:
    if now is None:
        return "-"
    return score(now) if before is None else f"{score(before)} → {score(now)}"


def _wrong(facts: HomeFacts) -> Iterator[Piece]:
    """Warnings and errors; the same ones once, with their number."""
    alike: dict[tuple[int | None, str], list[EventRow]] = {}
    for event in facts.events:
        alike.setdefault((event.task, event.message), []).append(event)
    newest = sorted(alike.values(), key=lambda same: same[-1].created)[-MOST:]
    if newest:
        rows = [
            (
                time.strftime("%m-%d %H:%M", time.localtime(same[-1].created)),
                "" if same[-1].task is None else str(same[-1].task),
                f"{line(same[-1].message, 240)}{f' ({len(same)} times)' if len(same) > 1 else ''}",
            )
            for same in newest
        ]
        yield Table(("When", "Task", "What"), rows)
    if len(alike) > MOST:
        yield Text(f"{len(alike) - MOST} earlier ones are in `marlaas logs --level warning`.")
