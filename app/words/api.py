"""The API in words: whether it is open, what a key may, and how a program is pointed at it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .format import ago, count, counted, duration, line

if TYPE_CHECKING:
    from marlaas.engine.store import ApiKeyRow, ApiRow

OPEN, CLOSED, FAILED = "open", "closed", "failed"
GLYPHS = {OPEN: "●", CLOSED: "○", FAILED: "✗"}
MAY = {
    "chat": "talk to the base and to its tenant's adapters",
    "train": "train adapters of its tenant",
    "admin": "do what a person at the command line may",
}
"""What each scope allows."""


def api_state(row: ApiRow, alive: bool) -> str:
    """Open, closed, or failed where it should be open; without a live engine nothing answers, whatever it wrote."""
    if not alive:
        return CLOSED
    return OPEN if row.open else FAILED if row.note else CLOSED


def state_text(row: ApiRow, alive: bool, now: float) -> str:
    """The state in one line: where it is, since when, or why not."""
    state = api_state(row, alive)
    since = "" if row.since is None or not alive else f" for {duration(float(int(max(0.0, now - row.since))))}"
    if state == OPEN:
        return f"open at {line(row.url, 80)}{since}"
    if state == FAILED:
        return f"closed, although it should be open: {line(row.note, 300)}"
    if alive:
        return f"closed{since}."
    return "closed: no engine runs" + (", and the next one opens it." if row.switched else ".")


def used_text(keys: Sequence[ApiKeyRow]) -> str:
    """How many keys there are, of how many tenants, and what they have used."""
    holding = [key for key in keys if key.revoked is None]
    tenants = len({key.tenant for key in holding})
    whose = f"{counted(len(holding), 'key')} of {counted(tenants, 'tenant')}" if holding else "no key that holds"
    requests = sum(key.requests for key in keys)
    tokens_in, tokens_out = sum(key.tokens_in for key in keys), sum(key.tokens_out for key in keys)
    return f"{whose} · {requests_text(requests)} · {count(tokens_in)} tokens read, {count(tokens_out)} sampled"


def requests_text(requests: int) -> str:
    """How many were answered: 1 request, 1,204 requests."""
    return "1 request" if requests == 1 else f"{requests:,} requests"


def last_use(key: ApiKeyRow, now: float) -> str:
    """When a key was used last."""
    return "never" if key.last_use is None else ago(key.last_use, now)


def may_text(scopes: Sequence[str]) -> str:
    """What a key with these scopes may, by scope."""
    return "; ".join(f"{line(scope, 12)}: {MAY.get(scope, '?')}" for scope in scopes)


def key_name(key: ApiKeyRow) -> str:
    """How people know a key: its beginning, and what somebody called it."""
    return f"{line(key.prefix, 40)}…" + (f" ({line(key.name, 40)})" if key.name else "")


def variables(url: str) -> list[str]:
    """The environment variables that point programs at the API, one a line; the key is left out."""
    return [f"OPENAI_BASE_URL={url}/v1", "OPENAI_API_KEY=…", f"ANTHROPIC_BASE_URL={url}", "ANTHROPIC_API_KEY=…"]
