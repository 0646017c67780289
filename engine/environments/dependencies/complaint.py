"""The line of an installer's output that says why it failed. Pure.

Flows in: everything that pip or uv said. Flows out: one line; what the output means is not known here.
"""

from __future__ import annotations

import re

_CAUSE = re.compile(r"(?:╰─▶|(?m:^)\s+cause:)\s*(?P<reason>.+(?:\n[ \t]{4,}\S.*)*)")
"""How versions of uv introduce the reason; a long one goes on, indented."""
_ERROR = re.compile(r"(?im)^\s*(?:error|fatal error)\s*:\s*(?P<reason>.+)$")
_LONGEST = 400


def complaint(said: str) -> str:
    """The reason of a failure: uv's cause, else the first line that calls itself an error, else the last line."""
    found = _CAUSE.search(said) or _ERROR.search(said)
    reason = found["reason"] if found else next((line for line in reversed(said.splitlines()) if line.strip()), "")
    flat = " ".join(reason.split())
    return flat if len(flat) <= _LONGEST else f"{flat[: _LONGEST - 1]}…"
