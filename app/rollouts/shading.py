"""The colours of tokens: by advantage, log-probability, importance weight, or the version that sampled them.

A legend explains the scale. Every level has an attribute of its own (underline, bold, reverse), so that nothing depends
on colour. Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from marlaas.engine.store import StoredConversation, Tokens

from ..words.format import number

TURNS, ADVANTAGE, LOGPROB, WEIGHT, VERSION = "turns", "advantage", "log-probability", "importance weight", "version"
SHADES = (TURNS, ADVANTAGE, LOGPROB, WEIGHT, VERSION)
"""The shadings that ``v`` goes through; the first shows what was said, the others the tokens themselves."""

GIVEN = "$text-muted"
"""The style of tokens that were not sampled: prompts, and results of tools."""
UNKNOWN = "$text-disabled"
"""The style of sampled tokens without a value: untrained ones have no importance weight."""


@dataclass(frozen=True)
class Scale:
    """Divides values into classes: below the first bound, between two bounds, and from the last one on."""

    bounds: tuple[float, ...]
    labels: tuple[str, ...]
    styles: tuple[str, ...]

    def style(self, value: float) -> str:
        """The style of a value."""
        return UNKNOWN if math.isnan(value) else self.styles[bisect_right(self.bounds, value)]


_BAD, _WORSE = "underline $text-error", "reverse $text-error"
_GOOD, _BETTER = "bold $text-success", "bold reverse $text-success"

PROBABILITIES = Scale(
    (math.log(0.01), math.log(0.1), math.log(0.5), math.log(0.9)),
    ("< 1 %", "1-10 %", "10-50 %", "50-90 %", "≥ 90 %"),
    ("reverse $text-error", "bold underline $text-error", "bold $text-warning", "underline $text-warning", ""),
)
ADVANTAGES = Scale(
    (-0.5, -1e-6, 1e-6, 0.5),
    ("≤ -0.5", "< 0", "0", "> 0", "≥ 0.5"),
    (_WORSE, _BAD, "", _GOOD, _BETTER),
)
WEIGHTS = Scale(
    (math.log(0.5), math.log(0.9), math.log(1.1), math.log(2.0)),
    ("< 0.5", "0.5-0.9", "0.9-1.1", "1.1-2", "≥ 2"),
    (_WORSE, _BAD, "", _GOOD, _BETTER),
)
_TURN_ABOUT = ("", "underline $text-primary", "bold $text-accent", "bold underline $text-success", "reverse")


@dataclass(frozen=True)
class Shading:
    """One way to shade a conversation's tokens."""

    name: str
    legend: tuple[tuple[str, str], ...] = ()
    """(label, style) of each class."""
    lacking: str = ""
    """Why nothing can be shaded, in one sentence."""


def shading_of(name: str, conversation: StoredConversation) -> Shading:
    """How a conversation is shaded, or why it cannot be."""
    if name == TURNS:
        return Shading(name)
    sampled = [part.tokens for part in conversation.parts if part.tokens.ids]
    if not sampled:
        given_up = any(part.length for part in conversation.parts)
        reason = "its tokens were deleted to save disk space" if given_up else "it has no tokens"
        return Shading(name, lacking=f"There is nothing to shade: {reason}.")
    if name == WEIGHT and not any(tokens.weights for tokens in sampled):
        return Shading(name, lacking=_why_no_weights(conversation))
    if name == VERSION:
        styles = version_styles(conversation)
        return Shading(name, tuple((f"v{version}", style) for version, style in styles.items()))
    scale = {ADVANTAGE: ADVANTAGES, LOGPROB: PROBABILITIES, WEIGHT: WEIGHTS}[name]
    legend = tuple(zip(scale.labels, scale.styles, strict=True))
    if name == ADVANTAGE:
        legend = ((f"here {number(conversation.advantage)}", ADVANTAGES.style(conversation.advantage)), *legend)
        return Shading(name, legend)
    return Shading(name, legend if name == LOGPROB else (*legend, ("not trained on", UNKNOWN)))


def token_styles(name: str, conversation: StoredConversation, tokens: Tokens) -> list[str]:
    """A style for each token of one trajectory, (T,)."""
    if name == ADVANTAGE:
        whole = ADVANTAGES.style(conversation.advantage)
        result = [whole if sampled else GIVEN for sampled in tokens.sampled]
        for (start, stop, _), own in zip(tokens.spans, tokens.advantages, strict=False):
            if own is not None:
                result[start:stop] = [ADVANTAGES.style(own)] * (stop - start)
        return result
    if name == LOGPROB:
        return [
            PROBABILITIES.style(logprob) if sampled else GIVEN
            for sampled, logprob in zip(tokens.sampled, tokens.logprobs, strict=True)
        ]
    if name == WEIGHT:
        weights = iter(tokens.weights)
        return [WEIGHTS.style(next(weights, math.nan)) if sampled else GIVEN for sampled in tokens.sampled]
    styles, result = version_styles(conversation), [GIVEN] * len(tokens.ids)
    for start, stop, version in tokens.spans:
        result[start:stop] = [styles[version]] * (stop - start)
    return result


def version_styles(conversation: StoredConversation) -> dict[int, str]:
    """A style for each policy version that sampled in the conversation, oldest first."""
    versions: Sequence[int] = sorted({version for part in conversation.parts for _, _, version in part.tokens.spans})
    return {version: _TURN_ABOUT[place % len(_TURN_ABOUT)] for place, version in enumerate(versions)}


def _why_no_weights(conversation: StoredConversation) -> str:
    if conversation.split != "train":
        return "Held-out conversations are not trained on: their tokens have no importance weights."
    if conversation.step is None:
        return "No step has consumed this group yet: its tokens get importance weights when it is trained on."
    return "Nothing is known of importance weights here: all rewards were equal, or an older marlaas trained on it."
