"""Validated tasks into the queue of a home: what the command line, the form and the Python client have in common.

Starts the engine where none runs; knows no terminal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from marlaas.engine.home import Home
    from marlaas.engine.store import Submission

LOADING_SECONDS = 5.0
"""How long an environment that is being loaded is waited for."""


def enqueue(home: Home, submissions: Sequence[Submission], notice: Callable[[str], None] | None = None) -> list[int]:
    """Put the tasks into the queue, all or none, with an engine that runs; returns their numbers.

    ``notice`` is told once where the engine takes its time. Raises ``MarlaasError``: another base than the home's, a
    dependency that nobody is, an environment that there is not, parameters that it does not take,
    rows that are not there.
    """
    from marlaas.engine.daemon import control
    from marlaas.engine.store import submit
    from marlaas.engine.submission import check_data, check_wish, find_starts, link

    from ..reading.sqlite_reader import SqliteReader

    check_data(submissions)
    control.create_database(home, notice)
    base = control.served_base(home)
    for submission in submissions:
        check_wish(submission.config["base"], submission.name, base)
    with SqliteReader(home.database) as reader:  # what writes to the database reads it, too
        linked = find_starts(link(submissions, reader.known_tasks()), reader)
    control.ensure_running(home, notice=notice)
    _check_environments(home, linked)
    return submit(home.database, [replace(submission, base=base.fingerprint) for submission in linked])


def _check_environments(home: Home, submissions: Sequence[Submission]) -> None:
    """Raise where an environment is not served or its parameters do not fit; wait for those that are loading."""
    from marlaas.engine.errors import EnvironmentMissing
    from marlaas.engine.submission import check_environments

    from ..reading.opening import opened

    deadline = time.monotonic() + LOADING_SECONDS
    with opened(home) as reader:
        while True:
            environments = reader.environments()
            try:
                check_environments(submissions, environments)
                return
            except EnvironmentMissing:
                loading = any(environment.state == "loading" for environment in environments)
                if not loading or time.monotonic() > deadline:
                    raise
            time.sleep(0.2)
