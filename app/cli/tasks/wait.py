"""``wait``: until tasks have ended; exit 0 only if all of them finished well."""

from __future__ import annotations

import argparse

from ... import output
from ..choosing import add_tasks, chosen
from ..verbs import Verbs, add_verb, home_of


def register(verbs: Verbs) -> None:
    """Add the verb."""
    wait = add_verb(verbs, "wait", run, "wait until tasks have ended; exit 0 only if all are done", json=True)
    add_tasks(wait)
    wait.add_argument("--timeout", type=float, metavar="SECONDS", help="give up after this time (exit code 1)")


def run(args: argparse.Namespace) -> int:
    """Wait, with progress on standard error."""
    from marlaas.engine.daemon import control

    from ...home.progress import Follower, ways
    from ...reading.opening import find_task, reading
    from ...words.tasks import task_json

    home = home_of(args)
    with reading(home) as reader:
        wanted = chosen(args, reader)
        for task in (find_task(reader, number) for number in wanted):
            if task.state == "paused" and not task.stuck:  # it may be resumed while this waits
                output.talk(f"Task {task.id} is paused; `marlaas resume {task.id}` goes on with it.")
        follower = Follower(
            read=lambda: [find_task(reader, number) for number in wanted],
            alive=lambda: control.alive(home),
            say=output.talk,
            **ways(output.is_plain()),
        )
        tasks = follower.follow(args.timeout)
    if args.json:
        output.result_json([task_json(task) for task in tasks])
    for task in tasks:
        if task.stuck:
            output.complain(f"Task {task.id} is paused: {task.reason}", f"`marlaas resume {task.id}` goes on with it.")
    unfinished = [str(task.id) for task in tasks if task.unfinished and not task.stuck]
    if unfinished and args.timeout is not None:
        output.complain(f"Unfinished after {args.timeout:g} s: {', '.join(unfinished)}.")
    return output.OK if all(task.state == "done" for task in tasks) else output.FAILED
