"""Refusals as each interface writes them: OpenAI's error object, or Anthropic's."""

from __future__ import annotations

import math
from typing import Any, Literal

from ..answerer import Refusal

Form = Literal["openai", "anthropic"]
"""Whose errors a client can read."""

_OPENAI = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_ANTHROPIC = _OPENAI | {413: "request_too_large", 503: "overloaded_error", 504: "timeout_error"}
SOON = 1.0
"""Seconds after which to try again, where nobody knows better."""


def body(refusal: Refusal, form: Form) -> dict[str, Any]:
    """The error as JSON."""
    if form == "anthropic":
        kind = _ANTHROPIC.get(refusal.status, _general(refusal.status))
        return {"type": "error", "error": {"type": kind, "message": refusal.message}}
    kind = _OPENAI.get(refusal.status, _general(refusal.status))
    where, code = refusal.where or None, refusal.code or None
    return {"error": {"message": refusal.message, "type": kind, "param": where, "code": code}}


def headers(refusal: Refusal) -> dict[str, str]:
    """What goes with it: when to try again, where that may help."""
    if refusal.status not in (429, 503):
        return {}
    return {"Retry-After": str(max(1, math.ceil(SOON if refusal.retry_after is None else refusal.retry_after)))}


def form_of(path: str, headers: Any) -> Form:
    """Whose errors the client of this request can read."""
    speaks = "anthropic-version" in headers or path.endswith(("/messages", "/messages/count_tokens"))
    return "anthropic" if speaks else "openai"


def _general(status: int) -> str:
    return "invalid_request_error" if status < 500 else "api_error"
