"""What the form is filled from, and what its tasks will take."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from marlaas.engine.environments import plugin_paths
from marlaas.engine.errors import ConfigError, MarlaasError
from marlaas.engine.home import BUNDLED_PLUGINS, Home, load_settings
from marlaas.engine.spec import TaskSpec
from marlaas.engine.store import EnvironmentRow, Submission
from marlaas.engine.submission import taskfile

from ..home.task_text import without_steps
from ..reading.home_reader import HomeReader
from ..reading.opening import reading
from ..words.format import line
from .fields import Choice, of_bases, of_environments, of_versions

# What the form is filled from: environments that are served, who submits here, and the task that it is a copy of.
#
# Reads the store and folders, writes nothing. Without an engine only the names of plugins are known.


@dataclass(frozen=True)
class Sources:
    """What a form is filled from."""

    environments: tuple[EnvironmentRow, ...] = ()
    """Empty where no engine has looked for any."""
    choices: tuple[Choice, ...] = ()
    """Environments, or plugins where no engine has looked for environments."""
    bases: tuple[Choice, ...] = ()
    starts: tuple[Choice, ...] = ()
    """Versions that training can begin from."""
    tenants: tuple[str, ...] = ()
    """Tenants of the home, the one who submitted last first."""
    table: dict[str, Any] | None = None
    """Table of the task to be copied."""
    problem: str = ""
    """Why something is missing, in a sentence."""


def read_sources(home: Home, copy_from: int | None) -> Sources:
    """Read them; a home that cannot be read is a sentence in the answer."""
    try:
        with reading(home) as reader:
            environments = tuple(reader.environments()) if reader else ()
            tenants = _tenants(reader)
            table = copied(reader, copy_from) if reader and copy_from is not None else None
            starts = of_versions(reader.kept_versions(reader.kept_marks())) if reader else ()
    except MarlaasError as error:
        return Sources(problem=str(error))
    choices = of_environments(environments, _plugins(home) if not environments else ())
    return Sources(environments, choices, _bases(home), starts, tenants, table)


def _bases(home: Home) -> tuple[Choice, ...]:
    from marlaas.engine.base import SHIPPED, cached_bases

    with suppress(MarlaasError):  # settings that cannot be read are told by whoever submits
        return of_bases(load_settings(home).base, (*SHIPPED, *(base.name for base in cached_bases())))
    return ()


def copied(reader: HomeReader, task: int) -> dict[str, Any] | None:
    """The table that a task was made from, without defaults; of a sweep's member, the table of that member alone."""
    row, config = reader.task(task), reader.task_config(task)
    if row is None:
        return None
    source = reader.task_source(task)
    if source and not row.family:
        with suppress(ConfigError):
            return taskfile.table_of(source, "the task file")
    return _said(without_steps(config), asdict(TaskSpec("", "", "")))


def _said(table: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """What differs from the defaults."""
    kept = {}
    for key, value in table.items():
        usual = defaults.get(key)
        if isinstance(value, dict) and isinstance(usual, dict):
            value = _said(value, usual)
        if value not in (usual, None, {}, []):
            kept[key] = value
    return kept


def _tenants(reader: HomeReader | None) -> tuple[str, ...]:
    known = [task.tenant for task in reversed(reader.tasks())] if reader else []
    with suppress(KeyError, OSError, ImportError):  # a user without a name, as in some containers
        known.append(getpass.getuser())
    return tuple(dict.fromkeys(known))


def _plugins(home: Home) -> tuple[str, ...]:
    found = {name for folder in (BUNDLED_PLUGINS, home.plugins) for name in plugin_paths(folder)}
    return tuple(sorted(found))


# What the tasks of a form will take and be asked: worked out in a thread while the form is filled.
#
# The answer is safe lines; whatever goes wrong is a sentence among them, never an exception.


@dataclass(frozen=True)
class Prospect:
    """What the tasks will take."""

    rows: tuple[tuple[str, str], ...] = ()
    """Pairs of a resource and how much of it."""
    problem: str = ""


@dataclass(frozen=True)
class Prompts:
    """What the model will be asked in an environment."""

    environment: str
    lines: tuple[str, ...] = ()
    parameters: tuple[dict[str, Any], ...] = ()
    """Parameters of the environment, as the store keeps them."""


def prospect(home: Home, submissions: Sequence[Submission]) -> Prospect:
    """Estimate what the tasks will take."""
    from ..home.estimating import estimate_all, told

    try:
        estimates = estimate_all(home, submissions)
    except (MarlaasError, OSError) as error:
        return Prospect(problem=line(str(error)))
    return Prospect(tuple(told(estimates, [each.environment for each in submissions])))


def prompts(home: Home, environment: str, config: dict[str, Any], data: dict[str, Any] | None = None) -> Prompts:
    """Look at the first prompts of an environment, with ``data`` in place of its own rows; takes a second."""
    from ..home.environments.peeking import peeked, prompt_lines

    problem = ""
    try:
        try:
            peek = peeked(home, environment, config, data=data)
        except ConfigError as error:  # the parameters are wrong, but which ones there are can still be known
            problem = str(error)
            peek = peeked(home, environment, {}, count=0)
    except (MarlaasError, OSError) as error:
        return Prompts(environment, (line(str(error)),))
    shown = []
    for number, ask in enumerate(peek.asks, 1):
        shown += [f"{number}.", *prompt_lines(ask), ""]
    if problem := problem or peek.problem:
        shown.append(line(problem))
    return Prompts(environment, tuple(shown), tuple(asdict(parameter) for parameter in peek.info.parameters))
