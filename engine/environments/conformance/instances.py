"""Check: instances can be drawn, and reach a first prompt."""

from __future__ import annotations

from collections.abc import Sequence

from ..plugin import said
from ..protocol import EpisodeOutcome
from .draws import Draw
from .finding import Finding

CHECK = "instances"
MOST_SKIPPED = 0.5


def judge(draws: Sequence[Draw]) -> list[Finding]:
    """Errors, time limits, skipped draws, and episodes that never ask."""
    ended = [(draw, draw.reached) for draw in draws if isinstance(draw.reached, EpisodeOutcome)]
    failed = [(draw, outcome) for draw, outcome in ended if outcome.status not in ("ok", "skip")]
    silent = [draw for draw, outcome in ended if outcome.status == "ok"]
    skipped = [draw for draw, outcome in ended if outcome.status == "skip"]
    findings = []
    if failed:
        draw, outcome = failed[0]
        reason = said(outcome.failure) if outcome.failure else f"it ended as {outcome.status}"
        findings.append(
            Finding(
                CHECK,
                "error",
                f"{_of(failed, draws)} have no first prompt: {draw.place} ends before it: {reason}.",
            )
        )
    if silent and len(silent) + len(skipped) == len(draws):
        text = f"It never calls `ep.ask`: {_of(silent, draws)} end without it. Nothing can be learned from that."
        findings.append(Finding(CHECK, "error", text))
    elif silent:
        findings.append(
            Finding(
                CHECK,
                "warning",
                f"{_of(silent, draws)} end without asking the model, such as {silent[0].place}: nothing is learned from"
                " them. Raise Skip where a draw is unusable.",
            )
        )
    if skipped:
        many = len(skipped) > MOST_SKIPPED * len(draws)
        findings.append(
            Finding(CHECK, "warning" if many else "note", f"{_of(skipped, draws)} are skipped by the environment.")
        )
    return findings


def _of(some: Sequence[object], draws: Sequence[Draw]) -> str:
    return f"{len(some)} of {len(draws)} instances"
