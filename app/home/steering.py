"""Asking the engine to pause, resume, retry or cancel tasks, and waiting for its answers.

Numbers of tasks flow in, an answer for each flows out. Knows no terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .outcomes import unanswered, wait_for_outcomes

if TYPE_CHECKING:
    from marlaas.engine.home import Home
    from marlaas.engine.store import Reader


def steer(home: Home, reader: Reader, kind: str, tasks: Sequence[int]) -> dict[int, str]:
    """Send one command for each task, all at once; why it could not be done, by task, empty where it was.

    Raises ``EngineUnreachable`` where no engine runs or one does not answer, ``UnknownTask``, ``StoreError``.
    """
    from marlaas.engine.daemon import control
    from marlaas.engine.errors import EngineUnreachable
    from marlaas.engine.store import command_all

    if not control.alive(home):
        raise EngineUnreachable(f"No engine serves {home.root}.", "`marlaas engine start` starts one.")
    sent = dict(zip(command_all(home.database, kind, tasks), tasks, strict=True))
    outcomes = wait_for_outcomes(reader, list(sent))
    for command, task in sent.items():
        if command not in outcomes:
            raise unanswered(f"task {task}")
    return {task: outcomes[command] for command, task in sent.items()}
