"""The demo's tasks in a home: submitted once, and continued where an earlier run was cut short.

For the verb, and for the guide that an empty home shows.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from marlaas.engine.errors import ConfigError
from marlaas.engine.home import Home

if TYPE_CHECKING:
    from marlaas.engine.store import Submission, TaskRow


def begin(home: Home, say: Callable[[str], None], sampler: str | None = None, real: bool = False) -> list[int]:
    """Start the engine; returns the tasks to watch, new or of an earlier run. ``say`` is told what happens.

    ``sampler`` goes into the home's settings; ``real``: the tasks for a real base, which the home has by then. Raises
    ``ConfigError`` where an engine there samples with another one.
    """
    from marlaas.engine.daemon import control
    from marlaas.engine.store import command, submit
    from marlaas.engine.submission import demo

    from ..reading.opening import opened

    submissions = demo.tasks(real)
    control.create_database(home)
    if sampler:
        _choose(home, sampler)
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


def _choose(home: Home, sampler: str) -> None:
    """Have the home's engine sample with ``sampler``."""
    from marlaas.engine.daemon import control
    from marlaas.engine.home import load_settings

    from .settings_file import write_sampler

    if load_settings(home).rollout.sampler == sampler:
        return
    if control.alive(home):
        raise ConfigError(
            f"An engine runs already, and samples with something else than {sampler}.",
            f"Stop it first: `marlaas --home {shlex.quote(str(home.root))} engine stop`.",
            where=str(home.root),
        )
    write_sampler(home.config, sampler)


def unfinished_run(tasks: Sequence[TaskRow], submissions: Sequence[Submission]) -> list[TaskRow]:
    """The newest demo in the queue if it has not ended; tasks of other tenants are ignored."""
    newest = {(task.tenant, task.name): task for task in sorted(tasks, key=lambda task: task.id)}
    found = [newest.get((submission.tenant, submission.name)) for submission in submissions]
    run = [task for task in found if task is not None]
    whole = len(run) == len(submissions)
    return run if whole and any(task.unfinished for task in run) else []
