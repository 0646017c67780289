"""Why no cluster answers at an address, in one sentence: Ray says it in pages, or ends the process that asked. Pure."""

from __future__ import annotations

import re

from ..errors import ClusterUnreachable

REFUSED = ("nauthenticated", "UNAUTHENTICATED", "AuthenticationError", "InvalidAuth")
"""Signs that a token was not accepted."""
OTHER = ("Failed to connect to GCS", "http2 header")
"""Signs that something listens, and is no head."""
MIXED = "Version mismatch"
"""What Ray says where versions differ."""
HINT = "`marlaas cluster status` says how this machine stands."


def refuses_token(said: str) -> bool:
    """Whether Ray did not accept a token, by what was printed."""
    return any(sign in said for sign in REFUSED)


def no_head(said: str) -> bool:
    """Whether what listens does not speak as a head of Ray does."""
    return not refuses_token(said) and any(sign in said for sign in OTHER)


def unreached(address: str, said: str) -> ClusterUnreachable:
    """The error for a cluster that does not answer; ``said`` is all that Ray had to say."""
    if refuses_token(said):
        why = "it does not accept this machine's token"
    elif no_head(said):
        why = "what listens there does not speak as Ray does"
    elif MIXED in said:
        why = "it runs another version of Python or Ray"
    else:
        why = plainly(next((line for line in said.splitlines() if line.strip()), "it left no word"))
    return ClusterUnreachable(f"No cluster answers at {address}: {why}.", HINT)


def plainly(text: str) -> str:
    """A line of Ray's without the name of its error and the last full stop."""
    return re.sub(r"^[\w.]+(Error|Exception): ", "", text.strip()).rstrip(".")
