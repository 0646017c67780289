"""``submit``: task files into the queue, all or none; with ``--check`` it says what would be queued."""

from __future__ import annotations

import argparse
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from ... import output
from ...words.format import line
from ..verbs import Verbs, add_verb, home_of

if TYPE_CHECKING:
    from marlaas.engine.store import Submission


def register(verbs: Verbs) -> None:
    """Add the verb."""
    submit = add_verb(verbs, "submit", run, "add task files to the queue, all or none", json=True)
    submit.add_argument("files", type=Path, nargs="+", metavar="FILE", help="task files, in TOML")
    submit.add_argument("--check", action="store_true", help="print what would be queued and change nothing")


def run(args: argparse.Namespace) -> int:
    """Check every file, start the engine if need be, check environments, then insert."""
    from marlaas.engine.submission import taskfile

    from ...home.submitting import enqueue
    from ...home.yielding import why_tasks_wait

    submissions = [submission for file in args.files for submission in taskfile.load(file)]
    if args.check:
        from .submit_check import show

        return show(home_of(args), submissions, as_json=args.json)
    ids = enqueue(home_of(args), submissions, notice=output.talk)
    if args.json:
        output.result_json({"ids": ids})
        return output.OK
    for (tenant, family), group in groupby(zip(ids, submissions, strict=True), key=lambda one: _family(one[1])):
        tasks = list(group)
        if family:
            words = f"a sweep of {len(tasks)} {'task' if len(tasks) == 1 else 'tasks'}"
            output.result(f"tasks {tasks[0][0]} to {tasks[-1][0]}: {line(tenant)}/{line(family)}, {words}")
            continue
        for number, submission in tasks:
            output.result(f"task {number}: {line(tenant)}/{line(submission.name)}, {_work(submission)}")
    output.talk(why_tasks_wait(home_of(args)) or "`marlaas` shows them; they go on when it is closed.")
    return output.OK


def _work(submission: Submission) -> str:
    """How much it is to do."""
    if submission.config["kind"] == "eval":
        return f"{submission.steps} {'version' if submission.steps == 1 else 'versions'} to measure"
    return f"{submission.steps} steps"


def _family(submission: Submission) -> tuple[str, str]:
    return submission.tenant, submission.family
