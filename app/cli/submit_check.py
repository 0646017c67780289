"""``submit --check``: what task files would put into the queue, checked as far as the home can without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import output
from ..format import line

if TYPE_CHECKING:
    from marlaas.engine.paths import Home
    from marlaas.engine.store.submissions import Submission


def show(home: Home, submissions: Sequence[Submission], as_json: bool) -> int:
    """Print the tasks. Raises what ``submit`` would raise; writes nothing and starts nothing."""
    from marlaas.engine.daemon import control
    from marlaas.engine.dependencies import link
    from marlaas.engine.home_base import check_wish
    from marlaas.engine.queue import check_environment
    from marlaas.engine.starts import find_starts

    from .reading import reading

    base = control.served_base(home)
    with reading(home) as reader:
        known = reader.known_tasks() if reader else []
        environments = reader.environments() if reader else []
        linked = find_starts(link(submissions, known), reader)
    for submission in linked:
        check_wish(submission.config["base"], submission.name, base)
        if environments:
            check_environment(submission, environments)
    if not environments:
        output.talk("No engine has served this home yet, so the environments are not checked.")
    if as_json:
        output.result_json([_json(submission, linked) for submission in linked])
        return output.OK
    output.result_table(
        ("TENANT", "TASK", "ENVIRONMENT", "STEPS", "PRIORITY", "AFTER"),
        [
            (
                submission.tenant,
                submission.name,
                submission.environment,
                str(submission.steps),
                str(submission.priority),
                line(", ".join(_after(submission, linked)), 80),
            )
            for submission in linked
        ],
        right=("STEPS", "PRIORITY"),
    )
    number = "1 task" if len(linked) == 1 else f"{len(linked):,} tasks"
    output.talk(f"{number} would be queued; nothing was changed.")
    return output.OK


def _after(submission: Submission, submissions: Sequence[Submission]) -> list[str]:
    """Whom it waits for: numbers of tasks that exist, names of those beside it."""
    return [*map(str, submission.needs), *(submissions[place].name for place in submission.after)]


def _json(submission: Submission, submissions: Sequence[Submission]) -> dict[str, Any]:
    return {
        "tenant": submission.tenant,
        "name": submission.name,
        "family": submission.family,
        "environment": submission.environment,
        "steps": submission.steps,
        "priority": submission.priority,
        "depends_on": list(submission.needs),
        "after": [submissions[place].name for place in submission.after],
        "config": submission.config,
    }
