"""Results of tasks: compared by prompt, as tables, as TensorBoard's event files."""

from __future__ import annotations

import csv
import io
import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from marlaas.engine.spec.task import ONLY
from marlaas.engine.store.queries import learning
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import EvalRow, StepRow, VersionRow

from ..text.format import line, score
from ..text.scores import Difference, paired
from ..text.tasks import measured_on, newest_key, newest_series
from ..text.terms import new_key, with_new_keys, with_new_names

# Compared are last scores of the newest series, or the best; of an evaluation each version's. The best of many scores
# on the same prompts is too high.

NOTE = (
    "Differences are by prompt, against {first}; their intervals (95 %) are those of a paired t test over the prompts"
    " that both have a score for."
)
CHOSEN = (
    "Each is the best of its scores, chosen on these very prompts: it is too high, and the intervals do not know that."
    " The last scores, without --best, compare fairly; so does `marlaas eval ID@best ID@best --split test`."
)


@dataclass(frozen=True)
class Scored:
    """A task or policy with the score that is compared."""

    label: str
    row: EvalRow | None
    """None: no score."""
    prompts: Mapping[int, float] = field(default_factory=dict)
    """Mean reward of each instance."""
    lengths: tuple[Any, ...] = ()
    """Lengths of replies, and thinking."""
    mixed: bool = False
    """True for the mean over a mixture."""


def scored(reader: Reader, label: str, task: int, policy: str, best: bool = False) -> Scored:
    """The last score of a policy's newest series, or with ``best`` the best; an empty ``policy`` is the only one."""
    rows = [row for row in reader.evals(task, policy or None) if not row.suite]
    on = "" if any(not measured_on(row) for row in rows) else "test"
    series = [row for row in newest_series(rows, on) if row.score is not None]
    if not series:
        return Scored(label, None)
    chosen = max(series, key=lambda row: (row.score or 0.0, -row.step)) if best else series[-1]
    config = reader.task_config(task)
    sampling, mixed = config.get("sampling", {}), bool(config.get("mixture"))
    lengths = tuple(sampling.get(key) for key in ("max_tokens", "max_episode_tokens", "thinking"))
    return Scored(label, chosen, learning.prompt_scores(reader, task, chosen, policy or None), lengths, mixed)


def compared(one: Scored, first: Scored) -> Difference | str:
    """``one`` minus ``first``, if both were measured alike on the same prompts; else why they do not compare."""
    a, b = one.row, first.row
    if a is None or b is None:
        return "no score"
    for problem, other in (
        ("another series", a.series != b.series),
        ("another split", a.split != b.split),
        ("another k", a.samples != b.samples),
        ("a mixture", one.mixed or first.mixed),
        ("other [sampling]", one.lengths != first.lengths),
    ):
        if other:
            return f"not paired: {problem}"
    return paired(one.prompts, first.prompts) or "not paired: no prompts in common"


def difference_text(found: Difference | str) -> str:
    """The difference with its interval, or why there is none."""
    return found if isinstance(found, str) else f"{found.mean:+.3f} ({found.low:+.3f} to {found.high:+.3f})"


def difference_lines(scores: Sequence[Scored]) -> list[str]:
    """A sentence for each score, with its difference to the first."""
    lines = []
    for place, one in enumerate(scores):
        if one.row is None:
            lines.append(f"{line(one.label, 60)}: no held-out score")
            continue
        said = f"{line(one.label, 60)}: held-out {score(one.row.score)} at step {one.row.step}"
        lines.append(f"{said}, {difference_text(compared(one, scores[0]))}" if place else said)
    return lines


def pairs_json(scores: Sequence[Scored]) -> list[dict[str, Any]]:
    """Each but the first, compared with the first."""
    pairs = [(one.label, compared(one, scores[0])) for one in scores[1:]]
    return [
        {"of": label, "against": scores[0].label}
        | ({"problem": found} if isinstance(found, str) else {**vars(found), "problem": ""})
        for label, found in pairs
    ]


# A row is a step or an evaluation, by its ``kind``.

_MEASURED = (
    *("environment_version", "score", "stderr", "n", "floor", "failures", "prompts", "samples", "pass_at", "best_of"),
    *("series", "suite", "split"),
)
"""Columns of evaluations only."""
FIXED = ("task", "policy", "kind", "step", "created", "seconds", *with_new_names(dict.fromkeys(_MEASURED)))
"""The first columns; metrics follow by name."""


@dataclass(frozen=True)
class Measured:
    """Steps and evaluations of one policy."""

    task: int
    steps: Sequence[StepRow]
    evals: Sequence[EvalRow]
    policy: str = ONLY

    def rows(self) -> Iterator[dict[str, Any]]:
        """Rows by step, evaluations after the step that made their version."""
        whose = {"task": self.task, "policy": self.policy}
        steps = [
            {
                **(whose | {"kind": "step", "step": row.step, "created": row.created, "seconds": row.seconds}),
                "metrics": with_new_keys(row.metrics),
            }
            for row in self.steps
        ]
        evals = [
            {
                **(whose | {"kind": "eval", "step": row.step, "created": row.created}),
                **with_new_names({name: getattr(row, name) for name in _MEASURED}),
                "metrics": row.metrics,
            }
            for row in self.evals
        ]
        yield from sorted(steps + evals, key=lambda row: row["step"])  # stable: steps stay before evaluations

    def scalars(self) -> Iterator[Scalars]:
        """``train/NAME``, ``eval/score``, ``eval/NAME``. Earlier series have other tags, since they do not compare."""
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
    """One table with a header; missing values are empty."""
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
    """nan, inf, 1e-05: readers of CSV know Python's numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return "" if value is None else value


# TensorBoard's event files, written: scalars by step in, the bytes of one file out. Standard library only.
#
# A file is a sequence of records: the length as 8 bytes, its masked CRC-32C, the data, their masked CRC-32C
# (TensorFlow's ``record_writer.cc``). The data are ``Event`` messages in protobuf's wire format (``event.proto``,
# ``summary.proto``), of which a scalar needs five fields. Packages that write them have far more dependencies than
# that is worth.

_VARINT, _BYTES = 0, 2
_FIXED = {"d": 1, "f": 5}
"""Wire types; of numbers by their format for ``struct``."""
_POLYNOMIAL = 0x82F63B78
"""CRC-32C (Castagnoli), reflected."""


@dataclass(frozen=True)
class Scalars:
    """Values of one step."""

    step: int
    created: float
    """Unix time."""
    values: Mapping[str, float]
    """By tag."""


def event_file(scalars: Iterable[Scalars], created: float) -> bytes:
    """A whole event file, created at this Unix time."""
    head = _number(1, "d", created) + _bytes(3, b"brain.Event:2")
    return b"".join(map(_record, (head, *map(_event, scalars))))


def _event(scalars: Scalars) -> bytes:
    values = b"".join(
        _bytes(1, _bytes(1, tag.encode("utf-8", "replace")) + _number(2, "f", value))
        for tag, value in scalars.values.items()
    )
    return _number(1, "d", scalars.created) + _key(2, _VARINT) + _varint(scalars.step) + _bytes(5, values)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def _key(field: int, wire_type: int) -> bytes:
    return bytes((field << 3 | wire_type,))


def _varint(value: int) -> bytes:
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*groups, value))


def _number(field: int, kind: Literal["d", "f"], value: float) -> bytes:
    try:
        packed = struct.pack(f"<{kind}", value)
    except OverflowError:  # too large for 32 bits
        packed = struct.pack(f"<{kind}", math.copysign(math.inf, value))
    return _key(field, _FIXED[kind]) + packed


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(value)) + value


def masked_crc(data: bytes) -> int:
    """CRC-32C, rotated and shifted as TensorFlow's records want it."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """CRC-32C (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _remainders() -> Iterator[int]:
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        yield value


_TABLE = tuple(_remainders())


def no_gain(reader: Reader, version: VersionRow) -> str:
    """A sentence if the version scores no more than its policy before training; else empty. Even the best may be worse
    than the base."""
    series = newest_series([row for row in reader.evals(version.task, version.policy) if not row.suite])
    scores = {row.step: row.score for row in series if row.score is not None}
    before, own = scores.get(0), scores.get(version.number)
    if version.number == 0 or before is None or own is None or own > before:
        return ""
    return (
        f"Training has not helped: version {version.number} scored {score(own)} on the held-out prompts, and the policy"
        f" before its first step {score(before)}."
    )


def task_prompt(reader: Reader, version: VersionRow) -> str:
    """The first prompt of a recent episode of the policy; empty if none is stored. Foreign text."""
    said = reader.newest_group(version.task, version.policy)
    own = (turn.text for row in said if row.policy == version.policy for turn in row.turns if turn.role == "user")
    return next(own, "")
