"""Refusals as each interface writes them: OpenAI's error object, or Anthropic's."""

from __future__ import annotations

import math
from typing import Any, Literal

from ..answerer import Refusal

Form = Literal["openai", "responses", "anthropic"]
"""Whose errors a client can read, and whose names of parameters it knows."""
RESPONSES = {"messages": "input", "response_format": "text.format", "max_tokens": "max_output_tokens"}
"""Parameters of chat completions, by which the engine names what is wrong, in the interface of responses."""

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
    where = parameter(refusal, form)
    return {"error": {"message": refusal.message, "type": kind, "param": where, "code": refusal.code or None}}


def parameter(refusal: Refusal, form: Form) -> str | None:
    """The name of the parameter that is wrong, if one is."""
    return (RESPONSES.get(refusal.where, refusal.where) if form == "responses" else refusal.where) or None


def headers(refusal: Refusal) -> dict[str, str]:
    """What goes with it: when to try again, where that may help."""
    if refusal.status not in (429, 503):
        return {}
    return {"Retry-After": str(max(1, math.ceil(SOON if refusal.retry_after is None else refusal.retry_after)))}


def form_of(path: str, headers: Any) -> Form:
    """Whose errors the client of this request can read."""
    if "anthropic-version" in headers or path.endswith(("/messages", "/messages/count_tokens")):
        return "anthropic"
    return "responses" if path.endswith("/responses") else "openai"


def _general(status: int) -> str:
    return "invalid_request_error" if status < 500 else "api_error"
