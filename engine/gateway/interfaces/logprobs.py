"""Log-probabilities as chat completions and the Responses interface write them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ..wire import Token

LEAST = -9999.0
"""In place of minus infinity, and of a token that has none: JSON has no infinity."""


def finite(logprob: float | None) -> float:
    """The log-probability as JSON can say it."""
    return logprob if logprob is not None and math.isfinite(logprob) else LEAST


def content(tokens: Iterable[Token]) -> list[dict[str, Any]]:
    """A row for each token, with the likeliest in its place."""
    return [
        {
            **_row(token.text, token.logprob),
            "top_logprobs": [_row(text, logprob) for _, text, logprob in token.likeliest],
        }
        for token in tokens
    ]


def _row(text: str, logprob: float | None) -> dict[str, Any]:
    return {"token": text, "logprob": finite(logprob), "bytes": list(text.encode("utf-8", "surrogatepass"))}
