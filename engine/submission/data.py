"""Whether the rows that a task file names are there, as far as can be seen without the environment's process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ConfigError, Mistakes
from ..spec import REFUSED, data_tables, parse
from ..store import Submission
from .mistakes import of_submission


def check_data(submissions: Sequence[Submission]) -> None:
    """Raise ``ConfigError`` with the tasks and the reasons where their rows are not there, or have not their columns.

    Of JSON lines the first row is read. Other files are read by the environment's process alone, which has the
    libraries for it.
    """
    seen: set[str] = set()
    mistakes = Mistakes()
    for submission in submissions:
        for table, data in data_tables(parse(submission.config, submission.name)):
            record = data.record
            if record is None or repr(record) in seen:
                continue
            seen.add(repr(record))
            if says := missing_rows(record):
                hint = "Relative paths count from the folder of the task file."
                found = ConfigError(says, hint, where=submission.name, path=f"{table}.path", code=REFUSED)
                mistakes.found += of_submission(found, submission)
    mistakes.refuse()


def missing_rows(record: Mapping[str, Any]) -> str:
    """Why there are no rows where ``record`` says, in a sentence; empty where there are some, as far as can be seen.

    ``record``: as ``plugins.data.Source.record`` writes it.
    """
    from marlaas.plugins.data import Source, first_row  # imported only where a task names rows

    source = Source.of(record)
    for split in ("train", "eval"):
        try:
            first_row(source, split)
        except (ValueError, OSError) as error:
            return f"no rows for {split!r}: {error}."  # the other split has most likely the same reason
    return ""
