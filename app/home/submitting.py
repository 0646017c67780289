"""Validated tasks into the queue of a home: what the command line, the form and the Python client have in common.

Starts the engine where none runs; knows no terminal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from marlaas.engine.home import Home
    from marlaas.engine.store import EnvironmentRow, Submission

LOADING_SECONDS = 10.0
"""How long an environment is waited for whose file the engine has yet to read, or is loading."""


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
    """Raise where an environment is not served or its parameters do not fit; wait for those that may be on the way."""
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
                if time.monotonic() > deadline or not loading(home.plugins, environments, time.time()):
                    raise
            time.sleep(0.2)


def loading(plugins: Path, environments: Sequence[EnvironmentRow], now: float) -> bool:
    """Whether there may soon be more environments than the engine has told of.

    It loads one, does not know a plugin of the folder yet, or one of its files has changed in the last seconds: a
    script may drop a file and submit at once. ``now`` is in seconds of Unix time.
    """
    from marlaas.engine.environments import plugin_paths, shown

    known = {environment.path for environment in environments}
    return any(environment.state == "loading" for environment in environments) or any(
        shown(str(path)) not in known or _changed(path) > now - LOADING_SECONDS
        for path in plugin_paths(plugins).values()
    )


def _changed(path: Path) -> float:
    """When a file was put there or changed, whatever date a copy gave it; 0 where it is gone."""
    try:
        return path.stat().st_ctime
    except OSError:
        return 0.0
