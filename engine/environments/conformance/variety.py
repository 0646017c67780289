"""Check: different instances have different first prompts."""

from __future__ import annotations

from collections.abc import Sequence

from .draws import Draw
from .finding import Finding

CHECK = "variety"
ENOUGH = 8
"""Prompts of a split below which equal ones mean nothing."""
CHANCE = 0.25
"""Share of repeated prompts up to which they are chance: 64 draws from 441 sums repeat a fifteenth of them. Evaluation
measures each prompt once, so that they cost a little precision only."""


def judge(draws: Sequence[Draw]) -> list[Finding]:
    """A warning for splits whose prompts are all the same, or of which eval repeats many; else how many differ."""
    alike, shares, repeated = [], [], []
    for split in ("train", "eval"):
        prompts = [draw.prompt for draw in draws if draw.split == split and draw.prompt is not None]
        distinct = len(set(prompts))
        if distinct == 1 and len(prompts) >= ENOUGH:
            alike.append(f"all {len(prompts)} {split} prompts")
        elif split == "eval" and distinct < (1.0 - CHANCE) * len(prompts) and len(prompts) >= ENOUGH:
            repeated.append(f"Only {distinct} of {len(prompts)} eval prompts differ")
        elif prompts:
            shares.append(f"{distinct} of {len(prompts)} {split} prompts")
    findings = []
    if alike:
        text = " and ".join(alike).replace("all", "All", 1)
        advice = "That is right for a game that always opens alike; else draw the task from ep.rng."
        findings.append(Finding(CHECK, "warning", f"{text} are the same. {advice}"))
    for text in repeated:
        advice = "what is asked again tells nothing new. Evaluate no more prompts than there are, or draw from more."
        findings.append(Finding(CHECK, "warning", f"{text}: {advice}"))
    if shares:
        findings.append(Finding(CHECK, "note", f"{' and '.join(shares)} differ."))
    return findings
