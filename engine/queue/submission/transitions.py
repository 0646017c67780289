"""A task's states and commands.

Loads nothing: screens need it for their first paint.
"""

from __future__ import annotations

from ...errors import ConfigError

TRANSITIONS: dict[str, dict[str, str]] = {
    "pause": {"submitted": "paused", "queued": "paused", "blocked": "paused", "running": "paused"},
    "resume": {"paused": "queued"},
    "retry": {"failed": "queued", "cancelled": "queued", "queued": "queued", "blocked": "queued"},  # those: at once
    "cancel": {
        "submitted": "cancelled",
        "queued": "cancelled",
        "blocked": "cancelled",
        "running": "cancelled",
        "paused": "cancelled",
    },
    "extend": {
        "submitted": "submitted",
        "queued": "queued",
        "blocked": "blocked",
        "running": "queued",
        "paused": "paused",
        "done": "queued",
    },
    "priority": {
        "submitted": "submitted",
        "queued": "queued",
        "blocked": "blocked",
        "running": "queued",
        "paused": "paused",
    },
    "rollback": {"paused": "queued", "done": "queued", "failed": "queued", "cancelled": "queued"},
}
PAST = {
    "pause": "paused",
    "resume": "resumed",
    "retry": "retried",
    "cancel": "cancelled",
    "extend": "extended",
    "priority": "given another priority",
    "rollback": "rolled back",
}


def next_state(command: str, state: str) -> str:
    """Raises ``ConfigError`` if the command makes no sense."""
    if command not in TRANSITIONS:
        raise ConfigError(f"This engine knows no command {command!r}.", "Restart it if marlaas was updated meanwhile.")
    allowed = TRANSITIONS[command]
    if state not in allowed:
        hint = "`marlaas resume` goes on with it." if state == "paused" else f"Only {', '.join(allowed)} ones can."
        raise ConfigError(f"A task that is {state} cannot be {PAST[command]}.", hint)
    return allowed[state]
