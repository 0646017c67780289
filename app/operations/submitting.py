"""Task files on their way into the queue, evaluations from a few words, and the demo's tasks."""

from __future__ import annotations

import contextlib
import getpass
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from marlaas.engine.errors import ConfigError, EnvironmentMissing, Mistakes
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import load_settings
from marlaas.engine.queue.submission import taskfile
from marlaas.engine.queue.submission.queue import check_data, check_environments
from marlaas.engine.queue.submission.references import choose_at, find_starts, link
from marlaas.engine.queue.submission.taskfile import demo_tasks, environments_of, sketch
from marlaas.engine.spec.task import BASE, start_folder
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import EnvironmentRow, TaskRow, VersionRow
from marlaas.engine.store.submissions import Submission, command, submit

from ..reading import opened, reading
from ..text.format import clip

# Validated tasks into the queue of a home: what the command line, the form and the Python client have in common.
#
# Starts the engine if none runs; knows no terminal.

LOADING_SECONDS = 10.0
"""How long an environment is waited for whose file the engine has yet to read, or is loading."""
READING_SECONDS = 3.0
"""After a change of a file, how long it is waited for that the engine knows its content."""


def loaded(home: Home, paths: Sequence[Path]) -> list[list[Submission]]:
    """The tasks of each file. Changes nothing, and starts no engine.

    Raises ``ConfigError`` with the mistakes of all files, and with them what is wrong with the environments that files
    with mistakes name: who mends a file is not told half of it.
    """

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

    ``notice`` is shown once if the engine takes its time. Raises as ``checked``, and then starts no engine.
    """
    from marlaas.engine.daemon import control

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
    from marlaas.engine.queue.submission.queue import check_bases

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
    """Raise if an environment is not there or its parameters do not fit, whether an engine runs or not."""
    from marlaas.engine.daemon import control

    if control.alive(home):
        _check_served(home, submissions)
        return
    with reading(home) as reader:
        environments = reader.environments() if reader else []
    _check_unserved(home, submissions, environments)


def _check_unserved(home: Home, submissions: Sequence[Submission], environments: list[EnvironmentRow]) -> None:
    """Raise if an environment is not there or its parameters do not fit, although no engine serves them.

    What the last engine saw is believed where it fits; else the plugins are looked at as they are now.
    """

    try:
        check_environments(submissions, environments)
    except ConfigError:
        from .environments.peeking import environments_alone

        check_environments(submissions, environments_alone(home, _names(submissions)))


def _names(submissions: Sequence[Submission]) -> list[str]:
    """The environments that tasks play or are measured on, as their files call them."""

    played = [one.name for submission in submissions for one in environments_of(submission)]
    suites = [suite for submission in submissions for suite in submission.spec.eval.suite]
    return list(dict.fromkeys([*played, *(suite.environment for suite in suites)]))


def _check_served(home: Home, submissions: Sequence[Submission]) -> None:
    """Raise if an environment is not served or its parameters do not fit; wait for those that may be on the way."""

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
    from marlaas.engine.environments.files.source import plugin_paths, shown

    known = {environment.path for environment in environments}
    return any(environment.state == "loading" for environment in environments) or any(
        shown(str(path)) not in known or _changed_at(path) > now - LOADING_SECONDS
        for path in plugin_paths(plugins).values()
    )


def saved_lately(plugins: Path, environments: Sequence[EnvironmentRow], now: float) -> bool:
    """Whether a plugin was saved in the last seconds with a content that is not the version that serves.

    ``now`` is in seconds of Unix time.
    """
    from marlaas.engine.environments.files.source import SourceError, plugin_paths, read_source, shown

    serve = {(environment.path, environment.version) for environment in environments}
    for path in plugin_paths(plugins).values():
        if _changed_at(path) > now - READING_SECONDS:
            with contextlib.suppress(OSError, SourceError):
                if (shown(str(path)), read_source(path).version) not in serve:
                    return True
    return False


def _changed_at(path: Path) -> float:
    """When a file was put there or changed, whatever date a copy gave it; 0 if it is gone."""
    try:
        return path.stat().st_ctime
    except OSError:
        return 0.0


# A task that measures versions, from what a person says on a command line or in Python: the rest is found out.
#
# Whose sampling, environment and tenant are meant follows from the task of the first version that is named.

NAME = 80
"""Characters of a name that is made up."""


@dataclass(frozen=True)
class Wish:
    """What is to be measured, and how; what is absent is found out."""

    versions: Sequence[str]
    """As ``versions`` in a task file."""
    environment: str = ""
    """Empty: that of the first version's task, with its configuration and the rows that it names."""
    config: Mapping[str, Any] = field(default_factory=dict)
    tenant: str = ""
    name: str = ""
    measure: Mapping[str, Any] = field(default_factory=dict)
    """Keys of [eval]."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Keys of [sampling]; others are those of the first version's task."""
    queue: Mapping[str, Any] = field(default_factory=dict)
    """Keys of [queue]."""


def evaluation_table(wish: Wish, reader: Reader | None) -> dict[str, Any]:
    """The table of a task file. Raises ``ConfigError`` if nobody names which environment, and ``AdapterError``."""

    first = _first(wish.versions, reader)
    like = reader.task_config(first.task) if reader and first else {}
    environment = wish.environment or like.get("environment", "")
    if not environment:
        raise ConfigError("No environment is given to measure on.", "Give --environment NAME.")
    same = environment == like.get("environment")
    measure = dict(wish.measure)
    if measure.get("samples", 1) > 1 and "temperature" not in measure:  # at 0 all samples would be the same
        measure["temperature"] = like.get("sampling", {}).get("temperature", 1.0)
    sampling = {key: like.get("sampling", {}).get(key) for key in ("max_tokens", "max_episode_tokens", "thinking")}
    table: dict[str, Any] = {
        "tenant": wish.tenant or (first.tenant if first else getpass.getuser()),
        "name": wish.name or clip(f"{', '.join(wish.versions)} on {environment}", NAME),
        "environment": environment,
        "kind": "eval",
        "versions": list(wish.versions),
        "environment_config": {**(like.get("environment_config", {}) if same else {}), **wish.config},
        "sampling": {**{key: value for key, value in sampling.items() if value is not None}, **wish.sampling},
        "eval": measure,
        "data": _rows(like) if same else None,
        "queue": dict(wish.queue),
    }
    return {key: value for key, value in table.items() if value not in ({}, None)}


def _rows(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The rows that a task names; None if it draws from its environment's own."""
    data = config.get("data", {})
    return {key: value for key, value in data.items() if value} if data.get("path") else None


def environment_of(versions: Sequence[str], reader: Reader | None) -> str:
    """The environment of the task of the first version that is of one; empty if none is. Raises ``AdapterError``."""
    first = _first(versions, reader)
    return str(reader.task_config(first.task).get("environment", "")) if reader and first else ""


def _first(versions: Sequence[str], reader: Reader | None) -> VersionRow | None:
    """The first of them that is a version of a task; None if there is none."""

    of_tasks = [words for words in versions if words != BASE and start_folder(words) is None]
    if reader is None or not of_tasks:
        return None
    return choose_at(reader.versions(), of_tasks[0])


# The demo's tasks in a home: submitted once, and continued if an earlier run was cut short.
#
# For the verb, and for the guide that an empty home shows.


def begin(home: Home, say: Callable[[str], None], sampler: str | None = None, real: bool = False) -> list[int]:
    """Start the engine; returns the tasks to watch, new or of an earlier run. ``say`` is shown what happens.

    ``sampler`` goes into the home's settings; ``real``: the tasks for a real base, which the home has by then. Raises
    ``ConfigError`` if an engine there samples with another one.
    """
    from marlaas.engine.daemon import control

    submissions = demo_tasks(real)
    control.create_database(home)
    if sampler:
        _choose(home, sampler)
    with opened(home) as reader:
        earlier = unfinished_run(reader.tasks(), submissions)
    if not earlier:
        base = control.served_base(home).fingerprint
        ids = submit(home.database, [replace(each, base=base) for each in submissions])  # it begins them when it can
        control.ensure_running(home, notice=say)
        say(f"Submitted {len(ids)} tasks of as many tenants.")
        return ids
    say("Going on with the tasks of an earlier run, from their last steps.")
    control.ensure_running(home, notice=say)
    for task in earlier:
        if task.state == "paused":
            command(home.database, "resume", task.id)
    return [task.id for task in earlier]


def _choose(home: Home, sampler: str) -> None:
    """Have the home's engine sample with ``sampler``."""
    from marlaas.engine.daemon import control

    from .settings_file import write_sampler

    if load_settings(home).rollout.sampler == sampler:
        return
    if control.alive(home):
        raise ConfigError(
            f"An engine runs already, and samples with something else than {sampler}.",
            f"Stop it first: `marlaas --home {shlex.quote(str(home.root))} engine stop`.",
            where=str(home.root),
        )
    write_sampler(home.config, sampler)


def unfinished_run(tasks: Sequence[TaskRow], submissions: Sequence[Submission]) -> list[TaskRow]:
    """The newest demo in the queue if it has not ended; tasks of other tenants are ignored."""
    newest = {(task.tenant, task.name): task for task in sorted(tasks, key=lambda task: task.id)}
    found = [newest.get((submission.spec.tenant, submission.spec.name)) for submission in submissions]
    run = [task for task in found if task is not None]
    whole = len(run) == len(submissions)
    return run if whole and any(task.unfinished for task in run) else []
