"""The state of a task as everybody sees it: a queued one that lacks something is *blocked*.

To the scheduler both are queued: it tries a blocked task again and again, and no command treats the two differently.
So *blocked* is no state of the table, but is read from the code beside it, here and nowhere else.
"""

from __future__ import annotations


def shown_state(task: str) -> str:
    """SQL for the state of a task; ``task`` is the alias of the table ``tasks``."""
    return f"CASE WHEN {task}.state = 'queued' AND {task}.reason_code = 'blocked' THEN 'blocked' ELSE {task}.state END"
