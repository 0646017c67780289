"""``watch``: tasks as lines of text, one for each change; the way to follow them without a screen, or by ear.

The lines go to standard output, because they are what was asked for.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ... import output
from ..choosing import add_tasks, chosen
from ..verbs import Verbs, add_verb, home_of

if TYPE_CHECKING:
    from marlaas.engine.store import TaskRow

    from ...home.progress import Follower
    from ...reading.home_reader import HomeReader

NO_ENGINE = "No engine is alive; `marlaas engine start` goes on with the unfinished tasks."


def register(verbs: Verbs) -> None:
    """Add the verb."""
    watch = add_verb(
        verbs,
        "watch",
        run,
        "print a line for each change of tasks; ends when those that are given have ended",
        epilog="Without a number it goes on until Ctrl-C, with all that is unfinished or comes in; with numbers it has"
        " the exit codes of `marlaas wait`.",
    )
    add_tasks(watch)
    watch.add_argument(
        "--quiet", action="store_true", help="only new states, reasons and held-out scores, not each step"
    )
    watch.add_argument("--json", action="store_true", help="print one JSON object per line")


def run(args: argparse.Namespace) -> int:
    """Print changes until the given tasks have ended, or until Ctrl-C."""
    from marlaas.engine.daemon import control

    from ...home.progress import Follower, milestone, ways
    from ...reading.opening import find_task, reading

    home = home_of(args)
    with reading(home) as reader:
        wanted = chosen(args, reader) if args.tasks or args.family else None
        if reader is None:
            output.talk("No tasks yet. `marlaas submit FILE` adds one.")
            return output.OK
        follower = Follower(
            read=lambda: moving(follower, reader) if wanted is None else [find_task(reader, n) for n in wanted],
            alive=lambda: control.alive(home),
            say=output.quote if args.json else output.result,
            differs_by=milestone if args.quiet else None,
            **({"words": _json} if args.json else ways(output.is_plain())),
        )
        if wanted is None:
            watch_all(follower)
        if not control.alive(home):
            output.talk(NO_ENGINE)
        tasks = follower.follow()
    return output.OK if all(task.state == "done" for task in tasks) else output.FAILED


def watch_all(follower: Follower, interval: float = 1.0) -> None:
    """Print what changes, and whether an engine is alive, until interrupted."""
    output.talk("Watching all tasks; Ctrl-C ends the watching and no task.")
    lived = True
    while True:
        alive = follower.alive()
        if alive != lived:
            output.talk("An engine is alive." if alive else NO_ENGINE)
        lived = alive
        follower.poll()
        follower.sleep(interval)


def moving(follower: Follower, reader: HomeReader) -> list[TaskRow]:
    """The unfinished tasks, and those that were unfinished when last reported."""
    return [task for task in reader.tasks() if task.unfinished or follower.said(task.id)]


def _json(task: TaskRow) -> str:
    from ...words.tasks import task_json

    return output.json_line(task_json(task))
