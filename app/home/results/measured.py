"""All that was measured of a task, as other programs want it: rows of CSV, lines of JSON, TensorBoard's scalars.

A row is a step or an evaluation, which its ``kind`` says. Pure.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from marlaas.engine.spec import ONLY
from marlaas.engine.store import EvalRow, StepRow

from ...words.format import line
from ...words.tasks import newest_key
from ...words.terms import new_key, with_new_keys, with_new_names
from .tensorboard import Scalars

_MEASURED = (
    *("environment_version", "score", "stderr", "n", "floor", "failures", "prompts", "samples", "pass_at", "best_of"),
    *("series", "suite", "split"),
)
"""What only evaluations have."""
FIXED = ("task", "policy", "kind", "step", "created", "seconds", *with_new_names(dict.fromkeys(_MEASURED)))
"""The first columns of a table; the metrics follow, sorted by name."""


@dataclass(frozen=True)
class Measured:
    """The steps and evaluations of one policy of a task."""

    task: int
    steps: Sequence[StepRow]
    evals: Sequence[EvalRow]
    policy: str = ONLY

    def rows(self) -> Iterator[dict[str, Any]]:
        """Rows by step, each evaluation after the step that made its policy; metrics are in a table of their own."""
        rows = [self._step(row) for row in self.steps] + [self._eval(row) for row in self.evals]
        yield from sorted(rows, key=lambda row: row["step"])  # stable: steps stay before evaluations

    def _step(self, row: StepRow) -> dict[str, Any]:
        when = {"step": row.step, "created": row.created, "seconds": row.seconds}
        return {**self._whose("step"), **when, "metrics": with_new_keys(row.metrics)}

    def _eval(self, row: EvalRow) -> dict[str, Any]:
        measured = with_new_names({name: getattr(row, name) for name in _MEASURED})
        when = {"step": row.step, "created": row.created}
        return {**self._whose("eval"), **when, **measured, "metrics": row.metrics}

    def _whose(self, kind: str) -> dict[str, Any]:
        return {"task": self.task, "policy": self.policy, "kind": kind}

    def scalars(self) -> Iterator[Scalars]:
        """``train/NAME``, ``eval/score``, ``eval/NAME``; earlier series have other tags: they do not compare."""
        newest = newest_key(self.evals)
        for row in self.steps:
            values = {f"train/{line(new_key(name))}": value for name, value in row.metrics.items()}
            yield Scalars(row.step, row.created, {**values, "train/seconds": row.seconds})
        for measured in self.evals:
            place = " ".join(word for word in (measured.split, line(measured.suite)) if word)
            if not measured.suite and measured.split == "eval" and measured.series != newest:
                place = f"eval {line(measured.series, 12)}"
            values = {"failed": float(measured.failures), **measured.metrics}
            if measured.score is not None:
                values |= {"score": measured.score, "stderr": measured.stderr}
            more = {"baseline": measured.floor, "pass_at": measured.pass_at, "best_at": measured.best_of}
            values |= {name: value for name, value in more.items() if value is not None}
            tagged = {f"{place}/{line(name)}": value for name, value in values.items()}
            yield Scalars(measured.step, measured.created, tagged)


def as_csv(tasks: Sequence[Measured]) -> str:
    """One table for all tasks, with a header; what a row does not have is empty."""
    rows = [row for task in tasks for row in task.rows()]
    names = sorted({name for row in rows for name in row["metrics"]} - set(FIXED))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*FIXED, *(line(name) for name in names)))
    for row in rows:
        cells = {**row["metrics"], **row}
        writer.writerow([_cell(cells.get(name)) for name in (*FIXED, *names)])
    return text.getvalue()


def _cell(value: Any) -> Any:
    """A number as Python writes it, which readers of CSV understand: nan, inf, 1e-05."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return "" if value is None else value
