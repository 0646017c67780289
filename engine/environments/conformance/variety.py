"""Check: different instances have different first prompts."""

from __future__ import annotations

from collections.abc import Sequence

from .draws import Draw
from .finding import Finding

CHECK = "variety"
ENOUGH = 8
"""Prompts of a split below which equal ones mean nothing."""


def judge(draws: Sequence[Draw]) -> list[Finding]:
    """A warning for splits whose prompts are all the same; for the others, how many differ."""
    alike, shares = [], []
    for split in ("train", "eval"):
        prompts = [draw.prompt for draw in draws if draw.split == split and draw.prompt is not None]
        distinct = len(set(prompts))
        if distinct == 1 and len(prompts) >= ENOUGH:
            alike.append(f"all {len(prompts)} {split} prompts")
        elif prompts:
            shares.append(f"{distinct} of {len(prompts)} {split} prompts")
    findings = []
    if alike:
        text = " and ".join(alike).replace("all", "All", 1)
        advice = "That is right for a game that always opens alike; else draw the task from ep.rng."
        findings.append(Finding(CHECK, "warning", f"{text} are the same. {advice}"))
    if shares:
        findings.append(Finding(CHECK, "note", f"{' and '.join(shares)} differ."))
    return findings
