"""A home has one base: refuses another one while tasks or adapters of the home belong to it.

Each error has a remedy. Standard library only; knows no weights and no engine.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..base import load_base
from ..errors import ConfigError, Mistakes
from ..home import Home, load_settings
from ..store import FINISHED, BoundTask, Reader, Submission
from .taskfile import of_submission

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


def check_use(home: Home, base: HomeBase, unknown: str | None) -> None:
    """Refuse ``base`` as the home's base if tasks or adapters belong to another. Raises ``ConfigError``."""
    foreign = _foreign(home, base, unknown)
    if foreign:
        raise ConfigError(
            f"the base cannot become {base.name!r}: {_belong(foreign, base)}.",
            f"Either use another home for it (`{_elsewhere(base.name)}`), or {_finish(foreign)}.",
            where=str(home.root),
        )


def check_serve(home: Home, base: HomeBase) -> None:
    """Refuse to serve ``base`` if tasks or adapters of the home belong to another. Raises ``ConfigError``."""
    foreign = _foreign(home, base, base.fingerprint)
    if foreign:
        source = "MARLAAS_BASE" if os.environ.get("MARLAAS_BASE") else home.config.name
        raise ConfigError(
            f"{source} names the base {base.name!r}, but {_belong(foreign, base)}.",
            f"Either use another home for it (`{_elsewhere(base.name)}`), or {_back(foreign, base, source)} and"
            f" {_finish(foreign)}.",
        )


def check_bases(submissions: Sequence[Submission], base: HomeBase) -> None:
    """Refuse tasks with another base than the home's. Raises ``ConfigError``."""
    mistakes = Mistakes()
    for submission in submissions:
        wish = submission.config["base"]
        try:
            same = not wish or wish == base.name or load_base(wish).fingerprint == base.fingerprint
        except ConfigError as error:
            mistakes.found += of_submission(type(error)(error.cause, error.hint, path="base"), submission)
            continue
        if not same:
            says = (
                f"The task {submission.name!r} is meant for the base {wish!r}, but this home's base is {base.name!r}."
            )
            hint = (
                f"Submit it to a home of that base (`{_elsewhere(wish)}`, then `marlaas --home DIR submit …`), or take"
                " 'base' out of the task file."
            )
            mistakes.found += of_submission(ConfigError(says, hint, path="base"), submission)
    mistakes.refuse()


def _foreign(home: Home, base: HomeBase, unknown: str | None) -> list[BoundTask]:
    with Reader(home.database) as reader:
        return foreign_tasks(reader.bound_tasks(), base.fingerprint, unknown)


def _belong(tasks: Sequence[BoundTask], base: HomeBase) -> str:
    unfinished = [task for task in tasks if task.state not in FINISHED]
    kept = [task for task in tasks if task not in unfinished]
    parts = [f"the unfinished {_listed(unfinished)}"] if unfinished else []
    parts += [f"the adapters of {_listed(kept)}"] if kept else []
    verb = "belongs" if len(tasks) == len(unfinished) == 1 else "belong"
    names = _names(tasks)
    other = "another base" + (f" ({names[0]})" if len(names) == 1 else "")
    if names == [base.name]:
        other = "what its files held before they were changed"
    return f"{' and '.join(parts)} {verb} to {other}"


def _back(tasks: Sequence[BoundTask], base: HomeBase, source: str) -> str:
    names = _names(tasks)
    if base.name in names:
        return "put the old files back"
    if source == "MARLAAS_BASE":
        return "unset MARLAAS_BASE"
    return f"go back (`marlaas base use {shlex.quote(names[0]) if names else 'NAME'}`)"


def _names(tasks: Sequence[BoundTask]) -> list[str]:
    return sorted({task.base_name for task in tasks if task.base_name})


def _listed(tasks: Sequence[BoundTask]) -> str:
    shown = ", ".join(f"{task.id} ({task.tenant}/{task.name})" for task in tasks[:NAMED])
    more = f" and {len(tasks) - NAMED} more" if len(tasks) > NAMED else ""
    return f"{'task' if len(tasks) == 1 else 'tasks'} {shown}{more}"


def _elsewhere(name: str) -> str:
    return f"marlaas --home DIR home new`, then `marlaas --home DIR base use {shlex.quote(name)}"


def _finish(tasks: Sequence[BoundTask]) -> str:
    example = tasks[0].id
    return (
        f"finish or cancel these tasks (`marlaas cancel {example}`), take their adapters away (`marlaas adapters export"
        f" {example} --out DIR`) and delete them (`marlaas adapters delete {example}`)"
    )
