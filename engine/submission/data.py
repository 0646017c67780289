"""Whether the rows that a task file names are there, as far as can be seen without the environment's process."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ConfigError, Mistakes
from ..spec import REFUSED, parse
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
        record = parse(submission.config, submission.name).data.record
        if record is None or repr(record) in seen:
            continue
        seen.add(repr(record))
        from marlaas.plugins.data import Source, first_row  # imported only where a task names rows

        source = Source.of(record)
        for split in ("train", "eval"):
            try:
                first_row(source, split)
            except (ValueError, OSError) as error:
                says = f"no rows for {split!r}: {error}."
                hint = "See [data] in the task file; relative paths count from its folder."
                found = ConfigError(says, hint, where=submission.name, path="data.path", code=REFUSED)
                mistakes.found += of_submission(found, submission)
                break  # the other split has most likely the same reason
    mistakes.refuse()
