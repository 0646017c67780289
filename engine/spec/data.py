"""The table [data] of a task file: the rows that a task draws from, in place of the environment's own.

Each component of a mixture may have such a table, too, and each suite: [mixture.data], [eval.suite.data].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from .validation import RANGE, TYPE, UNKNOWN, Fault, between, nearest

if TYPE_CHECKING:
    from .task import TaskSpec

SPLITS = ("train", "eval", "test")


@dataclass(frozen=True)
class DataSpec:
    """The rows that the task draws from, in place of the environment's own."""

    path: str = ""
    """A file of JSON lines, Parquet or Arrow, a folder or a pattern of such files, or a folder that ``datasets`` has
    saved; relative to the task file. ``{split}`` in it stands for the name of a split. Empty: the environment's own."""
    columns: dict[str, str] = field(default_factory=dict)
    """The columns of the file by the names that the environment knows them by: ``{question = "prompt"}``. Others keep
    their names."""
    split: dict[str, Any] = field(default_factory=dict)
    """For ``eval`` (and ``train``, ``test``): what the split is called in the data, or the share of the different rows
    that it gets. Empty: as the rows' own column ``split`` says; without one, a tenth of them is for evaluation."""
    limit: int = between(0, 0, 1_000_000_000)
    """The most rows to train on, chosen from all of the file, alike for every seed; 0: all."""

    @property
    def record(self) -> dict[str, Any] | None:
        """The rows as ``plugins.data.Source.record`` writes them; None if the environment's own count."""
        return asdict(self) if self.path else None


def data_faults(spec: TaskSpec) -> Iterator[Fault]:
    """Where the keys of [data], or of a component's or a suite's, contradict each other."""
    for table, data in data_tables(spec):
        yield from _faults(data, table)


def data_tables(spec: TaskSpec) -> Iterator[tuple[str, DataSpec]]:
    """The tables of a task file that may name rows."""
    yield "data", spec.data
    yield from ((f"mixture[{place}].data", part.data) for place, part in enumerate(spec.mixture))
    yield from ((f"eval.suite[{place}].data", suite.data) for place, suite in enumerate(spec.eval.suite))


def _faults(data: DataSpec, table: str) -> Iterator[Fault]:
    if not data.path:
        for key in ("columns", "split", "limit"):
            if getattr(data, key):
                says = f"'{table}.{key}' is set, but there is no '{table}.path'."
                yield Fault(f"{table}.{key}", says, "Name the file with the rows.", (f"{table}.path",))
    wrong, shares = False, []
    for name, value in data.split.items():
        fault = _split_fault(name, value, f"{table}.split")
        wrong |= fault is not None
        if fault is not None:
            yield fault
        elif not isinstance(value, str):
            shares.append(value)
    if wrong:
        return
    if shares and len(shares) < len(data.split):
        yield Fault(f"{table}.split", f"'{table}.split' has names and shares.", "Give either of them to all splits.")
    if math.fsum(shares) >= 1:
        yield Fault(f"{table}.split", f"the shares in '{table}.split' leave nothing to train on.", code=RANGE)


def _split_fault(name: str, value: Any, table: str) -> Fault | None:
    """What is wrong with one entry of ``table``."""
    key = f"{table}.{name}"
    if name not in SPLITS:
        return Fault(key, f"unknown split {key!r}.", nearest(name, SPLITS), code=UNKNOWN)
    if not isinstance(value, str | int | float) or isinstance(value, bool) or value == "":
        return Fault(key, f"{key!r} must be a name in quotes, or a share such as 0.1.", code=TYPE)
    if isinstance(value, int | float) and (name == "train" or not 0 < value < 1):
        says = f"{key!r} is {value}; a share lies between 0 and 1, and 'train' gets what is left."
        return Fault(key, says, code=RANGE)
    return None
