"""Validated tasks into the queue of a home: what the command line, the form and the Python client have in common.

Starts the engine where none runs; knows no terminal.
"""

from __future__ import annotations

import contextlib
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
READING_SECONDS = 3.0
"""After a change of a file, how long it is waited for that the engine knows its content."""


def loaded(home: Home, paths: Sequence[Path]) -> list[list[Submission]]:
    """The tasks of each file. Changes nothing, and starts no engine.

    Raises ``ConfigError`` with the mistakes of all files, and with them what is wrong with the environments that files
    with mistakes name: who mends a file is not told half of it.
    """
    from marlaas.engine.errors import Mistakes
    from marlaas.engine.submission import sketch, taskfile

    mistakes, found, wrong = Mistakes(), [], []
    for path in paths:
        before = len(mistakes.found)
        with mistakes:
            found.append(taskfile.load(path))
        if len(mistakes.found) > before:
            wrong += sketch(path)
    if wrong:
        with mistakes:
            _check_environments(home, wrong)
    files = [str(path) for path in paths]
    mistakes.found.sort(key=lambda mistake: _place(mistake.where, files))
    mistakes.refuse()
    return found


def _place(where: str, files: Sequence[str]) -> tuple[int, int, int]:
    """Of a mistake at ``file:line:column``: the place of its file among ``files``, and its line and column."""
    file, *place = where.rsplit(":", 2)
    if len(place) == 2 and file in files and all(part.isdigit() for part in place):
        return files.index(file), int(place[0]), int(place[1])
    return files.index(where) if where in files else len(files), 0, 0


def enqueue(home: Home, submissions: Sequence[Submission], notice: Callable[[str], None] | None = None) -> list[int]:
    """Put the tasks into the queue, all or none, with an engine that runs; returns their numbers.

    ``notice`` is told once where the engine takes its time. Raises as ``checked``, and then starts no engine.
    """
    from marlaas.engine.daemon import control
    from marlaas.engine.store import submit

    control.create_database(home, notice)
    linked = checked(home, submissions)
    control.ensure_running(home, notice=notice)
    _check_served(home, linked)
    base = control.served_base(home)
    return submit(home.database, [replace(submission, base=base.fingerprint) for submission in linked])


def checked(home: Home, submissions: Sequence[Submission]) -> list[Submission]:
    """The tasks with what their files refer to, as the queue takes them. Changes nothing, and starts no engine.

    Raises ``ConfigError`` with all mistakes: another base than the home's, a dependency or a version that there is not,
    an environment that there is not, parameters that it does not take, rows that are not there.
    """
    from marlaas.engine.daemon import control
    from marlaas.engine.errors import Mistakes
    from marlaas.engine.submission import check_bases, check_data, find_starts, link

    from ..reading.opening import reading

    mistakes, linked = Mistakes(), list(submissions)
    with mistakes:
        check_data(submissions)
    with mistakes:
        check_bases(submissions, control.served_base(home))
    with reading(home) as reader:
        with mistakes:
            linked = link(linked, reader.known_tasks() if reader else [])
        with mistakes:
            linked = find_starts(linked, reader)
    with mistakes:
        _check_environments(home, linked)
    mistakes.refuse()
    return linked


def _check_environments(home: Home, submissions: Sequence[Submission]) -> None:
    """Raise where an environment is not there or its parameters do not fit, whether an engine runs or not."""
    from marlaas.engine.daemon import control

    from ..reading.opening import reading

    if control.alive(home):
        _check_served(home, submissions)
        return
    with reading(home) as reader:
        environments = reader.environments() if reader else []
    _check_unserved(home, submissions, environments)


def _check_unserved(home: Home, submissions: Sequence[Submission], environments: list[EnvironmentRow]) -> None:
    """Raise where an environment is not there or its parameters do not fit, although no engine serves them.

    What the last engine saw is believed where it fits; else the plugins are looked at as they are now.
    """
    from marlaas.engine.errors import ConfigError
    from marlaas.engine.submission import check_environments

    try:
        check_environments(submissions, environments)
    except ConfigError:
        from .environments.peeking import environments_alone

        check_environments(submissions, environments_alone(home, _names(submissions)))


def _names(submissions: Sequence[Submission]) -> list[str]:
    """The environments that tasks play or are measured on, as their files call them."""
    from marlaas.engine.submission import environments_of

    played = [one.name for submission in submissions for one in environments_of(submission)]
    suites = [suite for submission in submissions for suite in submission.config.get("eval", {}).get("suite", ())]
    return list(dict.fromkeys([*played, *(suite["environment"] for suite in suites)]))


def _check_served(home: Home, submissions: Sequence[Submission]) -> None:
    """Raise where an environment is not served or its parameters do not fit; wait for those that may be on the way."""
    from marlaas.engine.errors import ConfigError, EnvironmentMissing
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
            except ConfigError:  # the content that was saved a moment ago may have that parameter
                if not saved_lately(home.plugins, environments, time.time()):
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
        shown(str(path)) not in known or _changed_at(path) > now - LOADING_SECONDS
        for path in plugin_paths(plugins).values()
    )


def saved_lately(plugins: Path, environments: Sequence[EnvironmentRow], now: float) -> bool:
    """Whether a plugin was saved in the last seconds with a content that is not the version that serves.

    ``now`` is in seconds of Unix time.
    """
    from marlaas.engine.environments import SourceError, plugin_paths, read_source, shown

    serve = {(environment.path, environment.version) for environment in environments}
    for path in plugin_paths(plugins).values():
        if _changed_at(path) > now - READING_SECONDS:
            with contextlib.suppress(OSError, SourceError):
                if (shown(str(path)), read_source(path).version) not in serve:
                    return True
    return False


def _changed_at(path: Path) -> float:
    """When a file was put there or changed, whatever date a copy gave it; 0 where it is gone."""
    try:
        return path.stat().st_ctime
    except OSError:
        return 0.0
