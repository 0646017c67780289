"""Whether a machine is fast enough for a base, in words: a verdict on the seconds of a step. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

QUICK, PATIENT, SLOW = 5.0, 60.0, 600.0
"""Seconds of a step up to which one can watch, leave for lunch, or leave for the night."""

UNITS = (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0), ("second", 1.0))

Word = Literal["fit", "slow", "unfit"]


@dataclass(frozen=True)
class Verdict:
    """What a person should expect."""

    word: Word
    text: str


def judge(seconds: float, steps: int, place: str = "on this CPU") -> Verdict:
    """A verdict on steps that take so many seconds each."""
    whole = f"about {spoken(seconds)} a step {place}: {spoken(seconds * steps)} for {steps}"
    if seconds <= QUICK:
        return Verdict("fit", f"This machine is fit for it: {whole}.")
    if seconds <= PATIENT:
        return Verdict("fit", f"This machine is fit for it, with patience: {whole}.")
    if seconds <= SLOW:
        return Verdict("slow", f"This machine is slow for it: {whole}. Queue tasks overnight, or take a smaller base.")
    return Verdict("unfit", f"This machine is not fit for it: {whole}. Take a smaller base, or a machine with a GPU.")


def spoken(seconds: float) -> str:
    """A duration in everyday words: two figures, one unit."""
    unit, length = next(((unit, length) for unit, length in UNITS if seconds >= 1.5 * length), UNITS[-1])
    value = f"{float(f'{max(0.0, seconds) / length:.2g}'):g}"  # the inner one rounds, the outer writes no exponent
    return f"{value} {unit}{'' if value == '1' else 's'}"
