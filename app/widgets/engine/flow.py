"""What goes through the stages: what waits, what is under way, and how much each has finished in the last minute."""

from __future__ import annotations

from collections.abc import Mapping

from marlaas.engine.store import StageSample

from ...words.format import count, number
from .pane import Line, table

_UNITS = {"rollout": "turns", "environment": "episodes", "training": "calls"}
_MADE = {"rollout": "tokens sampled", "training": "tokens trained on"}


def flow(now: Mapping[str, StageSample], minute: Mapping[str, StageSample], steps: int, width: int) -> list[Line]:
    """A line for each stage and one for steps; rates count only the seconds in which an engine ran."""
    if not now and not minute:
        return [(("Nothing was measured in the last minute.", "$text-muted"),)]
    rows = []
    for stage, unit in _UNITS.items():
        newest, lately = now.get(stage), minute.get(stage)
        waiting = "" if newest is None or stage == "environment" else number(newest.waiting, 1)
        rates = [] if lately is None else [f"{rate(lately.ended, lately)} {unit}/s"]
        if lately is not None and stage in _MADE:
            rates.append(f"{rate(lately.tokens, lately)} {_MADE[stage]}/s")
        rows.append((stage, waiting, "" if newest is None else number(newest.active, 1), ", ".join(rates)))
    engine = minute.get("engine")
    rows.append(("steps", "", "", "" if engine is None else f"{rate(60 * steps, engine)} a minute"))
    return table(("stage", "waiting", "active", "in the last minute"), rows, (11, -7, -6, 60), width)


def rate(many: float, span: StageSample) -> str:
    """A number per second of the span, in few digits."""
    value = many / span.wall if span.wall > 0 else 0.0
    return count(round(value)) if value >= 100 else number(value, 1 if value >= 10 else 2)
