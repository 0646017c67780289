"""Check: first prompts leave room for an answer. Lengths are in tokens, or without a ruler in characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from marlaas.plugins.messages import Ask

from ...errors import MarlaasError
from .draws import Draw
from .finding import Finding
from .pace import Pace

CHECK = "lengths"
CROWDED = 0.75
"""Share of the context from which a prompt leaves little room."""


class Ruler(Protocol):
    """Counts the tokens of prompts as the trained base does."""

    @property
    def context(self) -> int:
        """Tokens that a conversation may grow to."""

    async def tokens(self, ask: Ask) -> int:
        """Tokens of a first prompt; for one that is much too long, a lower bound.

        Raises ``ValueError`` or ``BaseModelError`` where the base's template refuses it."""


@dataclass(frozen=True)
class Lengths:
    """The lengths of first prompts."""

    by_draw: tuple[tuple[Draw, int], ...]
    context: int | None
    """None: the lengths are characters."""
    refused: tuple[Draw, str] | None = None
    """The first prompt that the base's template refuses, and why."""


async def look(draws: Sequence[Draw], ruler: Ruler | None, pace: Pace, share: float) -> Lengths:
    """Measure the first prompts."""
    found: list[tuple[Draw, int]] = []
    refused = None
    asked = [(draw, draw.reached) for draw in draws if isinstance(draw.reached, Ask)]
    async for draw, ask in pace.take(asked, share):
        try:
            found.append((draw, await ruler.tokens(ask) if ruler else sum(len(said.content) for said in ask.messages)))
        except (ValueError, MarlaasError) as error:
            refused = refused or (draw, str(error))
    return Lengths(tuple(found), ruler.context if ruler else None, refused)


def judge(lengths: Lengths) -> list[Finding]:
    """Errors for prompts that cannot be put to the base, a warning for those that leave little room."""
    findings = []
    if lengths.refused:
        draw, reason = lengths.refused
        text = f"The first prompt of {draw.place} cannot be put to the base model: {reason}"
        findings.append(Finding(CHECK, "error", text))
    if not lengths.by_draw:
        return findings
    draw, longest = max(lengths.by_draw, key=lambda pair: pair[1])
    mean = math.fsum(length for _, length in lengths.by_draw) / len(lengths.by_draw)
    unit = "characters" if lengths.context is None else "tokens"
    text = f"First prompts have {mean:,.0f} {unit} on average, at most {longest:,}"
    if lengths.context is None:
        return [*findings, Finding(CHECK, "note", f"{text}; no base was there to count tokens.")]
    text = f"{text} ({draw.place}); a conversation has room for {lengths.context:,}"
    if longest >= lengths.context:
        findings.append(Finding(CHECK, "error", f"{text}. Say less at once, or give the base a larger context."))
    elif longest > CROWDED * lengths.context:
        findings.append(Finding(CHECK, "warning", f"{text}, and little of it is left for answers."))
    else:
        findings.append(Finding(CHECK, "note", f"{text}."))
    return findings
