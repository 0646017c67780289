"""Task files into the queue, evaluations from a few words, and the demo's tasks."""

from __future__ import annotations

import getpass
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from marlaas.engine.daemon import control
from marlaas.engine.errors import ConfigError, Mistakes
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import load_settings
from marlaas.engine.queue.submission import taskfile
from marlaas.engine.queue.submission.queue import check_bases, check_data, check_environments
from marlaas.engine.queue.submission.references import check_rollouts, choose_at, find_starts, link
from marlaas.engine.queue.submission.taskfile import demo_tasks, environments_of, sketch
from marlaas.engine.spec.task import BASE, start_folder
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import TaskRow, VersionRow
from marlaas.engine.store.submissions import Submission, command, submit

from ..reading import opened, reading
from ..text.format import clip
from .settings_file import write_setting


def loaded(home: Home, paths: Sequence[Path]) -> list[list[Submission]]:
    """The tasks of each file. Changes nothing.

    Raises ``ConfigError`` with the mistakes of all files and of the environments that they name.
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
    """Sort key of a mistake at ``file:line:column``."""
    file, *place = where.rsplit(":", 2)
    if len(place) == 2 and file in files and all(part.isdigit() for part in place):
        return files.index(file), int(place[0]), int(place[1])
    return files.index(where) if where in files else len(files), 0, 0


def enqueue(home: Home, submissions: Sequence[Submission], notice: Callable[[str], None] | None = None) -> list[int]:
    """Put the tasks into the queue, all or none, and start an engine if need be; returns their numbers.

    ``notice`` is called once if the engine is slow. Raises as ``checked``, before an engine is started.
    """

    control.create_database(home, notice)
    linked = checked(home, submissions)
    control.ensure_running(home, notice=notice)
    base = control.served_base(home)
    return submit(home.database, [replace(submission, base=base.fingerprint) for submission in linked])


def checked(home: Home, submissions: Sequence[Submission]) -> list[Submission]:
    """The tasks as the queue takes them, references resolved. Changes nothing.

    Raises ``ConfigError`` with all mistakes: base, dependencies, versions, environments, parameters, rows.
    """

    mistakes, linked, base = Mistakes(), list(submissions), control.served_base(home)
    with mistakes:
        check_data(submissions)
    with mistakes:
        check_bases(submissions, base)
    with reading(home) as reader:
        with mistakes:
            linked = link(linked, reader.known_tasks() if reader else [])
            check_rollouts(linked, reader.known_tasks() if reader else [])
        with mistakes:
            linked = find_starts(linked, reader, base.name)
    with mistakes:
        _check_environments(home, linked)
    mistakes.refuse()
    return linked


def _check_environments(home: Home, submissions: Sequence[Submission]) -> None:
    """What the engine serves counts. If that does not fit, the plugins are read now: one may just have been saved."""
    with reading(home) as reader:
        served = reader.environments() if reader else []
    try:
        check_environments(submissions, served)
    except ConfigError:
        from .environments.peeking import environments_alone

        names = [one.name for submission in submissions for one in environments_of(submission)]
        names += [suite.environment for submission in submissions for suite in submission.spec.eval.suite]
        read = environments_alone(home, list(dict.fromkeys(names)))
        rows = {row.name: row for row in read if not row.version}  # broken, or its libraries are missing
        unread = {name.partition("/")[0] for name in rows}
        rows |= {row.name: row for row in served if row.name.partition("/")[0] in unread}
        rows |= {row.name: row for row in read if row.version}
        check_environments(submissions, list(rows.values()))


# Sampling, environment and tenant follow from the task of the first version.

NAME = 80
"""Characters of a generated name."""


def evaluation_table(
    reader: Reader | None,
    versions: Sequence[str],
    environment: str = "",
    config: Mapping[str, Any] | None = None,
    tenant: str = "",
    name: str = "",
    measure: Mapping[str, Any] | None = None,
    sampling: Mapping[str, Any] | None = None,
    queue: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The table of a task file that measures ``versions``; what is missing follows from the first version's task.

    ``environment``: by default that of the task, with its configuration and rows. ``measure``, ``sampling`` and
    ``queue``: keys of [eval], [sampling] and [queue]. Raises ``ConfigError`` without an environment, and
    ``AdapterError``.
    """
    first = _first(versions, reader)
    like = reader.task_config(first.task) if reader and first else {}
    environment = environment or like.get("environment", "")
    if not environment:
        raise ConfigError("No environment is given to measure on.", "Give --environment NAME.")
    same, data = environment == like.get("environment"), like.get("data", {})
    measure = dict(measure or {})
    if measure.get("samples", 1) > 1 and "temperature" not in measure:  # at 0 all samples would be the same
        measure["temperature"] = like.get("sampling", {}).get("temperature", 1.0)
    lengths = {key: like.get("sampling", {}).get(key) for key in ("max_tokens", "max_episode_tokens", "thinking")}
    table: dict[str, Any] = {
        "tenant": tenant or (first.tenant if first else getpass.getuser()),
        "name": name or clip(f"{', '.join(versions)} on {environment}", NAME),
        "environment": environment,
        "kind": "eval",
        "versions": list(versions),
        "environment_config": {**(like.get("environment_config", {}) if same else {}), **(config or {})},
        "sampling": {**{key: value for key, value in lengths.items() if value is not None}, **(sampling or {})},
        "eval": measure,
        "data": {key: value for key, value in data.items() if value} if same and data.get("path") else None,
        "queue": dict(queue or {}),
    }
    return {key: value for key, value in table.items() if value not in ({}, None)}


def environment_of(versions: Sequence[str], reader: Reader | None) -> str:
    """The environment of the first version's task; empty: none has one. Raises ``AdapterError``."""
    first = _first(versions, reader)
    return str(reader.task_config(first.task).get("environment", "")) if reader and first else ""


def _first(versions: Sequence[str], reader: Reader | None) -> VersionRow | None:
    of_tasks = [words for words in versions if words != BASE and start_folder(words) is None]
    if reader is None or not of_tasks:
        return None
    return choose_at(reader.versions(), of_tasks[0])


def begin(home: Home, say: Callable[[str], None], sampler: str | None = None, real: bool = False) -> list[int]:
    """Start the engine; returns the demo's tasks, new or unfinished ones.

    ``real``: tasks for a real base. Raises ``ConfigError`` if a running engine has another sampler.
    """

    submissions = demo_tasks(real)
    control.create_database(home)
    if sampler and load_settings(home).rollout.sampler != sampler:
        if control.alive(home):
            raise ConfigError(
                f"An engine runs already, and samples with something else than {sampler}.",
                f"Stop it first: `marlaas --home {shlex.quote(str(home.root))} engine stop`.",
                where=str(home.root),
            )
        write_setting(home.config, "sampler", sampler, "rollout")
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


def unfinished_run(tasks: Sequence[TaskRow], submissions: Sequence[Submission]) -> list[TaskRow]:
    """The newest unfinished demo in the queue."""
    newest = {(task.tenant, task.name): task for task in sorted(tasks, key=lambda task: task.id)}
    keys = [(submission.spec.tenant, submission.spec.name) for submission in submissions]
    run = [newest[key] for key in keys if key in newest]
    return run if len(run) == len(keys) and any(task.unfinished for task in run) else []
