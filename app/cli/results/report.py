"""``report``: tasks in one folder that opens anywhere: configuration, curves, scores, rollouts, cost."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from ... import output
from ..choosing import add_policy, add_tasks, chosen, faces
from ..verbs import Verbs, add_verb, home_of


def register(verbs: Verbs) -> None:
    """Add the verb."""
    report = add_verb(
        verbs,
        "report",
        run,
        "write a report of tasks: report.html with its plots in one file, and report.md",
        json=True,
        epilog="Several tasks are compared. The page has no script, fetches nothing, and opens anywhere. An earlier"
        " report in the folder is replaced.",
    )
    add_tasks(report)
    add_policy(report)
    report.add_argument("--out", type=Path, metavar="DIR", help="the folder (default: report-ID here)")


def run(args: argparse.Namespace) -> int:
    """Write it, and print where it is."""
    from ...reading.opening import find_task, reading
    from ...report import facts_of, told, write

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
