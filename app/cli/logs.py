"""``logs``: what happened, one event a line, all events or those of a filter."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from .. import output
from ..words.format import line
from .choosing import add_task
from .verbs import Verbs, add_verb, home_of

if TYPE_CHECKING:
    from marlaas.engine.store import EventFilter, EventRow


def register(verbs: Verbs) -> None:
    """Add the verb."""
    logs = add_verb(verbs, "logs", run, "print what happened, newest last", json=True)
    add_task(logs, "only of this task, by number or name", optional=True)
    logs.add_argument("--tenant", metavar="NAME", help="only of tasks whose tenant has this in its name")
    logs.add_argument("--level", choices=("info", "warning", "error"), default="", help="only this level and worse")
    logs.add_argument("--kind", metavar="WORD", default="", help="only of this kind: task, environment, engine, …")
    logs.add_argument("--since", metavar="TIME", help="only what happened since then: 12h, 22:30, 2026-11-28")
    logs.add_argument("--grep", action="append", metavar="WORD", default=[], help="only with this in the message")
    logs.add_argument(
        "-f", "--follow", action="store_true", help="go on until interrupted; with --json one object per line"
    )
    logs.add_argument("-n", "--lines", type=int, default=200, metavar="N", help="at most the last N (default 200)")


def run(args: argparse.Namespace) -> int:
    """Print events, and more as they come where that was asked for."""

    from ..reading.opening import find_task, reading

    home = home_of(args)
    with reading(home) as reader:
        task = find_task(reader, args.task).id if args.task is not None else None
        wanted = _wanted(args, task)
        events = reader.newest_events(wanted, limit=max(0, args.lines)) if reader else []
        if args.json and not args.follow:
            output.result_json([asdict(event) for event in events])
            return output.OK
        if not events:
            _talk_of_nothing(args, task, str(home.logs))
        last = 0
        while True:
            for event in events:
                output.result(output.json_line(asdict(event)) if args.json else event_line(event))
                last = event.id
            if not args.follow or reader is None:
                return output.OK
            time.sleep(1)
            events = reader.newest_events(wanted, after=last, limit=10_000)


def _wanted(args: argparse.Namespace, task: int | None) -> EventFilter:
    from marlaas.engine.store import EventFilter

    from ..words.durations import moment

    since = moment(args.since, time.time()) if args.since else 0.0
    return EventFilter(tuple(args.grep), args.level, task, args.tenant or "", args.kind, since)


def _talk_of_nothing(args: argparse.Namespace, task: int | None, folder: str) -> None:
    if args.grep or args.level or args.tenant or args.kind or args.since:
        output.talk("No event matches yet.")
        return
    where = "" if task is None else f" to task {task}"
    output.talk(f"Nothing has happened{where} yet. The engine's log files are in {folder}.")


def event_line(event: EventRow) -> str:
    """An event in one line, in local time."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.created))
    task = f"task {event.task}  " if event.task is not None else ""
    return f"{when}  {event.level:<7}  {task}{line(event.message)}"
