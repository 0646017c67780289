"""Which held-out scores of tasks are compared by prompt, and why others are not.

Of a training task it is the last score of its newest series, or the best; of an evaluation that of each version. The
best of many scores on the same prompts is too high, and so is its difference to another task's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...words.format import line, score
from ...words.scores.paired import Difference, paired
from ...words.tasks import measured_on, newest_series

if TYPE_CHECKING:
    from marlaas.engine.store import EvalRow

    from ...reading.home_reader import HomeReader

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
    """A task, or one of its policies, with the score that it is compared by."""

    label: str
    row: EvalRow | None
    """None: it has no score."""
    prompts: Mapping[int, float] = field(default_factory=dict)
    """Mean reward of each instance."""
    lengths: tuple[Any, ...] = ()
    """How long its replies might be, and whether it thought."""
    mixed: bool = False
    """Whether it is the mean over the environments of a mixture."""


@dataclass(frozen=True)
class Compared:
    """How one score differs from another."""

    difference: Difference | None
    """None where the two do not compare."""
    problem: str = ""
    """Then why not, in a few words."""


def scored(reader: HomeReader, label: str, task: int, policy: str, best: bool = False) -> Scored:
    """The score of a task's policy (empty: its only one): the last of its newest series, or with ``best`` the best."""
    rows = [row for row in reader.evals(task, policy or None) if not row.suite]
    on = "" if any(not measured_on(row) for row in rows) else "test"
    series = [row for row in newest_series(rows, on) if row.score is not None]
    if not series:
        return Scored(label, None)
    chosen = max(series, key=lambda row: (row.score or 0.0, -row.step)) if best else series[-1]
    config = reader.task_config(task)
    sampling, mixed = config.get("sampling", {}), bool(config.get("mixture"))
    lengths = tuple(sampling.get(key) for key in ("max_tokens", "max_episode_tokens", "thinking"))
    return Scored(label, chosen, reader.prompt_scores(task, chosen, policy or None), lengths, mixed)


def compared(one: Scored, first: Scored) -> Compared:
    """How much more ``one`` scores than ``first``, if both were measured on the same prompts in the same way."""
    a, b = one.row, first.row
    if a is None or b is None:
        return Compared(None, "no score")
    for what, key in (("series", "another series"), ("split", "another split"), ("samples", "another k")):
        if getattr(a, what) != getattr(b, what):
            return Compared(None, f"not paired: {key}")
    if one.mixed or first.mixed:
        return Compared(None, "not paired: a mixture")
    if one.lengths != first.lengths:
        return Compared(None, "not paired: other [sampling]")
    found = paired(one.prompts, first.prompts)
    return Compared(found, "" if found else "not paired: no prompts in common")


def difference_text(found: Compared) -> str:
    """A difference with its interval; why there is none, where there is none."""
    if found.difference is None:
        return found.problem
    one = found.difference
    return f"{one.mean:+.3f} ({one.low:+.3f} to {one.high:+.3f})"


def difference_lines(scores: Sequence[Scored]) -> list[str]:
    """A sentence for each score: what it is, and how much more it is than the first."""
    lines = []
    for place, one in enumerate(scores):
        if one.row is None:
            lines.append(f"{line(one.label, 60)}: no held-out score")
            continue
        said = f"{line(one.label, 60)}: held-out {score(one.row.score)} at step {one.row.step}"
        lines.append(f"{said}, {difference_text(compared(one, scores[0]))}" if place else said)
    return lines


def pairs_json(all_of_them: Sequence[Scored]) -> list[dict[str, Any]]:
    """Each but the first, compared with the first."""
    first, *others = all_of_them
    found = []
    for one in others:
        how = compared(one, first)
        numbers = vars(how.difference) if how.difference else {}
        found.append({"of": one.label, "against": first.label, **numbers, "problem": how.problem})
    return found
