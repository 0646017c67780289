"""How a task's run can end before its last step: not as a crash, but as a state with a reason."""

from __future__ import annotations

from ..errors import MarlaasError


class Blocked(MarlaasError):
    """The task waits for something outside itself: an environment to be repaired."""


class Paused(MarlaasError):
    """The task pauses itself, because going on would waste the machine; a person resumes it."""


class Failed(MarlaasError):
    """The task cannot go on at all."""
