"""The demo's tasks in a home: submitted once, and continued where an earlier run was cut short.

For the verb, and for the guide that an empty home shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from marlaas.engine.home import Home

if TYPE_CHECKING:
    from marlaas.engine.store import Submission, TaskRow


def begin(home: Home, say: Callable[[str], None]) -> list[int]:
    """Start the engine; returns the tasks to watch, new or of an earlier run. ``say`` is told what happens."""
    from marlaas.engine.daemon import control
    from marlaas.engine.store import command, submit
    from marlaas.engine.submission import demo

    from ..reading.opening import opened

    submissions = demo.tasks()
    control.create_database(home)
    with opened(home) as reader:
        earlier = unfinished_run(reader.tasks(), submissions)
    if not earlier:
        base = control.served_base(home).fingerprint
        ids = submit(home.database, [replace(each, base=base) for each in submissions])  # it begins them when it can
        control.ensure_running(home, notice=say)
        say(f"Submitted {len(ids)} tasks of as many tenants.")
        return ids
    say("Going on with the tasks of an earlier run, from their last steps.")
    control.ensure_running(home, notice=say)
    for task in earlier:
        if task.state == "paused":
            command(home.database, "resume", task.id)
    return [task.id for task in earlier]


def unfinished_run(tasks: Sequence[TaskRow], submissions: Sequence[Submission]) -> list[TaskRow]:
    """The newest demo in the queue if it has not ended; tasks of other tenants are ignored."""
    newest = {(task.tenant, task.name): task for task in sorted(tasks, key=lambda task: task.id)}
    found = [newest.get((submission.tenant, submission.name)) for submission in submissions]
    run = [task for task in found if task is not None]
    whole = len(run) == len(submissions)
    return run if whole and any(task.unfinished for task in run) else []
