"""``logs``: what happened, one event a line."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from .. import output
from ..format import line
from .verbs import Verbs, add_verb, home_of, task_number

if TYPE_CHECKING:
    from marlaas.engine.store.rows import EventRow


def register(verbs: Verbs) -> None:
    """Add the verb."""
    logs = add_verb(verbs, "logs", run, "print what happened, newest last", json=True)
    logs.add_argument("task", type=task_number, nargs="?", metavar="ID", help="only of this task")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until interrupted (not with --json)")
    logs.add_argument("-n", "--lines", type=int, default=200, metavar="N", help="at most the last N (default 200)")


def run(args: argparse.Namespace) -> int:
    """Print events, and more as they come where that was asked for."""
    from .reading import find_task, reading

    home = home_of(args)
    with reading(home) as reader:
        if args.task is not None:
            find_task(reader, args.task)
        events = reader.events(args.task, limit=max(0, args.lines)) if reader else []
        if args.json:
            output.result_json([asdict(event) for event in events])
            return output.OK
        if not events:
            where = "" if args.task is None else f" to task {args.task}"
            output.talk(f"Nothing has happened{where} yet. The engine's own words are in {home.logs}.")
        last = 0
        while True:
            for event in events:
                output.result(event_line(event))
                last = event.id
            if not args.follow or reader is None:
                return output.OK
            time.sleep(1)
            events = reader.events(args.task, after=last, limit=10_000)


def event_line(event: EventRow) -> str:
    """An event in one line, in local time."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.created))
    task = f"task {event.task}  " if event.task is not None else ""
    return f"{when}  {event.level:<7}  {task}{line(event.message)}"
