"""What can be read of a task file that is wrong: the environments that it names, to be looked up with its mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..spec import one_of_each
from ..store import Submission
from .taskfile import source_of, table_of


def sketch(path: Path) -> list[Submission]:
    """A submission that ``check_environments`` can judge and nothing else can; none where no environment is named."""
    try:
        source = source_of(path)
        table = one_of_each(table_of(source, str(path)))
    except ConfigError:
        return []  # the file's own mistake says so
    data, measure = _table(table.get("data")), _table(table.get("eval"))
    config = {
        "environment_config": _table(table.get("environment_config")),
        "mixture": list(_named(table.get("mixture"))),
        "eval": {"suite": list(_named(measure.get("suite")))},
        "data": {"path": str(data.get("path", ""))},
    }
    environment = table.get("environment")
    if not config["mixture"] and (not isinstance(environment, str) or not environment.strip()):
        return []
    played = str(environment or "")
    return [Submission("", str(table.get("name", "")), played, 1, 0, config, source, file=str(path))]


def _table(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


def _named(entries: Any) -> Iterator[dict[str, Any]]:
    """The components of a mixture, or the suites, up to the first that names no environment: places count."""
    for entry in entries if isinstance(entries, list) else ():
        one = _table(entry)
        if not isinstance(one.get("environment"), str):
            return
        yield {
            "environment": one["environment"],
            "config": _table(one.get("config")),
            "data": {"path": str(_table(one.get("data")).get("path", ""))},
            "name": str(one.get("name", one["environment"])),
        }
