"""``--rows FILE``: what an environment draws its tasks from, in place of its own rows."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def add_rows(parser: argparse.ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument(
        "--rows",
        metavar="FILE",
        default="",
        help="the rows to draw tasks from: a file of rows, or a task file that names some below [data]",
    )


def rows_named(file: str, environment: str) -> dict[str, Any] | None:
    """The rows that ``file`` means for an environment, as ``plugins.data.Source.record`` writes them; None where it is
    empty. Raises ``ConfigError`` where there are none, as far as can be seen."""
    from pathlib import Path

    from marlaas.engine.errors import ConfigError
    from marlaas.engine.spec import DataSpec
    from marlaas.engine.submission import missing_rows

    if not file:
        return None
    path = Path(file).expanduser().absolute()
    record = _of_task_file(path, environment) if path.suffix == ".toml" else DataSpec(path=str(path)).record
    if record is None:
        raise ConfigError(f"names no rows for {environment}.", "Name some as 'path' below its [data].", where=file)
    if missing := missing_rows(record):
        raise ConfigError(missing, "--rows takes a file of rows, or a task file that names some.")
    return record


def _of_task_file(path: Path, environment: str) -> dict[str, Any] | None:
    """The first rows that a task file names for an environment."""
    from marlaas.engine.submission import environments_of, taskfile

    names = {environment, environment.rpartition("/")[2]}
    played = (one for task in taskfile.load(path) for one in environments_of(task))
    return next((one.data for one in played if one.name in names and one.data), None)
