"""``submit``: task files into the queue, all or none; with ``--check`` it says what would be queued."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from .. import output
from ..format import line
from .verbs import Verbs, add_verb, home_of

if TYPE_CHECKING:
    from marlaas.engine.paths import Home
    from marlaas.engine.store.submissions import Submission

LOADING_SECONDS = 5.0
"""How long an environment that is just being loaded is waited for."""


def register(verbs: Verbs) -> None:
    """Add the verb."""
    submit = add_verb(verbs, "submit", run, "add task files to the queue, all or none", json=True)
    submit.add_argument("files", type=Path, nargs="+", metavar="FILE")
    submit.add_argument("--check", action="store_true", help="print what would be queued and change nothing")


def run(args: argparse.Namespace) -> int:
    """Check every file, start the engine if need be, check environments, then insert."""
    from marlaas.engine import taskfile

    submissions = [submission for file in args.files for submission in taskfile.load(file)]
    if args.check:
        from .submit_check import show

        return show(home_of(args), submissions, as_json=args.json)
    ids = enqueue(home_of(args), submissions)
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
            output.result(f"task {number}: {line(tenant)}/{line(submission.name)}, {submission.steps} steps")
    output.talk("`marlaas` shows them; they go on when it is closed.")
    return output.OK


def _family(submission: Submission) -> tuple[str, str]:
    return submission.tenant, submission.family


def enqueue(home: Home, submissions: Sequence[Submission]) -> list[int]:
    """Put validated tasks into the queue of a home whose engine then runs; returns their numbers."""
    from marlaas.engine.daemon import control
    from marlaas.engine.dependencies import link
    from marlaas.engine.home_base import check_wish
    from marlaas.engine.store.reader import Reader
    from marlaas.engine.store.submissions import submit

    control.create_database(home)
    base = control.served_base(home)
    for submission in submissions:
        check_wish(submission.config["base"], submission.name, base)
    with Reader(home.database) as reader:
        linked = link(submissions, reader.known_tasks())
    control.ensure_running(home, notice=output.talk)
    _check_environments(home, linked)
    return submit(home.database, [replace(submission, base=base.fingerprint) for submission in linked])


def _check_environments(home: Home, submissions: Sequence[Submission]) -> None:
    """Raise where an environment is not served or its parameters do not fit; wait for those that are loading."""
    import time

    from marlaas.engine.errors import EnvironmentMissing
    from marlaas.engine.queue import check_environment
    from marlaas.engine.store.reader import Reader

    deadline = time.monotonic() + LOADING_SECONDS
    with Reader(home.database) as reader:
        while True:
            environments = reader.environments()
            try:
                for submission in submissions:
                    check_environment(submission, environments)
                return
            except EnvironmentMissing:
                loading = any(environment.state == "loading" for environment in environments)
                if not loading or time.monotonic() > deadline:
                    raise
            time.sleep(0.2)
