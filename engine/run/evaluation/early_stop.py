"""Whether held-out scores are a reason to end a task before its last step, and what to say of them at its end. Pure.

Scores are those of one evaluation series, by version number. Version 0 is untrained: it reaches no target, but it is
what the first trained versions have to beat.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...spec import EvalSpec
from ...store import best


def reached(scores: Mapping[int, float], spec: EvalSpec) -> bool:
    """Whether a trained version has reached the target."""
    target = spec.target
    return target is not None and any(score >= target for number, score in scores.items() if number > 0)


def stalled(scores: Mapping[int, float], spec: EvalSpec) -> bool:
    """Whether the last ``patience`` evaluations in a row brought no better score."""
    if not spec.patience or not scores:
        return False
    return sum(number > best(scores) for number in scores) >= spec.patience


def remark(scores: Mapping[int, float], spec: EvalSpec, early: bool) -> str:
    """What there is to say of a task that has ended, ``early`` or after its last step; empty if nothing."""
    if not scores:
        return ""
    clauses = []
    if early and stalled(scores, spec):
        clauses.append(f"the held-out score did not rise in {spec.patience} evaluations")
    if spec.target is not None and not reached(scores, spec):
        clauses.append(f"target {spec.target:g} was not reached")
    if not clauses:
        return ""
    number = best(scores)
    said = f"{' and '.join(clauses)}; best was {scores[number]:.3g} at step {number}."
    return said[0].upper() + said[1:]
