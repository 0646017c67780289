"""Commands to the engine: sending them, waiting for its answers, and the sentence for one that does not come.

Knows no terminal but for the notice that an engine is started.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .. import output

if TYPE_CHECKING:
    from marlaas.engine.errors import EngineUnreachable
    from marlaas.engine.home import Home

    from ..reading.home_reader import HomeReader

ANSWER_SECONDS = 30.0
BEGINNING = ("resume", "retry")
"""Commands after which tasks run: without an engine they would wait for somebody to start one."""


def wait_for_outcomes(
    reader: HomeReader,
    commands: list[int],
    timeout: float = ANSWER_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> dict[int, str]:
    """Outcomes by command, without those that the engine did not carry out in time. An empty text is success."""
    deadline = clock() + timeout
    while True:
        outcomes = reader.command_outcomes(commands)
        if len(outcomes) == len(commands) or clock() > deadline:
            return outcomes
        sleep(0.1)


def ask(home: Home, reader: HomeReader, kind: str, task: int, **arguments: Any) -> str:
    """Send one command to the engine, which is started if need be; returns the engine's refusal, or an empty text.

    Raises ``EngineUnreachable`` where it does not answer.
    """
    from marlaas.engine.daemon import control
    from marlaas.engine.store import command

    control.ensure_running(home, notice=output.talk)
    sent = command(home.database, kind, task, **arguments)
    outcome = wait_for_outcomes(reader, [sent]).get(sent)
    if outcome is None:
        raise unanswered(f"task {task}")
    return outcome


def unanswered(about: str = "") -> EngineUnreachable:
    """What to raise for a command that has no outcome in time; ``about`` names the task."""
    from marlaas.engine.errors import EngineUnreachable

    return EngineUnreachable(
        f"The engine has not answered {about and f'for {about} '}within {ANSWER_SECONDS:g} s.",
        "It will carry the command out when it gets to it; `marlaas engine status` shows its state.",
    )


def steer(home: Home, reader: HomeReader, kind: str, tasks: Sequence[int]) -> dict[int, str]:
    """Send one command for each task, all at once; why it could not be done, by task, empty where it was.

    An engine is started for what begins work. Raises ``EngineUnreachable`` where else none runs, or it does not answer,
    ``UnknownTask``, ``StoreError``.
    """
    from marlaas.engine.daemon import control, holder
    from marlaas.engine.errors import EngineUnreachable
    from marlaas.engine.store import command_all

    control.refuse_suspended(holder(home.lock))
    if kind in BEGINNING:
        control.ensure_running(home, notice=output.talk)
    elif not control.alive(home):
        raise EngineUnreachable(f"No engine serves {home.root}.", "`marlaas engine start` starts one.")
    sent = dict(zip(command_all(home.database, kind, tasks), tasks, strict=True))
    outcomes = wait_for_outcomes(reader, list(sent))
    for command, task in sent.items():
        if command not in outcomes:
            raise unanswered(f"task {task}")
    return {task: outcomes[command] for command, task in sent.items()}
