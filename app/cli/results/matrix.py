"""``matrix``: how versions of a task's policies did against each other, in the plays that are stored."""

from __future__ import annotations

import argparse
import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ... import output
from ..choosing import add_policy, add_task, policy_of
from ..verbs import Verbs, add_verb, home_of

if TYPE_CHECKING:
    from ...words.scores import Matrix


def register(verbs: Verbs) -> None:
    """Add the verb."""
    matrix = add_verb(
        verbs,
        "matrix",
        run,
        "show what versions of a task's policies were paid against each other: the win-rate, where winning pays 1",
        json=True,
        epilog="From all plays that are stored, of training and held-out; an episode counts where both had a turn.",
    )
    add_task(matrix)
    add_policy(matrix)


def run(args: argparse.Namespace) -> int:
    """Print a table for each whom the policy met."""
    from marlaas.engine.spec import ONLY

    from ...reading.opening import find_task, reading
    from ...words.scores import matrices

    with reading(home_of(args)) as reader:
        task = find_task(reader, args.task)
        assert reader is not None
        policy = policy_of(args, task) or next(iter(task.trained), ONLY)
        found = matrices(reader.matchups(task.id), task.policies, policy)
    if args.json:
        output.result_json([_json(matrix) for matrix in found])
        return output.OK
    if not found:
        output.talk(f"No version of {policy} has met another one yet. `[eval] agents` in the task file has them play.")
    for place, matrix in enumerate(found):
        if place:
            output.result("")
        _print(matrix)
    return output.OK


def _print(matrix: Matrix) -> None:
    from ...words.scores import CELL, cell_text

    room = (shutil.get_terminal_size((120, 24)).columns - 8) // CELL
    columns = matrix.columns_for(room)
    output.result(f"{matrix.title}: mean reward of the row, its standard error, n episodes")
    headers = ("", *(f"v{version}" for version in columns))
    rows = [
        (f"v{row}", *(cell_text(matrix.cells.get((row, column))) for column in columns))
        for row in matrix.rows
        if any((row, column) in matrix.cells for column in columns)
    ]
    output.result_table(headers, rows, right=headers)
    if len(columns) < len(matrix.columns):
        output.talk(f"{len(columns)} of {len(matrix.columns)} columns; --json has all.")


def _json(matrix: Matrix) -> dict[str, Any]:
    cells = [
        {"version": row, "against_version": column, **asdict(meeting)}
        for (row, column), meeting in sorted(matrix.cells.items())
    ]
    return {"policy": matrix.policy, "against": matrix.against, "cells": cells}
