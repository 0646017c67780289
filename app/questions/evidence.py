"""From rows of the store to what a verdict goes by. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from marlaas.engine.store import EvalRow, TaskRow, Track

from ..words.lost import lost_briefly
from ..words.tasks import newest_series
from ..words.verdict import Evidence, Score


def evidence(
    row: TaskRow,
    evals: Sequence[EvalRow],
    rewards: Track,
    recent: Mapping[str, float],
    versions: Mapping[str, EvalRow | None],
    config: Mapping[str, Any] = MappingProxyType({}),
    policy: str = "",
) -> Evidence:
    """``row``: the task as the policy sees it whose evaluations, rewards and recent means these are.

    ``versions``: of an evaluation, what it measures, with the newest score of each. ``config``: the task's
    configuration; ``policy``: which one is meant of several.
    """
    found = ((name, None if one is None else _score(one)) for name, one in versions.items())
    basis = row.basis if row.score is None else None
    return Evidence(
        row.state,
        row.reason_code,
        row.step,
        row.steps,
        rewards.steps,
        rewards.values,
        tuple(one for each in newest_series(evals) if (one := _score(each)) is not None),
        (basis.failures, basis.n + basis.failures) if basis is not None else None,
        row.floor,
        recent,
        tuple(found) if row.kind == "eval" else None,
        lost_briefly(row),
        _both_sides(config, policy),
    )


def _both_sides(config: Mapping[str, Any], policy: str) -> bool:
    """Whether a policy acts as several agents in training, of which others play one when it is measured."""
    own = {agent for agent, acts in config.get("agents", {}).items() if acts == policy}
    return len(own) > 1 and not own.isdisjoint(config.get("eval", {}).get("agents", {}))


def _score(row: EvalRow) -> Score | None:
    return None if row.score is None else Score(row.step, row.score, row.stderr)
