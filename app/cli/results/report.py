"""``report``: tasks in one folder that opens anywhere: configuration, curves, scores, rollouts, cost.

Without a task it is the home's report: what happened since somebody last asked.
"""

from __future__ import annotations

import argparse
import getpass
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ... import output
from ..choosing import add_policy, add_tasks, chosen, faces
from ..verbs import Verbs, add_verb, home_of

if TYPE_CHECKING:
    from ...report import Document

VISITS = "visits.json"
"""In a home: when each account last asked what had happened there."""
DAY = 86_400.0
LINES = 5_000
"""Warnings and errors that are read at most."""


def register(verbs: Verbs) -> None:
    """Add the verb."""
    report = add_verb(
        verbs,
        "report",
        run,
        "say what happened in the home; of tasks, write report.html with its plots in one file, and report.md",
        json=True,
        epilog="Without a task, what happened since the last such report is printed, and written where --out names a"
        " folder. Several tasks are compared. The page has no script, fetches nothing, and opens anywhere. An earlier"
        " report in the folder is replaced.",
    )
    add_tasks(report)
    add_policy(report)
    report.add_argument("--out", type=Path, metavar="DIR", help="the folder (default: report-ID here)")
    report.add_argument("--since", metavar="TIME", help="of the home: since 12h, 22:30, 2026-11-28 (default: the last)")


def run(args: argparse.Namespace) -> int:
    """Write it, and print where it is."""
    from ...reading.opening import find_task, reading
    from ...report import facts_of, told, write

    if not args.tasks and not args.family:
        return _of_home(args)
    with reading(home_of(args)) as reader:
        numbers = chosen(args, reader)
        assert reader is not None
        rows = [find_task(reader, number) for number in numbers]
        tasks = [facts_of(reader, row, faces(args, row)) for row in rows]
    folder = (args.out or Path(f"report-{'-'.join(map(str, numbers[:4]))}")).expanduser()
    files = write(told(tasks, time.time()), folder)
    if args.json:
        output.result_json({"tasks": numbers, "files": [str(path) for path in files]})
        return output.OK
    for path in files[:2]:
        output.result(str(path))
    return output.OK


def _of_home(args: argparse.Namespace) -> int:
    """Print what happened since the last report, or the time that is given; write it, too, where a folder is named."""
    from marlaas.engine.store import EventFilter
    from marlaas.engine.tables import add_to_table, read_table

    from ...reading.opening import reading
    from ...report import HomeFacts, told_of_home, write
    from ...words.durations import moment

    home, now, account = home_of(args), time.time(), getpass.getuser()
    last = read_table(home.root / VISITS).get(account)
    before = last if isinstance(last, float) else now - DAY
    since = moment(args.since, now) if args.since else before
    with reading(home) as reader:
        wrong = reader.newest_events(EventFilter(level="warning", since=since), limit=LINES) if reader else []
        facts = HomeFacts(
            str(home.root),
            since,
            now,
            reader.tasks() if reader else [],
            reader.progress(since) if reader else [],
            wrong,
        )
    document = told_of_home(facts)
    add_to_table(home.root / VISITS, {account: now})
    if args.out:
        for path in write(document, args.out.expanduser())[:2]:
            output.result(str(path))
        return output.OK
    if args.json:
        output.result_json({"since": since, "progress": [asdict(one) for one in facts.progress]})
        return output.OK
    _print(document)
    return output.OK


def _print(document: Document) -> None:
    from ...report import Table, Text

    output.result(document.title)
    output.result(document.lead)
    for section in document.sections:
        output.result(f"\n{section.title}")
        for piece in section.pieces:
            if isinstance(piece, Table):
                output.result_table(piece.headers, piece.rows, right=piece.right)
            elif isinstance(piece, Text):
                output.result(piece.words)
