"""``compare``: what tasks have come to, and in what they differ, side by side."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ... import output
from ...words.format import count, duration, line, score
from ...words.held_out import rests_on, with_error
from ..choosing import add_policy, add_tasks, chosen, faces
from ..verbs import Verbs, add_verb, home_of

if TYPE_CHECKING:
    from marlaas.engine.store import TaskRow

    from ...home.results import Scored
    from ...reading.home_reader import HomeReader

NAMED = ("tenant", "name", "environment")
"""Keys left out of the comparison: the table of results has them."""
CELLS = 28
"""Cells of one value; `marlaas show ID --json` has all of it."""


@dataclass(frozen=True)
class Compared:
    """One task of the comparison, or one of the policies that it trains."""

    row: TaskRow
    policy: str
    """Empty where the task has only one."""
    config: dict[str, Any]
    measured_on: str
    """The series of its newest held-out score; scores of different series do not compare."""


def register(verbs: Verbs) -> None:
    """Add the verb."""
    compare = add_verb(verbs, "compare", run, "show results of tasks and what they differ in, side by side", json=True)
    add_tasks(compare)
    add_policy(compare)
    compare.add_argument("--all", action="store_true", help="all keys, also those that are the same everywhere")
    compare.add_argument("--best", action="store_true", help="by the best held-out score of each, not by its last")


def run(args: argparse.Namespace) -> int:
    """Print both tables."""
    from marlaas.engine.errors import ConfigError

    from ...home.configuration import differences
    from ...home.results import CHOSEN, NOTE, compared, difference_text, pairs_json, scored
    from ...reading.opening import find_task, reading

    with reading(home_of(args)) as reader:
        numbers = chosen(args, reader)
        assert reader is not None
        shown = [face for number in numbers for face in faces(args, find_task(reader, number))]
        if len(shown) < 2:
            raise ConfigError("One task cannot be compared.", "Give two or more numbers, or a sweep with --family.")
        tasks = [_compared(reader, policy, row) for policy, row in shown]
        scores = [scored(reader, _label(task), task.row.id, task.policy, args.best) for task in tasks]
    rows = differences([task.config for task in tasks], args.all)
    if args.json:
        output.result_json({"tasks": [_json(task) for task in tasks], "paired": pairs_json(scores), "config": rows})
        return output.OK
    headers = ("TASK", *map(_label, tasks))
    against = ["", *(difference_text(compared(one, scores[0])) for one in scores[1:])]
    cells = [
        [*_results(task), ("compared by", _step(one)), ("difference", how)]
        for task, one, how in zip(tasks, scores, against, strict=True)
    ]
    results = list(zip(*cells, strict=True))
    output.result_table(headers, [(cells[0][0], *(text for _, text in cells)) for cells in results], right=headers[1:])
    if any(compared(one, scores[0]).difference for one in scores[1:]):
        output.talk(NOTE.format(first=headers[1]))
        if args.best:
            output.talk(CHOSEN)
    if len({one.row.series for one in scores if one.row}) > 1:
        output.talk("Held-out scores of different series do not compare: other prompts, or graded by other code.")
    output.result("")
    if not rows.keys() - set(NAMED):
        output.talk("Their configurations are the same.")
        return output.OK
    differing = [(line(key, 40), *map(_value, values)) for key, values in rows.items() if key not in NAMED]
    output.result_table(("KEY", *headers[1:]), differing, right=headers[1:])
    return output.OK


def _label(task: Compared) -> str:
    return f"{task.row.id} {task.policy}".rstrip()


def _step(one: Scored) -> str:
    """The score by which a task is compared, as the table shows it."""
    return f"{score(one.row.score)} at {one.row.step}" if one.row else "-"


def _compared(reader: HomeReader, policy: str, row: TaskRow) -> Compared:
    from ...words.tasks import newest_key

    evals = reader.evals(row.id, policy or None)
    return Compared(row, policy, reader.task_config(row.id), newest_key(evals))


def _results(task: Compared) -> list[tuple[str, str]]:
    from ...words.metrics import value_text
    from ...words.tasks import short_name

    row = task.row
    return [
        ("tenant", line(row.tenant, CELLS)),
        ("name", short_name(row, CELLS)),
        ("environment", line(row.environment, CELLS)),
        ("series", line(task.measured_on, 12) or "-"),
        ("state", line(row.state)),
        ("step", f"{row.step}/{row.steps}"),
        ("reward", score(row.reward)),
        ("held-out", with_error(row.score, row.basis)),
        ("measured on", rests_on(row.basis) if row.basis else "-"),
        ("best", score(row.best)),
        ("baseline", score(row.floor)),
        ("staleness", value_text("staleness", row.staleness)),
        ("tokens", count(row.tokens)),
        ("running time", duration(row.seconds)),
    ]


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "-" if value is None else line(str(value), CELLS)


def _json(task: Compared) -> dict[str, Any]:
    from ...words.tasks import task_json

    return {**task_json(task.row), "policy": task.policy, "measured_on": task.measured_on}
