"""Checks a submission against environments, rows, and base."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import AdapterError, BaseModelError, ConfigError, EnvironmentMissing, Mistakes, as_one
from ...home.paths import Home
from ...home.settings import load_settings
from ...models.config import FAMILIES
from ...models.find import load_base
from ...models.weights import check_teacher, linear_shapes, targeted
from ...spec.losses import DPO, SFT
from ...spec.rules import check_declared, data_tables, environments_named
from ...spec.task import DEMONSTRATIONS, agent_map_of, components_of, rollouts_of, start_folder
from ...spec.validation import CHOICE, MISSING, REFUSED, UNKNOWN, fault, nearest
from ...store.queries.reader import Reader
from ...store.rows import FINISHED, BoundTask, EnvironmentRow
from ...store.submissions import Submission
from .taskfile import distinct, of_submission


def check_data(submissions: Sequence[Submission]) -> None:
    """Raise ``ConfigError`` for missing rows or columns.

    Reads the first row of JSON lines. Only the environment's process has libraries for other files.
    """
    tables = {repr(data): (one, table, data) for one in submissions for table, data in data_tables(one.spec)}
    mistakes = Mistakes()
    for one, table, data in tables.values():
        shown = one.spec.environment if table == "data" else ""
        if data.record is not None and rollouts_of(data.path) is None and (says := missing_rows(data.record, shown)):
            hint = "Relative paths count from the folder of the task file."
            error = ConfigError(says, hint, where=one.spec.name, path=f"{table}.path", code=REFUSED)
            mistakes.found += of_submission(error, one)
    mistakes.refuse()


def missing_rows(record: Mapping[str, Any], environment: str = "") -> str:
    """Why no rows, in a sentence; empty: nothing seems wrong.

    ``record``: as ``plugins.data.Source.record``; those of an environment of demonstrations have their form.
    """
    from marlaas.plugins.conversations import conversation_of, pair_of  # imported only if a task names rows
    from marlaas.plugins.data import Source, first_row

    forms: dict[str, Callable[[Any], object]] = {DEMONSTRATIONS[SFT]: conversation_of, DEMONSTRATIONS[DPO]: pair_of}
    check = forms.get(environment, repr)
    source = Source.of(record)
    for split in ("train", "eval"):
        try:
            first_row(source, split, check)
        except (ValueError, OSError) as error:
            return f"no rows for {split!r}: {error}."  # the other split most likely has the same reason
    return ""


def find_environment(name: str, environments: list[EnvironmentRow], path: str = "environment") -> EnvironmentRow:
    """The environment that a name stands for. Raises ``EnvironmentMissing`` for none or several."""
    matches = environments_named(name, environments)
    if len(matches) == 1:
        return matches[0]
    says, hint = f"There is no environment {name!r}.", "`marlaas env new NAME` writes one."
    if matches := matches or [e for e in environments if e.name.partition("/")[0] == name]:
        says = f"The environment {name!r} could be {' or '.join(e.name for e in matches)}."
        hint = "Write its full name."
    elif environments:
        whole = {e.name for e in environments if "/" in name}
        hint = nearest(name, sorted({e.name.rpartition("/")[2] for e in environments} | whole))
        if unread := [e.name for e in environments if not e.version and e.state != "hidden"]:
            example = f"{unread[0]}/{name.rpartition('/')[2]}"
            hint += f" Those of {', '.join(unread)} are not known yet: write `{example}` if it is one of them."
    raise EnvironmentMissing(says, hint, path=path, code=CHOICE)


def check_environments(submissions: Sequence[Submission], environments: list[EnvironmentRow]) -> None:
    """``check_environment`` of each.

    Raises ``ConfigError`` with all mistakes, each with its task or place.
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
    """Refuse impossible environments or configurations.

    Raises ``EnvironmentMissing`` or ``ConfigError`` with all mistakes. For a broken environment the task waits.
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


NAMED = 3
"""Tasks in an error."""


@dataclass(frozen=True)
class HomeBase:
    """Of its unfinished tasks and kept adapters."""

    name: str
    fingerprint: str


def settled_base(home: Home) -> HomeBase:
    """By the settings. Raises ``ConfigError`` if unusable."""
    name = load_settings(home).base
    return HomeBase(name, load_base(name).fingerprint)


def check_use(home: Home, base: HomeBase, unknown: str | None) -> None:
    """Raise ``ConfigError`` if tasks or adapters have another base.

    ``unknown``: the base of tasks without one; with None these have another.
    """
    with Reader(home.database) as reader:
        tasks = [task for task in reader.bound_tasks() if (task.base or unknown) != base.fingerprint]
    if not tasks:
        return
    names = sorted({task.base_name for task in tasks if task.base_name})
    unfinished = [task for task in tasks if task.state not in FINISHED]
    finished = [task for task in tasks if task.state in FINISHED]
    parts = [f"the unfinished {_listed(unfinished)}"] if unfinished else []
    parts += [f"the adapters of {_listed(finished)}"] if finished else []
    replaced = base.name in names
    earlier = "what its files held before" if replaced else f"another base ({', '.join(names) or 'unknown'})"
    use = f"`marlaas base use {shlex.quote(names[0]) if names else 'NAME'}`; MARLAAS_BASE counts more"
    back = "Put the old files back" if replaced else f"Give the home its earlier base ({use})"
    example = tasks[0].id
    raise ConfigError(
        f"the base cannot be {base.name!r}: this home has {' and '.join(parts)} of {earlier}.",
        f"{back}, use another home for this one (`{_elsewhere(base.name)}`), or"
        f" finish or cancel these tasks (`marlaas cancel {example}`), take their adapters away"
        f" (`marlaas adapters export {example} --out DIR`) and delete them (`marlaas adapters delete {example}`).",
        where=str(home.root),
    )


def check_bases(submissions: Sequence[Submission], base: HomeBase) -> None:
    """Raise ``ConfigError`` for tasks of another base, and for layers that this one has not."""
    mistakes = Mistakes()
    for one in submissions:
        wish = one.spec.base
        try:
            if wish and wish != base.name and load_base(wish).fingerprint != base.fingerprint:
                says = f"The task {one.spec.name!r} is meant for the base {wish!r}, but this home's base is"
                raise ConfigError(
                    f"{says} {base.name!r}.",
                    f"Submit it to a home of that base (`{_elsewhere(wish)}`, then `marlaas --home DIR submit …`), or"
                    " take 'base' out of the task file.",
                )
        except ConfigError as error:
            mistakes.found += of_submission(type(error)(error.cause, error.hint, path="base"), one)
        teacher = start_folder(one.spec.train.kl_reference)
        try:
            if teacher is not None:
                check_teacher(teacher, load_base(base.name).path)
        except BaseModelError as error:
            mistakes.found += of_submission(ConfigError(error.message, error.hint, path="train.kl_reference"), one)
        for name, policy in agent_map_of(one.spec).policies.items():
            try:
                if policy.target_names:
                    _check_targets(base.name, policy.target_names)
            except AdapterError as error:
                path = f"policies.{name}.targets" if one.spec.policies else "policy.targets"
                mistakes.found += of_submission(ConfigError(error.cause, error.hint, path=path), one)
    mistakes.refuse()


def _check_targets(base: str, targets: Sequence[str]) -> None:
    """Raises ``AdapterError``. The trainer checks other families, whose layers only transformers knows."""
    config = load_base(base).config
    if config.architecture in FAMILIES:
        targeted([module for module in linear_shapes(config) if module != "lm_head"], targets)


def _listed(tasks: Sequence[BoundTask]) -> str:
    shown = ", ".join(f"{task.id} ({task.tenant}/{task.name})" for task in tasks[:NAMED])
    more = f" and {len(tasks) - NAMED} more" if len(tasks) > NAMED else ""
    return f"{'task' if len(tasks) == 1 else 'tasks'} {shown}{more}"


def _elsewhere(name: str) -> str:
    return f"marlaas --home DIR home new`, then `marlaas --home DIR base use {shlex.quote(name)}"
