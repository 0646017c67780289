"""Checks a submission against the served environments, its rows, and the home's base."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError, EnvironmentMissing, Mistakes, as_one
from ...home.paths import Home
from ...home.settings import load_settings
from ...models.find import load_base
from ...spec.rules import check_declared, data_tables
from ...spec.task import components_of
from ...spec.validation import CHOICE, MISSING, REFUSED, UNKNOWN, fault, nearest
from ...store.queries.reader import Reader
from ...store.rows import FINISHED, BoundTask, EnvironmentRow
from ...store.submissions import Submission
from .taskfile import distinct, of_submission


def check_data(submissions: Sequence[Submission]) -> None:
    """Raise ``ConfigError`` with the tasks and the reasons if their rows or columns are missing.

    Of JSON lines the first row is read. Other files are read only by the environment's process, which has the libraries
    for it.
    """
    tables = {repr(data): (one, table, data) for one in submissions for table, data in data_tables(one.spec)}
    mistakes = Mistakes()
    for one, table, data in tables.values():
        if data.record is not None and (says := missing_rows(data.record)):
            hint = "Relative paths count from the folder of the task file."
            error = ConfigError(says, hint, where=one.spec.name, path=f"{table}.path", code=REFUSED)
            mistakes.found += of_submission(error, one)
    mistakes.refuse()


def missing_rows(record: Mapping[str, Any]) -> str:
    """Why ``record`` leads to no rows, in a sentence; empty if nothing is wrong as far as can be seen.

    ``record``: in the form of ``plugins.data.Source.record``.
    """
    from marlaas.plugins.data import Source, first_row  # imported only if a task names rows

    source = Source.of(record)
    for split in ("train", "eval"):
        try:
            first_row(source, split)
        except (ValueError, OSError) as error:
            return f"no rows for {split!r}: {error}."  # the other split most likely has the same reason
    return ""


# Environments.


def find_environment(name: str, environments: list[EnvironmentRow], path: str = "environment") -> EnvironmentRow:
    """The environment of a task file, by "plugin/environment" or only its last part.

    A plugin that has not served yet stands for all environments of its name. Raises ``EnvironmentMissing`` if none or
    several match.
    """
    matches = [e for e in environments if e.name == name] or [
        e for e in environments if e.name.rpartition("/")[2] == name
    ]
    plugin = name.partition("/")[0]
    matches = [e for e in matches if e.version] or matches  # serving ones go first
    matches = matches or [e for e in environments if not e.version and e.name.partition("/")[0] == plugin][:1]
    if len(matches) == 1:
        return matches[0]
    says, hint = f"There is no environment {name!r}.", "`marlaas env new NAME` writes one."
    if matches:
        says = f"The environment name {name!r} is ambiguous: {', '.join(e.name for e in matches)}."
        hint = "Write the whole name."
    elif environments:
        whole = {e.name for e in environments if "/" in name}
        hint = nearest(name, sorted({e.name.rpartition("/")[2] for e in environments} | whole))
    raise EnvironmentMissing(says, hint, path=path, code=CHOICE)


def check_environments(submissions: Sequence[Submission], environments: list[EnvironmentRow]) -> None:
    """``check_environment`` of each.

    Raises ``ConfigError`` with all mistakes, each with its task or its place in a file.
    """
    mistakes: list[ConfigError] = []
    for one in submissions:
        try:
            check_environment(one, environments)
        except ConfigError as error:
            found = of_submission(error, one)
            named = len(submissions) > 1 and not one.file
            mistakes += [mistake.at(one.spec.name) for mistake in found] if named else found
    if mistakes:
        raise as_one(distinct(mistakes))


def check_environment(submission: Submission, environments: list[EnvironmentRow]) -> None:
    """Refuse a submission with impossible environments or configurations.

    Raises ``EnvironmentMissing`` or ``ConfigError``, with all mistakes. A broken environment is allowed: the task waits
    for its repair.
    """
    spec, mistakes = submission.spec, Mistakes()
    for place, part in enumerate(components_of(spec).values()):
        table = f"mixture[{place}]." if spec.mixture else ""
        with mistakes:
            served = find_environment(part.environment, environments, f"{table}environment")
            config, rows = f"{table}config" if table else "environment_config", f"{table}data"
            mistakes.found += _faults(served, part.environment_config, config, bool(part.data.path), rows)
            if served.version and not served.rows and spec.train.sampling == "difficulty":
                says = f"{_no_rows(served)}, so 'train.sampling' has none to choose from."
                hint = "Leave 'train.sampling' out."
                mistakes.found.append(fault("train.sampling", says, hint, code=REFUSED))
            if served.version and (spec.policies or spec.kind == "eval"):
                check_declared(part, served.agents)
    for place, suite in enumerate(spec.eval.suite):
        of_suite, table = Mistakes(), f"eval.suite[{place}]"
        with of_suite:
            served = find_environment(suite.environment, environments, f"{table}.environment")
            has_rows = bool(suite.data.path or (suite.environment == spec.environment and spec.data.path))
            of_suite.found += _faults(served, suite.config, f"{table}.config", has_rows, f"{table}.data")
        for mistake in of_suite.found:
            says = f"The suite {suite.name!r}: {mistake.cause}"
            mistakes.found.append(type(mistake)(says, mistake.hint, path=mistake.path, code=mistake.code))
    mistakes.refuse()


def _faults(
    served: EnvironmentRow, config: Mapping[str, Any], table: str, has_rows: bool, rows: str
) -> Iterator[ConfigError]:
    """What an environment does not take; ``table`` and ``rows``: the tables of its parameters and of its data."""
    from marlaas.plugins.parameters import Parameter, checked  # loads the plugins' API

    if not served.version:
        return
    known = {p["name"]: Parameter(**{**p, "choices": tuple(p.get("choices", ()))}) for p in served.parameters}
    for key, value in config.items():
        path = f"{table}.{key}"
        if key not in known:
            says = f"The environment {served.name!r} has no parameter {key!r}."
            yield fault(path, says, nearest(key, list(known)), code=UNKNOWN)
            continue
        try:
            checked(known[key], value, served.name)
        except ValueError as error:
            yield fault(path, str(error), code=REFUSED)
    if missing := [name for name, parameter in known.items() if parameter.required and name not in config]:
        says = f"The environment {served.name!r} needs {', '.join(missing)} in [{table}]."
        yield fault(f"{table}.{missing[0]}", says, code=MISSING)
    if has_rows and not served.rows:
        yield fault(f"{rows}.path", f"{_no_rows(served)}, so '{rows}.path' would have no effect.", code=REFUSED)
    if not has_rows and served.rows == "task":
        below = re.sub(r"\[\d+\]", "", rows)
        hint = f"Name some as 'path' below [{below}]{'' if rows == 'data' else ', behind its own table'}."
        yield fault(f"{rows}.path", f"The environment {served.name!r} has no rows of its own.", hint, code=MISSING)


def _no_rows(served: EnvironmentRow) -> str:
    return f"The environment {served.name!r} draws its tasks from no rows"


# The base of a home: its unfinished tasks and kept adapters belong to it.

NAMED = 3
"""Most tasks that an error names; of more it gives the number."""


@dataclass(frozen=True)
class HomeBase:
    """The base of a home."""

    name: str
    fingerprint: str


def settled_base(home: Home) -> HomeBase:
    """The base in the home's settings. Raises ``ConfigError`` if it cannot be used."""
    name = load_settings(home).base
    return HomeBase(name, load_base(name).fingerprint)


def foreign_tasks(tasks: Iterable[BoundTask], fingerprint: str, unknown: str | None) -> list[BoundTask]:
    """The tasks that belong to another base than ``fingerprint``.

    ``unknown`` is the fingerprint assumed for tasks without a recorded one; with None these are foreign.
    """
    return [task for task in tasks if (task.base or unknown) != fingerprint]


def check_use(home: Home, base: HomeBase, unknown: str | None, serves: bool = False) -> None:
    """Refuse ``base`` as the home's base if tasks or adapters belong to another. Raises ``ConfigError``.

    ``unknown`` as in ``foreign_tasks``; ``serves``: the settings name the base, and an engine is to serve it.
    """
    with Reader(home.database) as reader:
        tasks = foreign_tasks(reader.bound_tasks(), base.fingerprint, unknown)
    if not tasks:
        return
    names = sorted({task.base_name for task in tasks if task.base_name})
    unfinished = [task for task in tasks if task.state not in FINISHED]
    finished = [task for task in tasks if task.state in FINISHED]
    parts = [f"the unfinished {_listed(unfinished)}"] if unfinished else []
    parts += [f"the adapters of {_listed(finished)}"] if finished else []
    other = "what its files held before they were changed"
    if names != [base.name]:
        other = "another base" + (f" ({names[0]})" if len(names) == 1 else "")
    belong = f"{' and '.join(parts)} {'belongs' if len(tasks) == len(unfinished) == 1 else 'belong'} to {other}"
    source = "MARLAAS_BASE" if os.environ.get("MARLAAS_BASE") else home.config.name
    back = f"go back (`marlaas base use {shlex.quote(names[0]) if names else 'NAME'}`)"
    if base.name in names:
        back = "put the old files back"
    elif source == "MARLAAS_BASE":
        back = "unset MARLAAS_BASE"
    example = tasks[0].id
    finish = (
        f"finish or cancel these tasks (`marlaas cancel {example}`), take their adapters away (`marlaas adapters export"
        f" {example} --out DIR`) and delete them (`marlaas adapters delete {example}`)"
    )
    says = f"{source} names the base {base.name!r}, but" if serves else f"the base cannot become {base.name!r}:"
    hint = f"Either use another home for it (`{_elsewhere(base.name)}`), or {f'{back} and ' if serves else ''}{finish}."
    raise ConfigError(f"{says} {belong}.", hint, where="" if serves else str(home.root))


def check_bases(submissions: Sequence[Submission], base: HomeBase) -> None:
    """Refuse tasks with another base than the home's. Raises ``ConfigError``."""
    mistakes = Mistakes()
    for one in submissions:
        wish, error = one.spec.base, None
        try:
            if wish and wish != base.name and load_base(wish).fingerprint != base.fingerprint:
                says = f"The task {one.spec.name!r} is meant for the base {wish!r}, but this home's base is"
                hint = (
                    f"Submit it to a home of that base (`{_elsewhere(wish)}`, then `marlaas --home DIR submit …`), or"
                    " take 'base' out of the task file."
                )
                error = ConfigError(f"{says} {base.name!r}.", hint, path="base")
        except ConfigError as unreadable:
            error = type(unreadable)(unreadable.cause, unreadable.hint, path="base")
        mistakes.found += of_submission(error, one) if error else ()
    mistakes.refuse()


def _listed(tasks: Sequence[BoundTask]) -> str:
    shown = ", ".join(f"{task.id} ({task.tenant}/{task.name})" for task in tasks[:NAMED])
    more = f" and {len(tasks) - NAMED} more" if len(tasks) > NAMED else ""
    return f"{'task' if len(tasks) == 1 else 'tasks'} {shown}{more}"


def _elsewhere(name: str) -> str:
    return f"marlaas --home DIR home new`, then `marlaas --home DIR base use {shlex.quote(name)}"
