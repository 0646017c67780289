"""``metrics``: every step and every evaluation of tasks, to read or to take away."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import output
from ...words.format import duration
from ...words.held_out import held_out
from ..choosing import add_policy, add_tasks, chosen, policy_of
from ..verbs import Verbs, add_verb, home_of

if TYPE_CHECKING:
    from ...home.results import Measured

COLUMNS = ("reward", "loss", "entropy", "kl", "grad_norm", "clipped", "gap_mean", "staleness", "length")
"""Columns of the table for people, as far as the tasks have such metrics."""


def register(verbs: Verbs) -> None:
    """Add the verb."""
    metrics = add_verb(
        verbs, "metrics", run, "show all steps and evaluations of tasks, or write them for other programs"
    )
    add_tasks(metrics)
    add_policy(metrics)
    form = metrics.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="a table: a row for each step, and for each evaluation")
    form.add_argument("--jsonl", action="store_true", help="the same rows, one JSON object per line")
    form.add_argument("--json", action="store_true", help="the same rows as one JSON document")
    form.add_argument("--tensorboard", type=Path, metavar="DIR", help="event files, in a folder of DIR for each task")


def run(args: argparse.Namespace) -> int:
    """Print, or write event files and print where they are."""
    from marlaas.engine.spec import ONLY

    from ...home.results import Measured, as_csv
    from ...reading.opening import find_task, reading

    with reading(home_of(args)) as reader:
        numbers = chosen(args, reader)
        assert reader is not None
        rows = [find_task(reader, number) for number in numbers]
        tasks, names = [], {}
        for row in rows:
            policy = policy_of(args, row)
            whose = policy or next(iter(row.trained), ONLY)
            steps, evals = reader.steps(row.id, policy=policy), reader.evals(row.id, policy=policy)
            tasks.append(Measured(row.id, steps, evals, whose))
            names[row.id] = " ".join([row.name, *([whose] if row.policies else [])])
    if args.tensorboard is not None:
        for task in tasks:
            output.result(str(_write_events(task, names[task.task], args.tensorboard)))
    elif args.csv:
        print(as_csv(tasks), end="")
    elif args.jsonl:
        for measured in (row for task in tasks for row in task.rows()):
            output.result(output.json_line(measured))
    elif args.json:
        output.result_json([row for task in tasks for row in task.rows()])
    elif not any(task.steps or task.evals for task in tasks):
        output.talk("Nothing was measured yet; the first step does that.")
    else:
        _print(tasks)
        for row in rows if args.policy is None else ():
            if len(row.trained) > 1:
                output.talk(f"Of task {row.id} this is {row.trained[0]}; --policy shows {', '.join(row.trained[1:])}.")
    return output.OK


def _print(tasks: list[Measured]) -> None:
    from ...words.metrics import words

    measured = [row for task in tasks for row in task.rows()]
    columns = [name for name in COLUMNS if any(name in row["metrics"] for row in measured if row["kind"] == "step")]
    headers = ["STEP", *(words(name).title.upper() for name in columns), "TIME", "HELD-OUT"]
    if len(tasks) > 1:
        headers = ["ID", *headers]
    output.result_table(headers, [_cells(row, columns, len(tasks) > 1) for row in measured], right=headers)


def _cells(row: dict[str, Any], columns: list[str], many: bool) -> list[str]:
    first = [str(row["task"])] if many else []
    if row["kind"] == "eval":
        from marlaas.engine.store import ScoreBasis

        basis = ScoreBasis(**{one.name: row[one.name] for one in fields(ScoreBasis)})
        return [*first, str(row["step"]), *("" for _ in columns), "", held_out(row["score"], basis)]
    from ...words.metrics import value_text

    measured = row["metrics"]
    values = [value_text(name, measured.get(name)) for name in columns]
    return [*first, str(row["step"]), *values, duration(row["seconds"]), ""]


def _write_events(task: Measured, name: str, folder: Path) -> Path:
    """Write a task's event file, whole or not at all, in place of the one that was written before."""
    from marlaas.engine.errors import StoreError

    from ...home.results import event_file

    scalars = list(task.scalars())
    begun = min((row.created for row in scalars), default=0.0)
    path = folder / _folder_name(task.task, name) / "events.out.tfevents.marlaas"
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(event_file(scalars, begun))
        part.replace(path)
    except OSError as error:
        raise StoreError(f"cannot be written: {error.strerror}.", where=str(path)) from error
    return path


def _folder_name(task: int, name: str) -> str:
    """The run's name in TensorBoard: the task's number, and the characters of its name that a folder may have."""
    words = "".join(c if c.isalnum() or c in "_.=," else " " for c in name[:60]).split()
    return "-".join([str(task), *words]).rstrip(".")
